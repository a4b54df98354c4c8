"""An event loop whose time passes when nothing is left to do, and whose order a seed decides."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from random import Random


class Stuck(AssertionError):
    """Every task waits for something that nobody will do."""


class _Selector(selectors.BaseSelector):
    """No file is ever ready: to wait is to let the time pass."""

    def __init__(self) -> None:
        self.passed = 0.0
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, int(fileobj), events, data)
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(int(fileobj))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing will ever happen again")
        self.passed += timeout
        return []

    def get_map(self) -> Any:
        return self._keys


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Ready tasks run in an order of `order`'s; what threads do takes a time of its."""

    def __init__(self, order: Random) -> None:
        self._order = order
        self._time = _Selector()
        self.iteration = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        super().__init__(self._time)
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        return self._time.passed

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that have not ended, in the order of creation, which `all_tasks` does not keep."""
        return [*self._tasks]

    def _new_task(self, _: asyncio.AbstractEventLoop, coro: Any, **given: Any) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **given)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _process_events(self, event_list: Any) -> None:
        """Called once per iteration, before what is ready runs: tasks change places."""
        self.iteration += 1
        ready: Any = self._ready  # type: ignore[attr-defined]
        if len(ready) > 1:
            handles = list(ready)
            places = [place for place, handle in enumerate(handles) if _is_task(handle)]
            shuffled = places[:]
            self._order.shuffle(shuffled)
            ready.clear()
            moved = dict(zip(places, shuffled, strict=True))
            ready.extend(handles[moved.get(place, place)] for place in range(len(handles)))

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> Any:
        done = self.create_future()

        def work() -> None:
            if not done.done():
                done.set_result(func(*args))

        self.call_later(self._order.random() * 0.004, work)
        return done


def _is_task(handle: Any) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)

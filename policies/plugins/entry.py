"""A plug-in that is a Python function of an installed package, here in the process.

Invariants: what it raises, returns or forgets is its own affair: the event gets `error:`, the log
a line with the place, never with what the event says. A plain function runs on a thread of its own,
because it may compute; nobody can stop it there, so while it is late all other events get `error:`
at once. An async one runs on the loop, all events of a batch side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Final

from policies.plugins.asked import Notes, no_answer, rule_name
from relay.verdict import Reject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.plugins.asked import Asked, Rule, Standing

_MAX_LATE: Final = 256
"""Calls that were given up and go on all the same; with more of them nothing new is asked."""
_STOP_S: Final = 1.0


def is_async(rule: Rule) -> bool:
    return inspect.iscoroutinefunction(rule) or inspect.iscoroutinefunction(
        getattr(rule, "__call__", None)  # noqa: B004 — an object with an async __call__
    )


class _Said:
    """What a function gives back, made into an objection, and how it is known to be."""

    def __init__(self, name: str, standing: Standing) -> None:
        self._name = name
        self._standing = standing
        self._notes = Notes(name)
        self._is_well = True

    def read(self, said: object) -> Reject | None:
        if said is None or isinstance(said, Reject):
            if not self._is_well:
                self._is_well = True
                self._standing.is_well(self._name)
            return None if said is None else Reject(said.prefix, said.text, rule_name(self._name))
        return self.failed(f"returned {type(said).__name__}, not Reject or None")

    def raised(self, wrong: BaseException) -> Reject:
        """Its type and its place: the text may hold what the event says."""
        trace = wrong.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        if trace is None:
            return self.failed(f"raised {type(wrong).__name__}")
        place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        return self.failed(f"raised {type(wrong).__name__} at {place}")

    def failed(self, why: str) -> Reject:
        self._is_well = False
        self._notes.add(logging.ERROR, why)
        self._standing.has_failed(self._name, why)
        return no_answer(self._name)


class AsyncRule:
    """An `async def`, asked on the loop."""

    def __init__(self, name: str, rule: Rule, deadline_ms: int, standing: Standing) -> None:
        self._name = name
        self._rule = rule
        self._deadline_s = deadline_ms / 1000
        self._said = _Said(name, standing)
        self._late: set[asyncio.Task[object]] = set()
        self._running: set[asyncio.Task[object]] = set()

    async def answers(self, asked: Sequence[Asked]) -> list[Reject | None]:
        if len(self._late) >= _MAX_LATE:
            return [self._said.failed(f"{_MAX_LATE} calls did not end")] * len(asked)
        tasks = [asyncio.create_task(self._called(each)) for each in asked]
        self._running.update(tasks)
        _, late = await asyncio.wait(tasks, timeout=self._deadline_s)
        self._running.clear()
        for task in late:
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            task.cancel()
        return [
            self._said.failed("did not answer in time")
            if task in late or task.cancelled()
            else self._result(task.result())
            for task in tasks
        ]

    async def stop(self) -> None:
        tasks = self._late | self._running
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_S)

    async def _called(self, asked: Asked) -> object:
        """What it gives back or raises: a SystemExit must not end the relay."""
        try:
            answer: object = self._rule(*asked)
            if inspect.isawaitable(answer):
                return await answer
        except (Exception, SystemExit, KeyboardInterrupt) as wrong:  # foreign code  # noqa: BLE001
            return wrong
        return answer

    def _result(self, said: object) -> Reject | None:
        if isinstance(said, BaseException):
            return self._said.raised(said)
        return self._said.read(said)


class _Round:
    """One batch on its way through the thread."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        self.asked = asked
        self.said: list[object] = []
        self.began = monotonic()
        """When the event that is being asked about was begun."""
        self.is_given_up = False
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()

    def tell(self) -> None:
        """From the thread; the loop may have ended meanwhile."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.settle)

    def settle(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class PlainRule:
    """A `def`, asked on a thread of its own."""

    def __init__(self, name: str, rule: Rule, deadline_ms: int, standing: Standing) -> None:
        self._name = name
        self._rule = rule
        self._deadline_s = deadline_ms / 1000
        self._said = _Said(name, standing)
        self._rounds: SimpleQueue[_Round | None] = SimpleQueue()
        self._last: _Round | None = None
        """Given up, and perhaps still computing."""
        self._current: _Round | None = None
        # A daemon: a function that never returns must not keep the relay from ending.
        threading.Thread(target=self._work, name=f"plug-in {name}", daemon=True).start()

    async def answers(self, asked: Sequence[Asked]) -> list[Reject | None]:
        if self._last is not None and not self._last.done.done():
            return [no_answer(self._name)] * len(asked)
        self._last = None
        current = self._current = _Round(asked)
        self._rounds.put(current)
        while not current.done.done() and not current.is_given_up:
            left = current.began + self._deadline_s - monotonic()
            if left <= 0:
                current.is_given_up = True
                self._last = current
            else:
                await asyncio.wait([current.done], timeout=left)
        results = [self._result(said) for said in current.said[: len(asked)]]
        owed = len(asked) - len(results)
        if owed:
            results += [self._said.failed("did not answer in time")] * owed
        return results

    async def stop(self) -> None:
        self._rounds.put(None)
        if self._current is not None:
            self._current.is_given_up = True
            self._current.settle()

    def _work(self) -> None:
        while (current := self._rounds.get()) is not None:
            for asked in current.asked:
                if current.is_given_up:
                    break
                current.began = monotonic()
                current.said.append(self._called(asked))
            current.tell()

    def _called(self, asked: Asked) -> object:
        try:
            return self._rule(*asked)
        except BaseException as wrong:  # foreign code, the last frame of its thread  # noqa: BLE001
            return wrong

    def _result(self, said: object) -> Reject | None:
        return self._said.raised(said) if isinstance(said, BaseException) else self._said.read(said)


def plain_or_async(
    name: str, rule: Rule, deadline_ms: int, standing: Standing
) -> PlainRule | AsyncRule:
    make = AsyncRule if is_async(rule) else PlainRule
    return make(name, rule, deadline_ms, standing)

"""Measured: how much processor time of the event loop a coroutine takes."""

from __future__ import annotations

from functools import partial
from time import thread_time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")


class Measured(Generic[T]):
    """To be awaited once, in place of the coroutine."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.work_s = 0.0
        """Processor seconds of its steps: a machine that is busy with others is no fault of it."""

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            began = thread_time()
            try:
                awaited = step()
            except StopIteration as end:
                value: T = end.value
                return value
            finally:
                self.work_s += thread_time() - began
            try:
                step = partial(self._coroutine.send, (yield awaited))
            except BaseException as raised:  # a cancellation too  # noqa: BLE001
                step = partial(self._coroutine.throw, raised)

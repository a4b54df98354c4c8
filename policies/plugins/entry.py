"""A plug-in that is a Python function of an installed package, run in this process.

Invariants: an exception, a wrong return value or a missed deadline gives the event `error:` and the
log a line with the location, never with the event's content. A plain function runs on its own
thread, because it may block; it cannot be interrupted there, so while it is late all other events
get `error:` at once. An async function runs on the loop, all events of a batch concurrently.
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

from policies.plugins.protocol import PluginLog, no_answer, rule_name
from relay.errors import Prefix, Reject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies.plugins.protocol import HealthReport, Question, Rule

_MAX_LATE: Final = 256
"""Calls past their deadline that still run; beyond this many, no new call is made."""
_STOP_S: Final = 1.0


def is_async(rule: Rule) -> bool:
    return inspect.iscoroutinefunction(rule) or inspect.iscoroutinefunction(
        getattr(rule, "__call__", None)  # noqa: B004 — an object with an async __call__
    )


def _is_typed(reject: Reject) -> bool:
    return isinstance(reject.prefix, Prefix) and isinstance(reject.text, str)


class _Outcome:
    """Turns a function's result into a refusal and reports its health."""

    def __init__(self, name: str, standing: HealthReport) -> None:
        self._name = name
        self._standing = standing
        self._notes = PluginLog(name)
        self._is_well = True

    def read(self, result: object) -> Reject | None:
        if result is None or isinstance(result, Reject):
            if result is not None and not _is_typed(result):
                return self.failed("returned a Reject of other than a Prefix and a text")
            if not self._is_well:
                self._is_well = True
                self._standing.recovered(self._name)
            return (
                None
                if result is None
                else Reject(result.prefix, result.text, rule_name(self._name))
            )
        return self.failed(f"returned {type(result).__name__}, not Reject or None")

    def raised(self, wrong: BaseException) -> Reject:
        """Log its type and location only: the text may repeat the event."""
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
        self._standing.failed_with(self._name, why)
        return no_answer(self._name)


class AsyncRule:
    """An `async def`, called on the loop."""

    def __init__(self, name: str, rule: Rule, deadline_ms: int, standing: HealthReport) -> None:
        self._name = name
        self._rule = rule
        self._deadline_s = deadline_ms / 1000
        self._outcome = _Outcome(name, standing)
        self._late: set[asyncio.Task[object]] = set()
        self._running: set[asyncio.Task[object]] = set()

    async def answers(self, questions: Sequence[Question]) -> list[Reject | None]:
        if len(self._late) >= _MAX_LATE:
            return [self._outcome.failed(f"{_MAX_LATE} calls did not return")] * len(questions)
        tasks = [asyncio.create_task(self._call(each)) for each in questions]
        self._running.update(tasks)
        _, late = await asyncio.wait(tasks, timeout=self._deadline_s)
        self._running.clear()
        for task in late:
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            task.cancel()
        return [
            self._outcome.failed("did not answer in time")
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

    async def _call(self, question: Question) -> object:
        """Its result or exception: a SystemExit must not end the relay, nor an exception of its own
        that is no Exception whoever asks."""
        try:
            answer: object = self._rule(*question)
            if inspect.isawaitable(answer):
                return await answer
        except asyncio.CancelledError:
            raise
        except BaseException as wrong:  # foreign code  # noqa: BLE001
            return wrong
        return answer

    def _result(self, result: object) -> Reject | None:
        if isinstance(result, BaseException):
            return self._outcome.raised(result)
        return self._outcome.read(result)


class _Batch:
    """One batch on the thread."""

    def __init__(self, questions: Sequence[Question]) -> None:
        self.questions = questions
        self.results: list[object] = []
        self.began = monotonic()
        """Start time of the current call."""
        self.is_given_up = False
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()

    def notify(self) -> None:
        """Called on the thread; the loop may be closed by now."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.settle)

    def settle(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class PlainRule:
    """A `def`, called on its own thread."""

    def __init__(self, name: str, rule: Rule, deadline_ms: int, standing: HealthReport) -> None:
        self._name = name
        self._rule = rule
        self._deadline_s = deadline_ms / 1000
        self._outcome = _Outcome(name, standing)
        self._rounds: SimpleQueue[_Batch | None] = SimpleQueue()
        self._last: _Batch | None = None
        """Past its deadline and perhaps still running."""
        self._current: _Batch | None = None
        # A daemon thread: a function that never returns must not keep the relay from exiting.
        threading.Thread(target=self._work, name=f"plug-in {name}", daemon=True).start()

    async def answers(self, questions: Sequence[Question]) -> list[Reject | None]:
        if self._last is not None and not self._last.done.done():
            return [no_answer(self._name)] * len(questions)
        self._last = None
        current = self._current = _Batch(questions)
        self._rounds.put(current)
        while not current.done.done() and not current.is_given_up:
            left = current.began + self._deadline_s - monotonic()
            if left <= 0:
                current.is_given_up = True
                self._last = current
            else:
                await asyncio.wait([current.done], timeout=left)
        results = [self._result(each) for each in current.results[: len(questions)]]
        owed = len(questions) - len(results)
        if owed:
            results += [self._outcome.failed("did not answer in time")] * owed
        return results

    async def stop(self) -> None:
        self._rounds.put(None)
        if self._current is not None:
            self._current.is_given_up = True
            self._current.settle()

    def _work(self) -> None:
        while (current := self._rounds.get()) is not None:
            for question in current.questions:
                if current.is_given_up:
                    break
                current.began = monotonic()
                current.results.append(self._call(question))
            current.notify()

    def _call(self, question: Question) -> object:
        try:
            return self._rule(*question)
        except BaseException as wrong:  # foreign code, the last frame of its thread  # noqa: BLE001
            return wrong

    def _result(self, result: object) -> Reject | None:
        return (
            self._outcome.raised(result)
            if isinstance(result, BaseException)
            else self._outcome.read(result)
        )


def plain_or_async(
    name: str, rule: Rule, deadline_ms: int, standing: HealthReport
) -> PlainRule | AsyncRule:
    make = AsyncRule if is_async(rule) else PlainRule
    return make(name, rule, deadline_ms, standing)

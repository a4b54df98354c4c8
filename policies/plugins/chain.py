"""The plug-ins in force, called one after the other in the order of the policy files."""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import TYPE_CHECKING, assert_never

from policies.plugins.definition import Command, Entry
from policies.plugins.entry import plain_or_async
from policies.plugins.process import ProcessPlugin
from policies.plugins.protocol import Question, asks_plugins, log_plugin, no_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from policies.plugins.definition import Plugin
    from policies.plugins.protocol import RunningPlugin
    from relay.errors import Reject
    from relay.facts import Arrival, Origin
    from relay.nostr.event import Event


class Chain:
    """`async with` it; leaving it stops every plug-in.

    The first refusal wins: later plug-ins are not asked about that event. None is started before
    `start` or the first event.
    """

    def __init__(
        self,
        plugins: Sequence[Plugin] = (),
        *,
        changed: Callable[[Sequence[str]], None] = lambda _: None,
        took: Callable[[str, float], None] = lambda _name, _seconds: None,
    ) -> None:
        """`changed` is called with the current problems, a line per plug-in, whenever they change;
        `took` with the seconds of each request to a plug-in."""
        self._took = took
        self._wanted = tuple(plugins)
        self._changed = changed
        self._at_work: list[tuple[Plugin, RunningPlugin]] = []
        self._running: set[RunningPlugin] = set()
        """Also those that are no longer in force but not yet stopped."""
        self._retiring: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Lock()
        self._is_started = self._is_stopped = False
        self._failing: dict[str, str] = {}
        self.failures = 0
        """Missed answers and failed starts since the relay started."""

    async def __aenter__(self) -> Chain:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def problems(self) -> Sequence[str]:
        """Current problems, a line per failing plug-in."""
        return [f"{name}: {why}" for name, why in self._failing.items()]

    @property
    def states(self) -> Mapping[str, str]:
        """Name → its current problem, empty when it answers."""
        return {plugin.name: self._failing.get(plugin.name, "") for plugin in self._wanted}

    def start(self) -> None:
        """Start all of them; a process needs a moment."""
        self._is_started = True
        self.enforce(self._wanted)

    def enforce(self, plugins: Sequence[Plugin]) -> None:
        """Take over the plug-ins of new policies: start new ones, stop removed ones, keep equal
        ones."""
        self._wanted = tuple(plugins)
        if not self._is_started or self._is_stopped:
            return
        before, self._at_work = self._at_work, []
        for plugin in plugins:
            kept = next((pair for pair in before if pair[0] == plugin), None)
            if kept is not None:
                before.remove(kept)
            self._at_work.append(kept or (plugin, self._started(plugin)))
        for plugin, answering in before:
            self.recovered(plugin.name)
            retiring = self._retire(plugin.name, answering)
            task = asyncio.create_task(retiring, name=f"retire {plugin.name}")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def asks_about(self, event: Event, origin: Origin) -> bool:
        return bool(self._wanted) and asks_plugins(event, origin)

    async def objections(self, events: Sequence[tuple[Event, Arrival]]) -> Sequence[Reject | None]:
        """One per event: the first refusal, `error:` for a missing answer."""
        if not self._is_started:
            self.start()
        questions = [Question(*event) for event in events]
        found: list[Reject | None] = [None] * len(questions)
        left = list(range(len(questions)))
        async with self._asking:
            for plugin, answering in tuple(self._at_work):
                if self._is_stopped:
                    answers: list[Reject | None] = [no_answer(plugin.name)] * len(left)
                else:
                    began = perf_counter()
                    answers = await answering.answers([questions[number] for number in left])
                    self._took(plugin.name, perf_counter() - began)
                for number, objection in zip(left, answers, strict=True):
                    found[number] = objection
                left = [number for number in left if found[number] is None]
                if not left:
                    break
        return found

    async def stop(self) -> None:
        """Stop all of them; pending and later questions get `error:`."""
        self._is_stopped = True
        await asyncio.gather(*[answering.stop() for answering in tuple(self._running)])
        self._running.clear()
        await asyncio.gather(*self._retiring)

    async def _retire(self, name: str, answering: RunningPlugin) -> None:
        """Stop it when its current batch is finished."""
        async with self._asking:
            pass
        await answering.stop()
        self._running.discard(answering)
        self.recovered(name)  # it may have owed an answer: nobody else would end that problem

    def _started(self, plugin: Plugin) -> RunningPlugin:
        started: RunningPlugin
        match plugin.way:
            case Command():
                started = ProcessPlugin(plugin.name, plugin.way, plugin.deadline_ms, self)
            case Entry():
                started = plain_or_async(plugin.name, plugin.way.rule, plugin.deadline_ms, self)
            case _:
                assert_never(plugin.way)
        self._running.add(started)
        return started

    # health reports of the plug-ins

    def recovered(self, name: str) -> None:
        if self._failing.pop(name, None) is not None:
            log_plugin(logging.INFO, "answers again", name)
            self._changed(self.problems)

    def failed_with(self, name: str, why: str) -> None:
        self.failures += 1
        if self._failing.get(name) != why:
            self._failing[name] = why
            self._changed(self.problems)

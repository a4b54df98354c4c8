"""The plug-ins in force, asked one behind the other in the order of the files."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, assert_never

from policies.plugins.asked import Asked, may_object, no_answer, say
from policies.plugins.definition import Command, Entry
from policies.plugins.entry import plain_or_async
from policies.plugins.process import ProcessPlugin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from policies.plugins.asked import Answering
    from policies.plugins.definition import Plugin
    from relay.nostr.event import Event
    from relay.verdict import Arrival, Origin, Reject


class Chain:
    """`async with` it; leaving it stops every plug-in.

    The first objection wins: the plug-ins behind are not asked about that event. None is started
    before `start` or the first event.
    """

    def __init__(
        self,
        plugins: Sequence[Plugin] = (),
        *,
        changed: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """`changed` hears what is wrong with plug-ins, a line each, whenever that is another."""
        self._wanted = tuple(plugins)
        self._changed = changed
        self._at_work: list[tuple[Plugin, Answering]] = []
        self._running: set[Answering] = set()
        """Also those that are no longer asked and not yet stopped."""
        self._retiring: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Lock()
        self._is_started = self._is_stopped = False
        self._ill: dict[str, str] = {}
        self.failures = 0
        """Answers that were owed, starts that went wrong: since the beginning."""

    async def __aenter__(self) -> Chain:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def problems(self) -> Sequence[str]:
        """What is wrong just now, a line for each plug-in that does not answer."""
        return [f"{name}: {why}" for name, why in self._ill.items()]

    def start(self) -> None:
        """All of them; processes take a moment until they run."""
        self._is_started = True
        self.enforce(self._wanted)

    def enforce(self, plugins: Sequence[Plugin]) -> None:
        """Those of the policies in force: what is new is started, what is gone stopped, what is the
        same is left alone."""
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
            self.is_well(plugin.name)
            task = asyncio.create_task(self._retire(answering), name=f"retire {plugin.name}")
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def asks_about(self, event: Event, origin: Origin) -> bool:
        return bool(self._wanted) and may_object(event, origin)

    async def objections(self, events: Sequence[tuple[Event, Arrival]]) -> Sequence[Reject | None]:
        """One for each event: the first objection, `error:` for an answer that is owed."""
        if not self._is_started:
            self.start()
        asked = [Asked(*event) for event in events]
        found: list[Reject | None] = [None] * len(asked)
        left = list(range(len(asked)))
        async with self._asking:
            for plugin, answering in tuple(self._at_work):
                if self._is_stopped:
                    said: list[Reject | None] = [no_answer(plugin.name)] * len(left)
                else:
                    said = await answering.answers([asked[number] for number in left])
                for number, objection in zip(left, said, strict=True):
                    found[number] = objection
                left = [number for number in left if found[number] is None]
                if not left:
                    break
        return found

    async def stop(self) -> None:
        """All of them; whoever waits for an answer, and who asks from now on, gets `error:`."""
        self._is_stopped = True
        await asyncio.gather(*[answering.stop() for answering in tuple(self._running)])
        self._running.clear()
        await asyncio.gather(*self._retiring)

    async def _retire(self, answering: Answering) -> None:
        """When the batch is through that it may be asked about."""
        async with self._asking:
            pass
        await answering.stop()
        self._running.discard(answering)

    def _started(self, plugin: Plugin) -> Answering:
        started: Answering
        match plugin.way:
            case Command():
                started = ProcessPlugin(plugin.name, plugin.way, plugin.deadline_ms, self)
            case Entry():
                started = plain_or_async(plugin.name, plugin.way.rule, plugin.deadline_ms, self)
            case _:
                assert_never(plugin.way)
        self._running.add(started)
        return started

    # what the plug-ins tell

    def is_well(self, name: str) -> None:
        if self._ill.pop(name, None) is not None:
            say(logging.INFO, "answers again", name)
            self._changed(self.problems)

    def has_failed(self, name: str, why: str) -> None:
        self.failures += 1
        if self._ill.get(name) != why:
            self._ill[name] = why
            self._changed(self.problems)

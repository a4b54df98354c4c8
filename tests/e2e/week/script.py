"""The steps of a week, each done to the relay by a machine and to the model; then both compared."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import AsyncExitStack, closing
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from relay.client import PublishRefused
from relay.client.errors import QueryClosed
from relay.errors import Prefix
from tests import cast
from tests.e2e.week.model import OWNER, PRIVATE, SHARED, Model, Session
from tests.e2e.week.world import (
    AGENTS,
    BEGIN,
    DAY,
    GROUPS,
    KEYS,
    NMEM_GROUP,
    NPUBS,
    Cable,
    Clock,
    Desk,
    Machine,
    Patience,
    Relay,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Collection
    from pathlib import Path

    from relay.nostr.event import Event

DAYS: Final = 7
STEPS: Final = 13
"""Of a day."""
REMOVED: Final = ("bob", 3)
"""A member, and the day on which it is removed."""
REVOKED: Final = ("scout", 4)
CUT: Final = (1, 5)
"""Days on which a machine is cut off for some steps."""
_SHAPES: Final = ("bcdfgklmnprstvz", "aeiou")
_WORD: Final = re.compile(rb"(?:[bcdfgklmnprstvz][aeiou]){5}x")
"""Five times one of each, so that no other text has it by chance; then an x."""


class Week:
    def __init__(self, seed: int, folder: Path, patience: Patience, steps: int = STEPS) -> None:
        self.seed = seed
        self.steps = steps
        self.did: list[str] = []
        self._random = Random(seed)
        self._folder = folder
        self._patience = patience
        self._clock = Clock()
        self._step = 0
        self._used: set[str] = set()
        self._last_said: dict[str, Event] = {}
        self._unsent: set[tuple[str, str]] = set()
        """Agents and what of their memory a machine changed that is cut off."""
        self.model = Model(
            {group: set(names) for group, names in GROUPS.items()}, set(AGENTS), set(KEYS)
        )

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            cables = [await enter(Cable()) for _ in range(2)]
            self._relay = await enter(Relay(self._folder / "relay", self._clock, cables))
            self._machines = [
                Machine(name, self._folder / name, cable)
                for name, cable in zip("AB", cables, strict=True)
            ]
            await self._begin()
            for machine in self._machines:
                for name in KEYS:
                    machine.desks[name] = await enter(Desk(machine, name, self._clock))
                    for group in GROUPS:
                        self.model.rings[machine.name, name, group] = []
            await self._settled()
            for day in range(DAYS):
                await self._day(day)
                await self._compare()

    async def _begin(self) -> None:
        """The owner makes the groups."""
        here = Desk(self._machines[0], OWNER, self._clock)
        async with here:
            for group, names in GROUPS.items():
                await here.client.send(9007, "", [["h", group]])
                await here.client.send(9002, "", [["h", group], ["name", group]])
                self.model.titles[group] = group
                keys = [["p", KEYS[name].pubkey] for name in names if name != OWNER]
                await here.client.send(9000, "", [["h", group], *keys])
            self._clock.now += 60
            for name in KEYS:
                self.model.called[name] = name
                event = KEYS[name].sign(0, [], json.dumps({"name": name}), self._clock.now)
                await here.client.publish(event)

    async def _day(self, day: int) -> None:
        cut_at = self._random.randrange(4, self.steps // 2) if day in CUT else -1
        mended_at = cut_at + 8
        for number in range(self.steps):
            begun = BEGIN + day * DAY + (number + 1) * (DAY // (self.steps + 2))
            self._clock.now = begun + self._random.randrange(600)
            if number == cut_at:
                await self._cut(self._random.choice(self._machines))
            elif number == cut_at + 1 and day in CUT:
                await self._did(self._apart)
            elif day in CUT and number == mended_at:
                await self._mend()
            elif number == self.steps // 2 and day == REMOVED[1]:
                await self._did(self._remove, REMOVED[0])
            elif number == self.steps // 2 and day == REVOKED[1]:
                await self._did(self._revoke, REVOKED[0])
            elif number == self.steps // 2 + 1 and day in (REMOVED[1], REVOKED[1]):
                await self._did(self._forbidden)
            elif number == self.steps - 3 and day in (2, 4):
                await self._did(self._restart)
            else:
                await self._anything()
            await self._settled()
        await self._mend()

    async def _anything(self) -> None:
        weighed: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (14, self._aman),
            (5, self._burst),
            (12, self._claw),
            (8, self._chat),
            (4, self._configure),
            (3, self._rename),
            (14, self._nmem),
            (16, self._anamnesis),
            (12, self._transcripts),
            (3, self._reopen),
            (5, self._forget),
            (2, self._forbidden),
        ]
        (step,) = self._random.choices(
            [step for _, step in weighed], [weight for weight, _ in weighed]
        )
        await self._did(step)

    async def _did(self, step: Callable[..., Awaitable[None]], *args: object) -> None:
        self._step += 1
        self.did.append(f"{self._step} at {self._clock.now - BEGIN}: {step.__name__[1:]}")
        await step(*args)

    def _note(self, *what: object) -> None:
        self.did[-1] += " " + " ".join(map(str, what))

    # -- who, where, what -------------------------------------------------------------------------

    @property
    def _online(self) -> list[Machine]:
        return [machine for machine in self._machines if machine.is_online]

    @property
    def _cut_one(self) -> Machine | None:
        return next((machine for machine in self._machines if not machine.is_online), None)

    def _agent(self) -> str:
        return self._random.choice(sorted(self.model.agents))

    def _desk(self, name: str, *, online: bool = False) -> Desk:
        machine = self._random.choice(self._online if online else self._machines)
        return machine.desks[name]

    def _scope_for(self, name: str, *others: str) -> str:
        member_of = [group for group in GROUPS if name in self.model.members[group]]
        return self._random.choice([*member_of, *others])

    @property
    def _at(self) -> tuple[int, int]:
        return self._clock.now, self._step

    def _word(self) -> str:
        while True:
            word = "".join(self._random.choice(_SHAPES[n % 2]) for n in range(10)) + "x"
            if word not in self._used:
                self._used.add(word)
                return word

    def _text(self, author: str, scope: str) -> str:
        word = self._word()
        self.model.wrote(word, author, scope)
        return f"the {self._word()} of {word} is {self._word()}"

    # -- steps ------------------------------------------------------------------------------------

    async def _aman(self, desk: Desk | None = None, what: str | None = None) -> None:
        if desk is None:
            desk = self._desk(self._agent())
        name, hk = desk.name, self._random.choice(["u-1", "group:u-2"])
        if what is None:
            what = self._random.choices(
                ["tool", "preference", "summary", "topics", "clear"], [6, 2, 2, 1, 2]
            )[0]
        self._note(what, name, desk.machine.name, hk)
        await self._write_aman(desk, hk, what)

    async def _write_aman(self, desk: Desk, hk: str, what: str) -> None:
        memory = self.model.aman[desk.name][hk]
        if what == "clear":
            await desk.aman.clear(hk)
            memory.clears.append(self._at)
            return
        text = self._text(desk.name, PRIVATE)
        match what:
            case "tool":
                await desk.aman.add_tool(hk, "kettle", True, text)  # noqa: FBT003
                memory.tools.append((self._at, text))
            case "preference":
                await desk.aman.set_preference(hk, text)
                if self._at > memory.preferred_at:
                    memory.preference, memory.preferred_at = text, self._at
            case "summary":
                await desk.aman.set_summary(hk, text, 1)
                if memory.summary is None or self._at > memory.summary[0]:
                    memory.summary = self._at, text
            case "topics":
                await desk.aman.set_subscriptions(hk, [text])
                if self._at > memory.subscribed_at:
                    memory.topics, memory.subscribed_at = (text,), self._at

    async def _burst(self) -> None:
        """Rows and clears of one second, by both machines."""
        name, hk = self._agent(), self._random.choice(["u-1", "group:u-2"])
        for _ in range(self._random.randrange(3, 7)):
            self._step += 1
            desk = self._random.choice(self._online).desks[name]
            what = self._random.choices(["tool", "clear", "summary", "preference"], [4, 3, 2, 1])[0]
            self._note(what, name, desk.machine.name, hk)
            await self._write_aman(desk, hk, what)
        self._clock.now += 60

    async def _apart(self) -> None:
        """Both machines write of the same things, and the one knows nothing of the other."""
        name, hk = self._agent(), self._random.choice(["u-1", "group:u-2"])
        machines = self._random.sample(self._machines, 2)
        for what in ("preference", "tool", "summary", "clear", "tool"):
            for machine in machines:
                self._step += 1
                self._clock.now += 60
                self._note(what, name, machine.name, hk)
                await self._write_aman(machine.desks[name], hk, what)
        scope = self._scope_for(name)
        for what in ("user", "group"):
            for machine in machines:
                self._step += 1
                self._clock.now += 60
                await self._claw(machine.desks[name], what, scope)

    async def _claw(
        self, desk: Desk | None = None, what: str | None = None, scope: str | None = None
    ) -> None:
        if desk is None:
            desk = self._desk(self._agent())
        name, claw, model = desk.name, desk.claw, self.model
        if what is None:
            what = self._random.choice(
                ["user", "user", "preference", "group", "purpose", "theme", "decision", "own"]
            )
        self._note(what, name, desk.machine.name)
        if what == "own":
            key = f"{self._random.choice(['tea', 'pot'])}-{desk.machine.name}"
            text = self._text(name, PRIVATE)
            await claw.store(key, text)
            model.own[name][key] = text
            return
        if what in ("user", "preference"):
            scope = person = scope or self._scope_for(name, PRIVATE)
            user = model.users[name][person]
            text = self._text(name, scope)
            self._note(person)
            if desk.machine is self._cut_one:
                self._unsent.add((name, f"user {person}"))
            group = None if scope == PRIVATE else scope
            if what == "user":
                claw.note_user(_npub(person), text, group=group)
                user.notes.add(text)
            else:
                # Of two values that machines set apart from each other one is kept.
                title = f"tea-{desk.machine.name}" if self._cut_one else "tea"
                claw.set_preference(_npub(person), title, text, group=group)
                user.preferences[title] = text
        else:
            group = scope or self._scope_for(name)
            if desk.machine is self._cut_one:
                if what == "purpose":
                    return
                self._unsent.add((name, f"group {group}"))
            self._note(group)
            subject, text = model.groups[name][group], self._text(name, group)
            match what:
                case "group":
                    claw.note_group(group, text)
                    subject.notes.add(text)
                case "purpose":
                    claw.set_purpose(group, text)
                    subject.purpose = text
                case "theme":
                    claw.add_theme(group, text)
                    subject.themes.add(text)
                case "decision":
                    claw.add_decision(group, text)
                    subject.decisions.add(text)
        await claw.flush()

    async def _chat(self) -> None:
        group = self._random.choice(list(GROUPS))
        name = self._random.choice(sorted(self.model.members[group]))
        text = self._text(name, group)
        self._note(name, group)
        client = self._desk(name, online=True).client
        self._last_said[group] = await client.send(9, text, [["h", group]])
        self.model.said[group].append(text)
        for (_, agent, of), ring in self.model.rings.items():
            if of == group and agent in self.model.members[group]:
                ring.append(text)
                if agent in self.model.agents - {name}:
                    _ = self.model.groups[agent][group]  # begins with a message of another
        self.model.trim()

    async def _configure(self) -> None:
        """The length of a ring only while both machines hear of it."""
        scope = self._random.choice(["global", "group:tea", "group:coffee"])
        mode = self._random.choice(["all", "mention", "owner", "none"])
        values: dict[str, Any] = {"respond_mode": mode}
        if self._cut_one is None and self._random.random() < 0.7:
            values["context_history"] = self._random.randrange(3, 9)
        self._note(scope, values)
        await self._desk(OWNER, online=True).claw.set_config(scope, **values)
        self.model.config[scope] |= values
        self.model.trim()

    async def _rename(self) -> None:
        """A person, or a group."""
        new = self._word()
        desk = self._desk(OWNER, online=True)
        if self._random.random() < 0.5:
            group = self._random.choice(list(GROUPS))
            self._note(group, new)
            await desk.client.send(9002, "", [["h", group], ["name", new]])
            self.model.titles[group] = new
        else:
            name = self._random.choice(sorted(set.union(*self.model.members.values())))
            self._note(name, new)
            await self._desk(name, online=True).client.send(0, json.dumps({"name": new}))
            self.model.called[name] = new

    async def _nmem(self) -> None:
        name = self._agent()
        desk = self._desk(name)
        scope = NMEM_GROUP[name] or PRIVATE
        of_agent = [id_ for id_, each in self.model.histories.items() if each.agent == name]
        fresh = not of_agent or self._random.random() < 0.2
        session = f"s-{name}-{len(of_agent)}" if fresh else self._random.choice(of_agent)
        history = self.model.histories.setdefault(session, Session(name, scope))
        what = (
            "start"
            if fresh
            else self._random.choice(["resume", "prompt", "tool", "tool", "pin", "end"])
        )
        self._note(what, session, desk.machine.name)
        if desk.machine.is_online and self._random.random() < 0.7:
            await desk.nmem.sync()
        hook: dict[str, object] = {"session_id": session, "cwd": str(desk.machine.work)}
        match what:
            case "start" | "resume":
                hook |= {"hook_event_name": "SessionStart"}
                hook |= {"source": "startup" if what == "start" else "resume"}
                if what == "resume":
                    history.seen.append(("session_resume", "resume", False))
            case "prompt":
                text = self._text(name, scope)
                hook |= {"hook_event_name": "UserPromptSubmit", "prompt": text}
                history.prompts.append(text)
            case "tool":
                text = self._text(name, scope)
                hook |= {"hook_event_name": "PostToolUse", "tool_name": "Bash"}
                hook |= {"tool_input": {"command": text}, "tool_response": ""}
                history.seen.append(("command", text, False))
            case "pin":
                await self._pin(desk, session)
                return
            case "end":
                if desk.machine.is_online:
                    await desk.nmem.sync()
                    text = self._text(name, scope)
                    await desk.nmem.end_session(session, {"intent": text})
                    history.intent = text
                    await desk.nmem.send()
                return
        with desk.machine.at_home():
            await desk.nmem.hook(hook)
        if desk.machine.is_online:
            await desk.nmem.send()

    async def _pin(self, desk: Desk, session: str) -> None:
        history = self.model.histories[session]
        found = [number for number, each in enumerate(history.seen) if each[0] == "command"]
        if not found or not desk.machine.is_online:
            return
        await desk.nmem.sync()
        number = self._random.choice(found)
        kind, text, pinned = history.seen[number]
        _, _, rows = await desk.nmem.trace(session)
        (row,) = (row for row in rows if row.content == text)
        await (desk.nmem.unpin if pinned else desk.nmem.pin)(row.id)
        await desk.nmem.send()
        history.seen[number] = (kind, text, not pinned)

    async def _anamnesis(self) -> None:
        name = self._random.choice([*sorted(self.model.agents), OWNER])
        model, random = self.model, self._random
        readable = [
            hashed
            for hashed, entry in model.entries.items()
            if model.may_read(name, entry.author, entry.scope)
        ]
        own = [each for each in readable if name in (model.entries[each].author, OWNER)]
        what = random.choice(["remember", "remember", "vouch", "withdraw", "supersede", "amend"])
        if name == OWNER and what == "remember":
            what = "supersede"
        if name != OWNER and (what == "remember" or not own):
            desk, scope = self._desk(name), self._scope_for(name, SHARED)
            text = self._text(name, scope)
            confidence = random.randrange(1, 10) / 10
            tags = random.sample(["tea", "pot", "leaf", "cup"], 2)
            self._note("remember", name, scope, desk.machine.name)
            hashed = await desk.anamnesis.remember(
                text, confidence=confidence, tags=tags, group=None if scope == SHARED else scope
            )
            fields = {"memory_type": "episodic", "confidence": confidence, "tags": tags}
            assert hashed == model.remembered(text, name, scope, **fields)
            return
        if not readable or (what in ("supersede", "amend") and not own):
            return
        desk = self._desk(name, online=True)
        of_some = own if what in ("supersede", "amend") or random.random() < 0.3 else readable
        if name == OWNER and what == "supersede":
            corrected = [
                each for each, entry in model.entries.items() if entry.author in entry.successors
            ]
            of_some = corrected or own
        hashed = random.choice(of_some)
        entry = model.entries[hashed]
        if desk.machine.is_online and self._cut_one is not None and what != "vouch":
            return  # of what the other machine has not sent yet
        if self._cut_one is not None and await desk.anamnesis.get(hashed) is None:
            return
        self._note(what, name, hashed[:8], desk.machine.name)
        match what:
            case "vouch":
                word = random.choice(["confirm", "confirm", "dispute"])
                await desk.anamnesis.vouch(hashed, attestation=word)
                entry.vouches[name] = word
            case "withdraw":
                await desk.anamnesis.withdraw(hashed)
                entry.vouches.pop(name, None)
            case "supersede" if name == OWNER:
                # An owner writes no entries: a later one of the same readers takes its place.
                later = [
                    each
                    for each in list(model.entries)[list(model.entries).index(hashed) + 1 :]
                    if model.entries[each].scope == entry.scope
                ]
                if later:
                    new = random.choice(later)
                    await desk.anamnesis.supersede(hashed, model.entries[new].text)
                    entry.successors[name] = new
            case "supersede":
                text = self._text(name, entry.scope)
                new = await desk.anamnesis.supersede(hashed, text)
                shown = entry.shown()
                kept = {key: shown[key] for key in ("memory_type", "confidence", "tags")}
                assert new == model.remembered(text, name, entry.scope, **kept)
                entry.successors[name] = new
            case "amend":
                amended = random.randrange(1, 10) / 10
                await desk.anamnesis.amend(hashed, confidence=amended)
                if name in (OWNER, entry.author):
                    entry.amended = {"confidence": amended}

    async def _transcripts(self) -> None:
        """A session of a coding agent: begun, or resumed where it may never have been."""
        if self._cut_one is not None:
            return
        name = self._agent()
        desk = self._desk(name)
        own = [id_ for id_, each in self.model.transcripts.items() if each.agent == name]
        fresh = not own or self._random.random() < 0.25
        id_ = f"00000000-{name}-{len(own)}" if fresh else self._random.choice(own)
        scope = self._scope_for(name, PRIVATE)
        session = self.model.transcripts.setdefault(id_, Session(name, scope))
        if session.scope not in (PRIVATE, *self._groups_of(name)):
            return
        self._note(id_, desk.machine.name, "begun" if fresh else "resumed", session.scope)
        place = desk.machine.work
        path = desk.sessions / f"{id_}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not fresh:
            branch = f"on-{desk.machine.name}"
            path.write_bytes(await desk.transcripts.export(id_, place, branch))
        with path.open("ab") as file:
            for _ in range(self._random.randrange(1, 4)):
                session.turns.append(self._text(name, session.scope))
                file.write(self._line(desk, id_, len(session.turns), session.turns[-1]))
        group = None if session.scope == PRIVATE else session.scope
        with desk.machine.at_home():
            await desk.transcripts.import_file(path, group=group)

    def _line(self, desk: Desk, session: str, number: int, text: str) -> bytes:
        role = "user" if number % 2 else "assistant"
        # A path of this machine: elsewhere it is another, and the turn is the same.
        text = f"{text}, see {desk.machine.work}/a.md"
        content = text if role == "user" else [{"type": "text", "text": text}]
        fields = {
            "cwd": str(desk.machine.work),
            "sessionId": session,
            "gitBranch": f"on-{desk.machine.name}",
            "type": role,
            "message": {"role": role, "content": content},
            "uuid": f"u{number}",
            "timestamp": f"2026-02-09T20:{number // 60:02}:{number % 60:02}.000Z",
        }
        return json.dumps(fields, separators=(",", ":")).encode() + b"\n"

    def _groups_of(self, name: str) -> list[str]:
        return [group for group in GROUPS if name in self.model.members[group]]

    async def _forget(self) -> None:
        """What was written is erased by its author."""
        name = self._agent()
        if self._cut_one is not None:
            return
        desk = self._desk(name)
        own = self.model.own[name]
        found = [
            (session, number)
            for session in self.model.histories.values()
            if session.agent == name
            for number, each in enumerate(session.seen)
            if each[0] == "command"
        ]
        if own and self._random.random() < 0.5:
            key = self._random.choice(sorted(own))
            self._note(name, key)
            await desk.claw.forget(f"snowclaw:core:{key}")
            self.model.erased(own.pop(key))
        elif found:
            session, number = self._random.choice(found)
            text = session.seen.pop(number)[1]
            self._note(name, text)
            await desk.nmem.sync()
            (word,) = (each.word for each in self.model.texts if each.word in text)
            removed = await desk.nmem.purge(search=word, confirm=True)
            assert removed.total == 1, (removed, text)
            await desk.nmem.send()
            self.model.erased(text)

    async def _forbidden(self) -> None:
        """Who was removed or revoked tries to write."""
        tries: list[tuple[str, Callable[[Desk], Awaitable[object]]]] = []
        if "bob" not in self.model.members["tea"]:
            tries.append(("bob", lambda desk: desk.client.send(9, "hello", [["h", "tea"]])))
        if "scout" not in self.model.agents:
            tries.append(("scout", lambda desk: desk.aman.set_preference("u-1", "hello")))
            tries.append(("scout", lambda desk: desk.anamnesis.remember("hello again")))
        for name, attempt in tries:
            self._note(name)
            with pytest.raises(PublishRefused, match="restricted: "):
                await attempt(self._desk(name, online=True))

    # -- the world --------------------------------------------------------------------------------

    async def _cut(self, machine: Machine) -> None:
        self.did.append(f"cut {machine.name}")
        machine.cable.cut()

    async def _mend(self) -> None:
        for machine in self._machines:
            if not machine.is_online:
                self.did.append(f"mend {machine.name}")
                machine.cable.mend()
                self._unsent.clear()
                for name in AGENTS:
                    await machine.desks[name].nmem.send()
        await self._settled()

    async def _restart(self) -> None:
        await self._relay.restart()
        for machine in self._online:
            for desk in machine.desks.values():
                # It may not have noticed that its connection is another one.
                await desk.client.count({"kinds": [0]})

    async def _reopen(self) -> None:
        """The programs of one key end and start: a ring is what the relay still tells."""
        desk = self._desk(self._random.choice(sorted(KEYS)), online=True)
        self._note(desk.name, desk.machine.name)
        await desk.restart()
        if desk.is_agent:
            for group in self._groups_of(desk.name):
                keep = self.model.configured(group)[1]
                self.model.rings[desk.machine.name, desk.name, group] = self.model.said[group][
                    -keep:
                ]

    async def _remove(self, name: str) -> None:
        desk = self._desk(OWNER, online=True)
        for group in self._groups_of(name):
            await desk.client.send(9001, "", [["h", group], ["p", KEYS[name].pubkey]])
            self.model.members[group].discard(name)

    async def _revoke(self, name: str) -> None:
        for machine in self._machines:
            machine.desks[name].is_revoked = True
        await self._remove(name)
        await self._relay.revoke(name, self._patience)
        self.model.agents.discard(name)

    async def _settled(self) -> None:
        """Everything sent has arrived where somebody listens."""
        desks = [desk for machine in self._machines for desk in machine.desks.values()]
        for desk in desks:
            await self._patience.until(desk.lag)
        for desk in desks:
            if desk.machine.is_online:
                await self._patience.sent(desk)
        for desk in desks:
            await self._patience.until(partial(self._unheard, desk))

    def _unheard(self, desk: Desk) -> str:
        """How the live memory of an agent differs from the model."""
        if not desk.machine.is_online or desk.name not in self.model.agents:
            return ""
        found, wanted = self._lived(desk), self._living(desk)
        if (cut := self._cut_one) is not None:  # what is written there is not here yet
            for told in (found, wanted):
                told["own"] = {
                    key: text for key, text in told["own"].items() if key[-2:] != f"-{cut.name}"
                }
                for key in [key for key in told if (desk.name, key) in self._unsent]:
                    del told[key]
        return (
            ""
            if found == wanted
            else _difference(f"{desk.name} on {desk.machine.name}", found, wanted)
        )

    def _lived(self, desk: Desk) -> dict[str, Any]:
        claw, name = desk.claw, desk.name
        told: dict[str, Any] = {}
        for person in self.model.users[name]:
            user = claw.user(_npub(person))
            told[f"user {person}"] = (
                None if user is None else (sorted(user.notes), dict(user.preferences))
            )
        for group in self._groups_of(name):
            memory = claw.group(group)
            told[f"ring of {group}"] = [each.content for each in claw.history(group)]
            effective = claw.config(group)
            told[f"config of {group}"] = (effective.respond_mode.value, effective.context_history)
            if group in self._last_said:
                prompt = claw.assemble(self._last_said[group], "", 4_000).text
                told[f"title of {group}"] = f'called "{self.model.titles[group]}"' in prompt
            if memory is not None:
                told[f"group {group}"] = (
                    sorted(memory.notes),
                    memory.purpose,
                    sorted(memory.themes),
                    sorted(text for text, _ in memory.decisions),
                    dict(memory.members),
                )
        told["own"] = {each.key: each.text for each in claw.list("core:")}
        return told

    def _living(self, desk: Desk) -> dict[str, Any]:
        name, model = desk.name, self.model
        told: dict[str, Any] = {
            f"user {person}": (sorted(user.notes), user.preferences)
            for person, user in model.users[name].items()
        }
        for group in self._groups_of(name):
            told[f"ring of {group}"] = model.rings[desk.machine.name, name, group]
            told[f"config of {group}"] = model.configured(group)
            if group in self._last_said:
                told[f"title of {group}"] = True
            if group in model.groups[name]:
                subject = model.groups[name][group]
                told[f"group {group}"] = (
                    sorted(subject.notes),
                    subject.purpose,
                    sorted(subject.themes),
                    sorted(subject.decisions),
                    {NPUBS[who]: model.called[who] for who in model.members[group]},
                )
        told["own"] = model.own[name]
        return told

    # -- the comparison ---------------------------------------------------------------------------

    async def _compare(self) -> None:
        """Every fold on both machines is the model's; no file tells what its key may not know."""
        for name in KEYS:
            folds = []
            desks = [machine.desks[name] for machine in self._machines]
            for machine, desk in zip(self._machines, desks, strict=True):
                await desk.nmem.sync()
                fold = await self._fold(desk)
                wanted = self._wanted(desk)
                assert fold == wanted, _difference(f"{name} on {machine.name}", fold, wanted)
                folds.append(await self._whole(desk))
            one, two = folds
            assert one == two, _difference(f"{name} on both machines", one, two)
            if name in self.model.agents:
                await self._patience.until(partial(_notebooks_differ, name, *desks))
        await self._private()

    async def _fold(self, desk: Desk) -> dict[str, Any]:
        told: dict[str, Any] = {}
        told["anamnesis"] = await self._entries(desk)
        told["transcripts"] = await self._conversations(desk)
        if desk.name in self.model.agents:
            told["nmem"] = self._history(desk)
        if desk.is_agent:
            told["aman"] = {hk: await _shown(desk, hk) for hk in self.model.aman[desk.name]}
            if desk.tables.exists() and self.model.aman[desk.name]:
                wanted = {hk: each.shown() for hk, each in self.model.aman[desk.name].items()}
                await self._patience.until(lambda: _tables_differ(desk, wanted))
        return told

    def _wanted(self, desk: Desk) -> dict[str, Any]:
        name, model = desk.name, self.model
        told: dict[str, Any] = {
            "anamnesis": {
                hashed: entry.shown()
                for hashed, entry in model.entries.items()
                if model.may_read(name, entry.author, entry.scope)
            },
            "transcripts": {
                id_: session.turns
                for id_, session in model.transcripts.items()
                if model.may_read(name, session.agent, session.scope)
            },
        }
        if name in model.agents:
            told["nmem"] = {
                id_: (sorted(each.prompts), sorted(each.seen), each.intent)
                for id_, each in model.histories.items()
                if model.may_read(name, each.agent, each.scope)
            }
        if desk.is_agent:
            told["aman"] = {hk: each.shown() for hk, each in model.aman[name].items()}
        return told

    async def _entries(self, desk: Desk) -> dict[str, Any]:
        found = {}
        names = {key.pubkey: name for name, key in KEYS.items()}
        path = desk.folder / "export.jsonl"
        for group in (None, *GROUPS):
            try:
                await desk.anamnesis.export(path, group=group)
            except QueryClosed as closed:
                if closed.prefix != Prefix.RESTRICTED:
                    raise
                continue  # it may read none at all
            for line in path.read_text().splitlines():
                document = json.loads(line)
                found[document["content_hash"]] = {
                    "content": document["content"],
                    "memory_type": document["memory_type"],
                    "confidence": document["confidence"],
                    "tags": document["tags"],
                    "vouchers": sorted(names[each["id"]] for each in document["vouchers"]),
                    "superseded_by": document.get("superseded_by"),
                }
            path.unlink()
        return found

    async def _conversations(self, desk: Desk) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        try:
            listed = await desk.transcripts.sessions()
        except QueryClosed as closed:
            if closed.prefix != Prefix.RESTRICTED:
                raise
            return found
        for each in listed:
            notes = await desk.transcripts.messages(each.session)
            found[each.session] = [note.content.split(",")[0] for note in notes]
        return found

    def _history(self, desk: Desk) -> dict[str, Any]:
        """By SQL: what other programs find in the file."""
        found: dict[str, Any] = {}
        with closing(sqlite3.connect(desk.folder / "nmem.db")) as file:
            for id_, summary in file.execute("SELECT id, summary FROM sessions").fetchall():
                prompts = file.execute("SELECT content FROM prompts WHERE session_id = ?", (id_,))
                seen = file.execute(
                    "SELECT obs_type, content, is_pinned FROM observations WHERE session_id = ?",
                    (id_,),
                )
                found[id_] = (
                    sorted(content for (content,) in prompts),
                    sorted((kind, content, bool(pinned)) for kind, content, pinned in seen),
                    None if summary is None else json.loads(summary)["intent"],
                )
        return found

    async def _whole(self, desk: Desk) -> dict[str, Any]:
        """More than the model knows: it must be the same on both machines."""
        told: dict[str, Any] = {}
        if desk.is_agent:
            fold = await desk.aman.fold()
            told["aman"] = [fold.snapshot(hk, desk.key.pubkey) for hk in fold.history_keys()]
        with closing(sqlite3.connect(desk.folder / "nmem.db")) as file:
            for query in (
                "SELECT * FROM sessions ORDER BY id",
                "SELECT session_id, timestamp, source, content FROM prompts ORDER BY 1, 2, 3, 4",
                "SELECT o.session_id, o.timestamp, obs_type, o.content, metadata, is_pinned,"
                " p.content FROM observations o LEFT JOIN prompts p ON p.id = o.prompt_id"
                " ORDER BY 1, 2, 3, 4",
            ):
                if desk.name in self.model.agents:
                    told[query] = file.execute(query).fetchall()
        told["sessions"] = {}
        for id_, session in self.model.transcripts.items():
            if desk.name == session.agent and session.scope in (
                PRIVATE,
                *self._groups_of(desk.name),
            ):
                data = await desk.transcripts.export(id_, "/rook", "main")
                assert [_turn(line) for line in data.splitlines()] == session.turns, id_
                told["sessions"][id_] = data
        return told

    async def _private(self) -> None:
        self.model.looked()
        for machine in self._machines:
            for desk in machine.desks.values():
                await self._keeps_only_theirs(desk)

    async def _keeps_only_theirs(self, desk: Desk) -> None:
        model, name, where = self.model, desk.name, f"{desk.name} on {desk.machine.name}"
        forbidden = {text.word for text in model.texts if name not in text.seen_by}
        found = _found(desk, forbidden)
        assert not found, f"{where} must not know {found}"
        heard = {word.decode() for raw in desk.heard for word in _WORD.findall(raw)} & forbidden
        assert not heard, f"{where} was sent {sorted(heard)}"
        desk.heard.clear()
        try:
            await desk.claw.load()
        except QueryClosed as closed:
            if closed.prefix != Prefix.RESTRICTED:
                raise
        erased: set[str] = set()
        lost: set[str] = set()
        for text in model.texts:
            may_read = model.may_read(name, text.author, text.scope)
            if may_read and text.is_erased:
                erased.add(text.word)
            elif not may_read and name != text.author:
                lost.add(text.word)
        # Who was removed is not told what is erased after that either.
        await self._patience.until(partial(_left, desk, erased, "*"))
        await self._patience.until(partial(_left, desk, lost, "*.cache*"))


@cache
def _npub(person: str) -> str:
    return cast.person(person).npub


def _turn(line: bytes) -> str:
    content = json.loads(line)["message"]["content"]
    text = content if isinstance(content, str) else content[0]["text"]
    assert text.endswith(", see /rook/a.md"), text
    return str(text).split(",")[0]


async def _shown(desk: Desk, hk: str) -> dict[str, Any]:
    snapshot = await desk.aman.snapshot(hk)
    preference, summary, topics = snapshot.preference, snapshot.summary, snapshot.subscriptions
    return {
        "preference": None if preference is None else preference.record.preference,
        "topics": () if topics is None else tuple(topics.record.topics),
        "summary": None if summary is None else summary.record.summary,
        "tools": sorted(row.record.content for row in snapshot.tools),
    }


def _tables_differ(desk: Desk, wanted: dict[str, Any]) -> str:
    found: dict[str, Any] = {}
    with closing(sqlite3.connect(desk.tables)) as file:
        preferences = dict(file.execute("SELECT history_key, preference FROM preferences"))
        summaries = dict(file.execute("SELECT history_key, summary FROM conversation_summaries"))
        topics = dict(file.execute("SELECT history_key, topics FROM subscription_state"))
        for hk in wanted:
            tools = file.execute("SELECT content FROM tool_history WHERE history_key = ?", (hk,))
            found[hk] = {
                "preference": preferences.get(hk),
                "topics": tuple(json.loads(topics.get(hk, "[]"))),
                "summary": summaries.get(hk),
                "tools": sorted(content for (content,) in tools),
            }
    where = f"tables of {desk.name} on {desk.machine.name}"
    return "" if found == wanted else _difference(where, found, wanted)


def _found(desk: Desk, words: Collection[str], pattern: str = "*") -> list[str]:
    """Which of the words are in a file, deleted pages and write-ahead log included."""
    wanted = {word.encode() for word in words}
    return [
        f"{word.decode()} in {path.name}"
        for path in desk.files()
        if wanted and path.match(pattern)
        for word in sorted(wanted & _words_in(path, path.stat()))
    ]


_SCANNED: Final[dict[Path, tuple[tuple[int, int], frozenset[bytes]]]] = {}


def _words_in(path: Path, about: os.stat_result) -> frozenset[bytes]:
    """Read again only if the file was changed."""
    version = about.st_mtime_ns, about.st_size
    known = _SCANNED.get(path)
    if known is None or known[0] != version:
        known = _SCANNED[path] = version, frozenset(_WORD.findall(path.read_bytes()))
    return known[1]


def _left(desk: Desk, words: Collection[str], pattern: str) -> str:
    hits = _found(desk, words, pattern)
    return f"{desk.name} on {desk.machine.name} still has {hits}" if hits else ""


def _notebooks_differ(name: str, *desks: Desk) -> str:
    """Of users and groups: each machine follows what the other one writes."""
    one, two = ({"users": desk.claw.users(), "groups": desk.claw.groups()} for desk in desks)
    return _difference(f"{name} on both machines", one, two) if one != two else ""


def _difference(where: str, found: Any, wanted: Any) -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in [*wanted, *found]:
            if found.get(key) != wanted.get(key):
                return _difference(f"{where}, {key}", found.get(key), wanted.get(key))
    return f"{where}:\n  found  {found!r}\n  wanted {wanted!r}"

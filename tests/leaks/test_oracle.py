"""No oracle: what names an event that its author may not see fares the same, whatever that is.

Missing, deleted, private, hidden, of another group, guarded outside of groups: one answer over
EVENT, REQ, COUNT, NIP-77, search and live, to the author and to everybody else.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests import cast
from tests.effort import tries
from tests.harness.relay_program import Rookery, connected
from tests.leaks.people import KEYS
from tests.leaks.relay import Asker, LeakRelay, event_of
from tests.leaks.test_tells import UNKNOWN_ID, event_named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.harness.relay_program import Wire

pytestmark = [pytest.mark.slow, pytest.mark.process]

Tags = list[list[str]]
VIEWERS: Final = ("nobody", "an outsider", "a recipient", "a member elsewhere")
"""Of whom nobody may see a target; "an outsider" is the author."""
PART: Final = tries(1, 1, len(VIEWERS))
"""Of so many viewers one looks for an event, of each kind another."""
SEARCHED: Final = frozenset({9, 1111, 1984})


def namings(id_: str, address: str) -> Iterator[tuple[int, Tags]]:
    """What a stranger may say of an event: outside of groups, and in a group of their own."""
    e, a, h = ["e", id_], ["a", address], ["h", "mine"]
    for kind in (5, 6, 7, 16, 1111, 1984, 9735, 9802, 20007, 40003):
        yield kind, [e]
        yield kind, [["E", id_]]
        yield kind, [a]
    yield 7, [e, a]
    yield 1111, [["A", address], ["E", id_]]
    for kind in (5, 7, 9, 1111, 1984, 9005, 40003):
        yield kind, [h, e]
    yield 9, [h, ["q", id_]]
    yield 9, [h, ["q", address]]
    yield 9, [["q", id_]]
    yield 5, [h, a]
    yield 9010, [h, e]
    yield 9010, [h, a]
    made_from = ["made-from", id_, "1"]
    yield 9002, [h, ["private"], made_from]
    yield 30023, [["d", id_], made_from]


class Crowd:
    """The viewers, each with a connection that asks and one that listens."""

    def __init__(self) -> None:
        self.asking: dict[str, Wire] = {}
        self.listening: dict[str, Wire] = {}
        self.looking: Sequence[str] = VIEWERS
        """Who is asked what became of an event."""

    async def enter(self, relay: LeakRelay) -> None:
        for viewer in VIEWERS:
            self.asking[viewer] = await relay.enter(viewer)
            wire = self.listening[viewer] = await relay.enter(viewer)
            await wire.send("REQ", "live", {"limit": 0})
            assert await wire.receive() == ["EOSE", "live"]

    async def heard(self, viewer: str) -> set[str]:
        """What has come live; delivery is over when the relay answers again."""
        wire, ids = self.listening[viewer], set[str]()
        await wire.send("REQ", "end", {"ids": [UNKNOWN_ID]})
        while (frame := await wire.receive())[1] != "end":
            ids.add(event_of(frame[2]).id)
        return ids

    async def finds(self, viewer: str, event: Event, word: str) -> dict[str, object]:
        """By which ways this viewer finds the event."""
        asker, found = Asker(self.asking[viewer]), dict[str, object]()
        ways = {"ids": f'[{{"ids": ["{event.id}"]}}]', "#t": f'[{{"#t": ["{word}"]}}]'}
        if event.kind in SEARCHED:
            ways["search"] = f'[{{"search": "{word}"}}]'
        for way, text in ways.items():
            for verb in ("REQ", "COUNT") if way == "search" else ("REQ", "COUNT", "NEG-OPEN"):
                await asker.ask(verb, [text])
                frames = asker.answers[verb, text]
                is_given = event.id in asker.given[verb, text]
                # Registers (`hll`) depend on the word that is counted by.
                counted = frames[-1][1].get("count") if verb == "COUNT" else frames[-1][0]
                found[f"{verb} by {way}"] = (is_given, len(frames), counted)
                # What is sent again must not come live into the next answer.
                await self.asking[viewer].send("CLOSE", "0")
        return found


async def fate_of(event: Event, word: str, author: Wire, crowd: Crowd) -> dict[str, object]:
    """Everything that anybody of the crowd learns by it."""
    fate: dict[str, object] = {"OK": await author.publish(event)}
    for viewer in crowd.looking:
        fate[f"{viewer}, live"] = event.id in await crowd.heard(viewer)
        fate[viewer] = await crowd.finds(viewer, event, word)
    fate["sent again"] = await author.publish(event)
    return fate


async def targets_of(relay: LeakRelay) -> dict[str, tuple[str, str]]:
    """What a target may be → its id and address."""
    unknown = (UNKNOWN_ID, f"30023:{KEYS['alice'].pubkey}:never")
    found = {"missing": unknown}
    for group in ("tea", "cave"):
        post, article = (
            event_named(relay, f"{what}, {group}") for what in ("a post", "an article")
        )
        found[group] = (post.id, f"30023:{article.pubkey}:{article.d}")
        bad, old = (
            event_named(relay, f"{what}, {group}") for what in ("a bad post", "an article, older")
        )
        found[f"deleted in {group}"] = (bad.id, f"30023:{old.pubkey}:{group}-gone")
        named = event_named(relay, f"a comment without h, {group}")
        found[f"derived in {group}"] = (named.id, unknown[1])
    report, invite = event_named(relay, "a report, square"), event_named(relay, "an invite, square")
    own = event_named(relay, "own app data")
    found["a report in public"] = (report.id, unknown[1])
    found["an invite in public"] = (invite.id, unknown[1])
    found["guarded outside"] = (own.id, unknown[1])
    ended = event_named(relay, "the end, pit")
    found["the end of a hidden group"] = (ended.id, unknown[1])
    return found


@pytest.mark.proves("N29-107", "N29-25", "N29-50", "N29-93", "N01-96")
async def test_a_target_that_one_may_not_see_is_as_one_that_never_was(relay: LeakRelay) -> None:
    await relay.say("stranger", 9007, ["h", "mine"])
    author = await relay.enter("an outsider")
    crowd, targets = Crowd(), await targets_of(relay)
    await crowd.enter(relay)
    faults, number = [], 0
    for index in range(len(list(namings("", "")))):
        fates: dict[str, dict[str, object]] = {}
        crowd.looking = VIEWERS[index % PART :: PART]
        for name, (id_, address) in targets.items():
            number += 1
            kind, tags = list(namings(id_, address))[index]
            word = f"o{number}x"
            event = relay.sign("stranger", kind, [*tags, ["t", word]], f"psst {word}")
            fates[name] = await fate_of(event, word, author, crowd)
        faults += [
            f"kind {kind} with {[tag[0] for tag in tags]}, {name}, {what}: {value}"
            for name, fate in fates.items()
            for what, value in fate.items()
            if value != fates["missing"][what]
        ]
    print(f"the existence oracle: {number} events")
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:40])


@pytest.mark.proves("N29-107")
async def test_a_target_that_comes_later_changes_nothing(relay: LeakRelay) -> None:
    """Who reacts to an id before it is here learns nothing when it comes, nor afterwards."""
    wire = await relay.enter("an outsider")
    post = relay.sign("mia", 9, [["h", "tea"]], "later")
    answers = []
    for target in (post.id, UNKNOWN_ID):
        reaction = relay.sign("stranger", 7, [["e", target]], "+")
        answers.append([await wire.publish(reaction)])
        if target == post.id:
            assert await relay.publisher.publish(post) == (True, "")
        answers[-1].append(await wire.publish(reaction))
        found = await wire.query({"ids": [reaction.id]})
        answers[-1].append((len(found) == 1, ""))
    assert answers[0] == answers[1]


# -- what others signed, sent again ----------------------------------------------------------------

GUARDED: Final[dict[str, tuple[str, ...]]] = {
    "den": ("private", "restricted", "closed"),
    "crypt": ("private", "hidden", "restricted", "closed"),
    "vault": ("hidden",),
}
OPEN: Final = "plaza"
SENDERS: Final[dict[str, tuple[str, ...]]] = {
    "nobody": (),
    "an outsider": ("stranger",),
    "a removed member": ("bob",),
    "a member elsewhere": ("carol",),
    "an outsider and a removed member": ("stranger", "bob"),
}
"""Who may read none of the guarded rows → keys that log in."""
STORED: Final = (True, "")
DUPLICATE: Final = (True, "duplicate: already have this event")
DELETED: Final = (False, "blocked: deleted")
BANNED: Final = (False, "blocked: this event is banned here")
SUPERSEDED: Final = (False, "duplicate: a newer version is stored")
READER: Final = {
    "stored": DUPLICATE,
    "deleted by its author": DELETED,
    "deleted by an admin": DELETED,
    "banned": BANNED,
    "superseded": SUPERSEDED,
    "deleted by address": DELETED,
    "never seen": STORED,
}
"""State of an event → what who may read it hears when it is sent again."""


class Resending:
    """A relay with a public and three guarded groups; `mia` writes, `bob` was taken out of all."""

    def __init__(self, relay: LeakRelay, *, is_open: bool) -> None:
        self.relay = relay
        self._is_open = is_open
        self._number = 0

    async def found(self) -> None:
        say = self.relay.say
        flags = {**GUARDED, **({OPEN: ()} if self._is_open else {}), "other": ("private",)}
        for group, words in flags.items():
            await say("owner", 9007, ["h", group])
            await say("owner", 9002, ["h", group], *([word] for word in words))
            for name in ("carol",) if group == "other" else ("mia", "bob"):
                await say("owner", 9000, ["h", group], ["p", KEYS[name].pubkey])
        for group in flags:
            if group != "other":
                await say("owner", 9001, ["h", group], ["p", KEYS["bob"].pubkey])

    def _post(self, tags: Tags, kind: int) -> Event:
        self._number += 1
        by = "robot" if kind == 30078 else "mia"
        return self.relay.sign(by, kind, [*tags, ["nonce", f"{self._number}"]], "psst")

    async def events_of(self, tags: Tags, kind: int = 9, record: int = 30023) -> dict[str, Event]:
        """State → an event in it, all of one place and of one author."""
        relay, author = self.relay, "robot" if record == 30078 else "mia"
        prefix = "snowclaw:core:" if record == 30078 else ""

        def version(d: str, ago: int) -> Event:
            key = KEYS[author]
            at = int(time.time()) - ago
            tagged = [*tags, ["d", f"{prefix}{d}"], ["nonce", f"{self._number}"]]
            return key.sign(record, tagged, "psst", at)

        self._number += 1
        number = self._number
        events = {
            "stored": self._post(tags, kind),
            "deleted by its author": self._post(tags, kind),
            "deleted by an admin": self._post(tags, kind),
            "banned": self._post(tags, kind),
            "superseded": version(f"r{number}", 30),
            "deleted by address": version(f"x{number}", 30),
        }
        if not tags:
            del events["deleted by an admin"]
        newer = version(f"r{number}", 20)
        for event in (*events.values(), newer):
            assert await relay.publisher.publish(event) == STORED, event
        gone = events["deleted by its author"]
        by = next(name for name in ("mia", "robot") if KEYS[name].pubkey == gone.pubkey)
        await relay.say(by, 5, ["e", gone.id])
        address = f"{record}:{KEYS[author].pubkey}:{prefix}x{number}"
        await relay.say(author, 5, ["a", address])
        if tags:
            gone = events["deleted by an admin"]
            await relay.say("owner", 9005, *tags, ["e", gone.id])
        await relay.call("banevent", events["banned"].id)
        return {**events, "never seen": self._post(tags, kind)}


@contextlib.asynccontextmanager
async def resending(folder: Path, preset: str, policy: str = "") -> AsyncIterator[Resending]:
    async with Rookery(folder) as rookery, contextlib.AsyncExitStack() as stack:
        people = ("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        await rookery.init(*people, "--preset", preset)
        (folder / "policies" / "50-own.toml").write_text(policy)
        await rookery.start()
        relay = LeakRelay(rookery, stack)
        relay.publisher = await stack.enter_async_context(connected(rookery.url))
        for name in ("owner", "mia", "robot", "bob"):
            await relay.log_in_as(relay.publisher, name)
        sent = Resending(relay, is_open=preset == "open")
        await sent.found()
        yield sent
        await stack.aclose()
        assert await rookery.stop() == 0


async def heard(sent: Resending, keys: tuple[str, ...], events: dict[str, Event]) -> dict[str, Any]:
    """State → the answer to the event on a connection with these keys, sent twice."""
    relay = sent.relay
    async with connected(relay.rookery.url) as wire:
        for name in keys:
            await relay.log_in_as(wire, name)
        return {
            state: (await wire.publish(event), await wire.publish(event))
            for state, event in events.items()
        }


@pytest.mark.proves("N01-96")
@pytest.mark.parametrize("preset", ["open", "group"])
async def test_what_others_signed_is_answered_alike_whatever_became_of_it(
    tmp_path: Path, preset: str
) -> None:
    faults, number = [], 0
    async with resending(tmp_path / "data", preset) as sent:
        places: dict[str, tuple[Tags, int, int]] = {
            group: ([["h", group]], 9, 30023) for group in GUARDED
        }
        for place, (tags, kind, record) in places.items():
            for sender, keys in SENDERS.items():
                # Each sender has events of their own: one that was never seen is stored by it.
                answers = await heard(sent, keys, await sent.events_of(tags, kind, record))
                number += len(answers)
                faults += [
                    f"{place}, {sender}, {state}: {answer}"
                    for state, answer in answers.items()
                    if answer != (STORED, STORED)
                ]
    print(f"sent again: {number} events")
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults)


@pytest.mark.proves("N01-95", "N01-48", "N09-10")
@pytest.mark.parametrize("preset", ["open", "group"])
async def test_who_may_read_it_hears_what_became_of_it(tmp_path: Path, preset: str) -> None:
    """The author, another member, an owner; of a public group everybody."""
    readers: dict[str, list[tuple[str, ...]]] = {
        group: [("mia",), ("owner",), ("stranger", "mia")] for group in GUARDED
    }
    if preset == "open":
        readers[OPEN] = [(), ("stranger",), ("bob",), ("mia",)]
    async with resending(tmp_path / "data", preset) as sent:
        for group, logins in readers.items():
            for keys in logins:
                answers = await heard(sent, keys, await sent.events_of([["h", group]]))
                first = {state: answer for state, (answer, _) in answers.items()}
                assert first == READER, (group, keys)
                assert answers["never seen"][1] == DUPLICATE


@pytest.mark.proves("N01-96")
async def test_where_groups_want_a_login_nothing_is_said_without_it(tmp_path: Path) -> None:
    """`[auth] writes`: one refusal, for what was never seen and for a group that never was too."""
    policy = '[auth]\nwrites = "groups"\n'
    async with resending(tmp_path / "data", "group", policy) as sent:
        for sender, keys in SENDERS.items():
            said = set()
            for group in GUARDED:
                events = await sent.events_of([["h", group]])
                answers = await heard(sent, keys, events)
                said |= {answer for both in answers.values() for answer in both}
                never = {"never": sent.relay.sign("mia", 9, [["h", "nowhere"]], "x")}
                said |= set((await heard(sent, keys, never))["never"])
            assert len(said) == 1, (sender, said)
            ((accepted, text),) = said
            assert not accepted
            assert text.startswith("restricted: " if keys else "auth-required: ")

"""Two machines of one agent, one of them offline: what both wrote of a user or group is kept."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, Snowclaw
from relay.client import writer as writer_room
from relay.client.errors import PublishRefused, Unanswered
from relay.client.snowclaw_records import SnowclawRecords
from relay.client.writer import Outcome
from relay.memory.draft import Draft
from relay.memory.snowclaw.encryption import is_encrypted
from relay.memory.snowclaw.keys import KeyStyle
from relay.nostr import kinds
from relay.nostr.event import event_from, made_from
from tests.cast import alice, bob, owner, robot
from tests.harness.erasure import left_of
from tests.harness.fake_relay import refusing
from tests.harness.patience import ANSWER_S
from tests.unit.client.conftest import TIMEOUTS
from tests.unit.client.test_debounce import Clock
from tests.unit.client.test_snowclaw import until
from tests.unit.client.test_writer import OLDER, latest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.client.connection import Reply
    from relay.nostr.event import Event
    from tests.harness.fake_relay import FakeRelay, Visitor

NOW = 1_700_000_000
ALICE = f"snowclaw:memory:npub:{alice.pubkey[:32]}"
TEA = "snowclaw:memory:group:tea"
PRIVATE = f"snowclaw:private:npub:{alice.pubkey[:32]}"


class Machine:
    """A folder of the agent's, with a clock of its own. `async with machine() as claw`."""

    def __init__(self, fake: FakeRelay, folder: Path) -> None:
        self.fake = fake
        self.folder = folder
        self.now = NOW
        self.key_style = KeyStyle.HEX

    async def __aenter__(self) -> Snowclaw:
        self._stack = AsyncExitStack()
        client = Client(
            self.fake.url, robot, timeouts=TIMEOUTS, now=lambda: self.now, start_offline=True
        )
        await self._stack.enter_async_context(client)
        claw = Snowclaw(
            client,
            robot,
            owner.npub,
            folder=self.folder,
            later=Clock().later,
            key_style=self.key_style,
        )
        return await self._stack.enter_async_context(claw)

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def note(self, text: str, at: int, **more: Any) -> None:
        """In a run of its own."""
        self.now = at
        async with self as claw:
            await claw._client.wait_connected()
            claw.note_user(alice.npub, text, **more)
            await claw.flush()


@pytest.fixture
def machines(
    fake: FakeRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Machine, Machine]:
    monkeypatch.setattr(writer_room, "_PAUSE_S", 0.01)
    latest(fake)
    return Machine(fake, tmp_path / "one"), Machine(fake, tmp_path / "other")


def fields(fake: FakeRelay, d: str = ALICE) -> dict[str, Any]:
    (event,) = (event for event in fake.events if event.d == d)
    found: dict[str, Any] = json.loads(event.content)
    return found


def record(d: str, content: dict[str, Any], at: int = NOW + 1, *tags: list[str]) -> Event:
    return robot.sign(30078, [["d", d], *tags], json.dumps(content), at)


async def sent(claw: Snowclaw) -> None:
    """Until nothing waits any more."""
    async with asyncio.timeout(ANSWER_S):
        while await claw.waiting():  # noqa: ASYNC110  nothing rings when it is so
            await asyncio.sleep(0)


@pytest.mark.proves("S-31")
@pytest.mark.parametrize("at", [NOW + 1, NOW + 2, NOW + 3], ids=["before", "with", "after"])
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "started again"])
async def test_what_was_noted_offline_is_kept_beside_what_the_other_machine_stored(
    fake: FakeRelay,
    machines: tuple[Machine, Machine],
    at: int,
    restarts: bool,  # noqa: FBT001
) -> None:
    one, other = machines
    await one.note("of both", NOW)
    async with one as claw:
        await claw._client.wait_connected()
        await claw.load()
        await fake.stop()
        await until(lambda: not claw.is_online)
        one.now = at
        claw.note_user(alice.npub, "offline")
        claw.set_preference(alice.npub, "tea", "green")
        (written,) = await claw.flush()
        assert written.outcome is Outcome.QUEUED
        claw.set_preference(alice.npub, "cup", "blue")
        claw.add_theme("tea", "leaves")
        await claw.flush()
        assert await claw.waiting() == 2  # one version of each record
        if not restarts:
            noted = {"notes": [*fields(fake)["notes"], "online"]}
            fake.events[:] = [record(ALICE, noted, NOW + 2)]
            await fake.start()
            one.now = NOW + 9
            await sent(claw)
    if restarts:
        await fake.start()
        await other.note("online", NOW + 2)
        async with one as claw:
            await sent(claw)
    assert sorted(fields(fake)["notes"]) == ["of both", "offline", "online"]
    assert fields(fake)["preferences"] == {"tea": "green", "cup": "blue"}
    assert fields(fake, TEA)["themes"] == ["leaves"]


@asynccontextmanager
async def apart(machine: Machine) -> AsyncIterator[Snowclaw]:
    """It read everything, and the relay went away."""
    async with machine as claw:
        await claw._client.wait_connected()
        await claw.load()
        await machine.fake.stop()
        await until(lambda: not claw.is_online)
        yield claw


@pytest.mark.proves("S-31")
async def test_of_two_values_of_a_preference_the_later_one_is_kept(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, other = machines
    async with apart(one) as claw:
        claw.set_preference(alice.npub, "tea", "green")
        claw.note_user(alice.npub, "offline")
    await fake.start()
    other.now = NOW + 5
    async with other as claw:
        await claw._client.wait_connected()
        claw.set_preference(alice.npub, "tea", "black")
    async with one as claw:
        await sent(claw)
    assert (fields(fake)["notes"], fields(fake)["preferences"]) == (["offline"], {"tea": "black"})


async def test_two_machines_that_were_offline_do_not_write_for_ever(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, other = machines
    await one.note("of both", NOW)
    async with apart(one) as claw:
        claw.note_user(alice.npub, "of one")
    async with other as claw:
        claw.note_user(alice.npub, "of the other")
    await fake.start()
    async with one as claw:
        await sent(claw)
        async with other as claw_of_other:
            await sent(claw_of_other)
            await sent(claw)
    assert fields(fake)["notes"] == ["of both", "of one", "of the other"]
    assert len([frame for frame in fake.verbs("EVENT") if frame[1]["tags"][0] == ["d", ALICE]]) == 3


@pytest.mark.proves("S-31")
@pytest.mark.parametrize("number", [1, 8])
@pytest.mark.parametrize("at", [NOW + 1, NOW + 60], ids=["before", "after"])
@pytest.mark.parametrize("before", [[], ["of both"]], ids=["the first version", "a later one"])
async def test_a_version_stored_in_between_is_no_loss_either(
    fake: FakeRelay, machines: tuple[Machine, Machine], at: int, number: int, before: list[str]
) -> None:
    """Whichever of the two is dated later. Each note offline is a version made from the last one,
    which the relay has never seen."""
    one, _ = machines
    for text in before:
        await one.note(text, NOW)
    take = fake.on["EVENT"]

    async def store_another_first(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = take
        fake.events[:] = [record(ALICE, {"notes": [*before, "theirs"]}, at)]
        await take(visitor, frame)

    one.now = NOW + 5
    notes = [f"offline {count}" for count in range(number)]
    async with apart(one) as claw:
        for text in notes:
            claw.note_user(alice.npub, text)
            await claw.flush()
        assert await claw.waiting() == 1
        fake.on["EVENT"] = store_another_first
        await fake.start()
        await sent(claw)
        assert await claw.refused() == []
        claw.note_user(alice.npub, "online")
        (written,) = await claw.flush()
        assert written.outcome is Outcome.STORED
    assert fields(fake)["notes"] == [*before, "theirs", *notes, "online"]


async def test_what_is_sent_names_the_version_that_the_relay_has(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    """And the next one names what was sent."""
    one, _ = machines
    await one.note("of both", NOW)
    (base,) = fake.events
    async with apart(one) as claw:
        for number in range(3):
            claw.note_user(alice.npub, f"offline {number}")
            await claw.flush()
        await fake.start()
        await sent(claw)
        (event,) = fake.events
        since = ["noted-since", str(NOW)]
        assert event.tags[1:] == [since, made_from(base)]
        claw.note_user(alice.npub, "online")
        (written,) = await claw.flush()
    assert written.event.tags[1:] == [since, made_from(event)]


@pytest.mark.parametrize("d", [ALICE, TEA])
@pytest.mark.parametrize("spools", [True, False])
async def test_what_two_programs_note_at_once_is_kept(
    fake: FakeRelay,
    machines: tuple[Machine, Machine],
    d: str,
    spools: bool,  # noqa: FBT001
) -> None:
    """The version of the other one is stored between the look and the answer, and dated before."""
    one, _ = machines
    one.now = NOW + 5
    take = fake.on["EVENT"]
    fake.events[:] = [record(d, {"notes": ["of both"]}, NOW)]

    async def store_another_first(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = take
        fake.events[:] = [record(d, {"notes": ["of both", "theirs"]}, NOW + 1)]
        await take(visitor, frame)

    async with one as claw, SnowclawRecords(claw._client, robot, owner.npub) as other:
        await claw._client.wait_connected()
        used = claw if spools else other
        await used.load()
        fake.on["EVENT"] = store_another_first
        if d == ALICE:
            used.note_user(alice.npub, "mine")
        else:
            used.note_group("tea", "mine")
        (written,) = await used.flush()
        assert (written.outcome, written.event.created_at) == (Outcome.STORED, NOW + 5)
        assert used.unsaved == 0
    assert fields(fake, d)["notes"] == ["of both", "theirs", "mine"]


async def test_what_two_set_of_a_configuration_at_once_is_kept(fake: FakeRelay) -> None:
    latest(fake)
    take = fake.on["EVENT"]

    async def store_another_first(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = take
        mode = ["respond_mode", "none"]
        fake.events[:] = [
            owner.sign(30078, [["d", "snowclaw:config:global"], mode], "", NOW - 5),
        ]
        await take(visitor, frame)

    fake.on["EVENT"] = store_another_first
    client = Client(fake.url, owner, timeouts=TIMEOUTS, now=lambda: NOW)
    async with client, SnowclawRecords(client, owner, owner.npub) as claw:
        written = await claw.set_config("global", context_history=7)
        assert claw.config().respond_mode == "none"
    assert written.event.tag("respond_mode") == "none"
    assert written.event.tag("context_history") == "7"


async def test_what_another_machine_overwrites_at_the_same_moment_is_written_again(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    """It looked before this version was stored."""
    one, _ = machines
    take = fake.on["EVENT"]

    async def overwrite(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = take
        fake.events[:] = [record(ALICE, {"notes": ["theirs"]}, NOW + 60)]
        await visitor.say_ok(frame[1]["id"])

    async with apart(one) as claw:
        claw.note_user(alice.npub, "offline")
        await claw.flush()
        fake.on["EVENT"] = overwrite
        await fake.start()
        await sent(claw)
    assert fields(fake)["notes"] == ["theirs", "offline"]


async def test_however_often_another_machine_is_faster_the_edits_arrive(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    """Notes that were acknowledged as queued were refused after four races."""
    one, _ = machines
    take, races = fake.on["EVENT"], 0

    async def older(visitor: Visitor, frame: list[Any]) -> None:
        nonlocal races
        races += 1
        fake.events[:] = [record(ALICE, {"notes": [f"theirs {races}"]}, NOW + 60 + races)]
        if races == 12:
            fake.on["EVENT"] = take
        await visitor.say_no(frame[1]["id"], OLDER)

    async with apart(one) as claw:
        claw.note_user(alice.npub, "offline")
        await claw.flush()
        fake.on["EVENT"] = older
        await fake.start()
        await sent(claw)
        assert await claw.refused() == []
    assert fields(fake)["notes"] == ["theirs 12", "offline"]


@pytest.mark.parametrize("ahead", [30, 300])
async def test_the_clock_of_the_other_machine_may_be_ahead(
    fake: FakeRelay, machines: tuple[Machine, Machine], ahead: int
) -> None:
    """What was noted offline within that time was refused as older than what it was made of."""
    one, _ = machines
    async with one as claw:
        await claw._client.wait_connected()
        await claw.start()
        await fake.publish(record(ALICE, {"notes": ["theirs"]}, NOW + ahead))
        await until(lambda: claw.user(alice.npub) is not None)
        await fake.stop()
        await until(lambda: not claw.is_online)
        claw.note_user(alice.npub, "offline")
        await claw.flush()
        await fake.start()
        await sent(claw)
        assert await claw.refused() == []
    assert fields(fake)["notes"] == ["theirs", "offline"]


@pytest.mark.parametrize("before", [[], ["of both"]], ids=["the first version", "a later one"])
async def test_more_versions_than_seconds_are_not_refused_as_of_the_future(
    fake: FakeRelay, machines: tuple[Machine, Machine], before: list[str]
) -> None:
    """1,300 notes made offline within 5 s were one version, 1,289 s ahead, refused for good."""
    one, _ = machines
    take = fake.on["EVENT"]

    async def refuse_ahead(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["created_at"] > one.now + 90:
            await visitor.say_no(frame[1]["id"], "invalid: created_at: in the future")
        else:
            await take(visitor, frame)

    fake.on["EVENT"] = refuse_ahead
    notes = [f"offline {number}" for number in range(100)]
    for text in before:
        await one.note(text, NOW)
    async with apart(one) as claw:
        for text in notes:
            claw.note_user(alice.npub, text)
            await claw.flush()
        claw.set_preference(alice.npub, "tea", "green")
        await claw.flush()
        await fake.start()
        await sent(claw)
        assert await claw.refused() == []
        assert fields(fake)["notes"] == [*before, *notes]
        claw.note_user(alice.npub, "online")
        (written,) = await claw.flush()
        assert written.outcome is Outcome.STORED
        assert written.event.created_at <= one.now + 3
    assert fields(fake)["notes"] == [*before, *notes, "online"]
    assert fields(fake)["preferences"] == {"tea": "green"}


async def test_a_relay_that_never_takes_the_version_is_not_asked_for_ever(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, _ = machines
    async with apart(one) as claw:
        claw.note_user(alice.npub, "offline")
        await claw.flush()
        fake.on["EVENT"] = refusing(OLDER)
        await fake.start()
        await sent(claw)
        (refused,) = await claw.refused()
    assert (refused.event.d, refused.reason) == (ALICE, OLDER)
    assert len([frame for frame in fake.verbs("EVENT") if frame[1]["tags"][0] == ["d", ALICE]]) == 4


async def test_a_version_whose_ok_was_lost_adds_nothing_twice(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, _ = machines
    take = fake.on["EVENT"]

    async def store_and_go(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = take
        await fake.publish(event_from(frame[1]))
        visitor.drop_connection()

    async with apart(one) as claw:
        claw.note_user(alice.npub, "offline")
        await claw.flush()
        fake.on["EVENT"] = store_and_go
        await fake.start()
        await sent(claw)
    assert fields(fake)["notes"] == ["offline"]


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("by", ["id", "address", "both", "what is not served"])
async def test_what_was_forgotten_on_the_other_machine_does_not_come_back(
    fake: FakeRelay, machines: tuple[Machine, Machine], by: str, number: int
) -> None:
    """A request to vanish, an admin's 9005 in a hidden group: nothing shows that it is deleted."""
    one, other = machines
    notes = [f"offline {count}" for count in range(number)]
    await one.note("secret", NOW)
    async with apart(one) as claw:
        one.now = NOW + 5
        for text in notes:
            claw.note_user(alice.npub, text)
            await claw.flush()
    await fake.start()
    await forget_on(other, "id" if by == "what is not served" else by)
    if by == "what is not served":
        fake.events[:] = [event for event in fake.events if event.kind != kinds.DELETION]
    async with one as claw:
        await sent(claw)
        assert await claw.refused() == []
        assert "secret" not in str(claw.user(alice.npub))
    assert fields(fake)["notes"] == notes


@pytest.mark.proves("S-31")
@pytest.mark.parametrize("is_live", [True, False], ids=["live", "asked for"])
@pytest.mark.parametrize("has_base", [True, False])
async def test_a_forget_of_a_clock_that_is_ahead_loses_no_note(
    fake: FakeRelay, machines: tuple[Machine, Machine], *, has_base: bool, is_live: bool
) -> None:
    """Of that machine's date nobody can tell whether it forgot before or after the note, which no
    relay has seen. What it forgot does not come back."""
    one, other = machines
    if has_base:
        await one.note("secret", NOW)
    async with apart(one) as claw:
        one.now = NOW + 5
        claw.note_user(alice.npub, "offline")
    await fake.start()
    if not has_base:
        await other.note("secret", NOW)
    other.now = NOW + 600
    await forget_on(other)
    (deletion,) = (event for event in fake.events if event.kind == kinds.DELETION)
    for _ in range(2):  # the second asks what was deleted of what the first has read
        async with one as claw:
            if is_live:
                await claw._drop_deleted(deletion)
            await claw._client.wait_connected()
            await sent(claw)
            await claw.load()
            shown = claw.user(alice.npub)
            assert shown is not None
            assert shown.notes == ("offline",)
            assert await claw.refused() == []
    assert fields(fake)["notes"] == ["offline"]


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("notes", [1, 2])
async def test_what_is_forgotten_offline_does_not_stay_in_what_the_other_machine_noted_since(
    fake: FakeRelay, machines: tuple[Machine, Machine], notes: int
) -> None:
    """Its version is younger than the deletion, and holds the forgotten text."""
    one, other = machines
    await one.note("secret", NOW)
    await other.note("of the other", NOW + 1)
    async with apart(one) as claw:
        one.now = NOW + 2
        await claw.forget(ALICE)
    await fake.start()
    for count in range(notes):
        await other.note(f"since {count}", NOW + 3 + count)
    assert fields(fake)["notes"][0] == "secret"
    async with one as claw:
        one.now = NOW + 9
        await sent(claw)
        assert claw.user(alice.npub) is None
    assert [event for event in fake.events if event.d == ALICE] == []
    async with Client(fake.url, bob, timeouts=TIMEOUTS) as stranger:  # has kept them all
        for frame in fake.verbs("EVENT"):
            if frame[1]["tags"][0] == ["d", ALICE]:
                with pytest.raises(PublishRefused, match="deleted"):
                    await stranger.publish(event_from(frame[1]))
    await other.note("afterwards", NOW + 10)
    assert fields(fake)["notes"] == ["afterwards"]


@pytest.mark.proves("S-25")
async def test_what_is_forgotten_under_two_forms_of_the_key_at_once_does_not_stay_either(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    """Each of the two deletions was taken for a later one than the other."""
    one, _ = machines
    full = f"snowclaw:memory:npub:{alice.pubkey}"
    await one.note("secret", NOW)
    fake.events.append(record(full, {"notes": ["secret"]}, NOW - 9))
    async with apart(one) as claw:
        one.now = NOW + 2
        for d in (ALICE, full):
            await claw.forget(d)
        stored = [event for event in fake.events if event.d == ALICE]
        since = record(ALICE, {"notes": ["secret", "since"]}, NOW + 5, made_from(*stored))
        fake.events.append(since)
        fake.events.remove(*stored)
        one.now = NOW + 9
        await fake.start()
        await sent(claw)
    assert [event for event in fake.events if event.kind != kinds.DELETION] == []


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("is_queued", [True, False], ids=["queued", "at once"])
async def test_what_is_forgotten_does_not_stay_under_another_form_of_the_key(
    fake: FakeRelay, machines: tuple[Machine, Machine], *, is_queued: bool
) -> None:
    """It was made of the version under the first form."""
    one, other = machines
    other.key_style = KeyStyle.NPUB
    await one.note("secret", NOW)
    async with apart(one) as claw:
        one.now = NOW + 2
        await claw.forget(ALICE)
    if is_queued:
        await fake.start()
        async with apart(other) as claw:
            other.now = NOW + 5
            claw.note_user(alice.npub, "since")
            await claw.flush()
    await fake.start()
    if is_queued:
        async with other as claw:
            await sent(claw)
    else:
        await other.note("since", NOW + 5)
    assert "secret" in str(fake.events)
    one.now = NOW + 9
    async with one as claw:
        await sent(claw)
    assert "secret" not in str([event for event in fake.events if event.kind != kinds.DELETION])


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("is_queued", [True, False], ids=["queued", "unsaved"])
async def test_what_was_noted_after_a_forget_that_came_late_is_kept(
    fake: FakeRelay, machines: tuple[Machine, Machine], *, is_queued: bool
) -> None:
    """What was stored meanwhile is deleted by a younger deletion, which is for nothing else."""
    one, other = machines
    await one.note("secret", NOW)
    async with apart(one) as claw:
        one.now = NOW + 4
        await claw.forget(ALICE)
    await fake.start()
    one.now = NOW + 9
    await other.note("stored", NOW + 5)
    async with other as claw:
        await claw._client.wait_connected()
        await claw.start()
        if is_queued:
            await fake.stop()
            await until(lambda: not claw.is_online)
        for at, text in ((NOW + 3, "before"), (NOW + 5, "after")):
            other.now = at
            claw.note_user(alice.npub, text)
            if is_queued:
                await claw.flush()
        if not is_queued:
            async with one as claw_of_one:
                await sent(claw_of_one)
            await until(lambda: claw._working_copy.own(ALICE) is None)
    if is_queued:
        await fake.start()
        async with one as claw:
            await sent(claw)
        async with other as claw:
            await sent(claw)
            assert await claw.refused() == []
    assert fields(fake)["notes"] == ["after"]


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("about", ["user", "encrypted", "seen", "group", "private notes"])
async def test_what_was_noted_since_a_forget_whose_answer_was_lost_is_kept(
    fake: FakeRelay, machines: tuple[Machine, Machine], about: str
) -> None:
    """It is sent again days later. Each version but the first is made from a version, and younger
    than the deletion."""
    one, other = machines
    d = {"group": TEA, "private notes": PRIVATE}.get(about, ALICE)
    if about == "private notes":
        fake.events.append(record(ALICE, {"notes": []}, NOW - 1, ["h", "tea"]))

    async def note(machine: Machine, text: str, at: int) -> None:
        machine.now = at
        async with machine as claw:
            await claw._client.wait_connected()
            await claw.load()
            if about == "group":
                claw.note_group("tea", text)
            elif about == "private notes":
                await claw.annotate_privately(alice.npub, text)
            else:
                claw.note_user(alice.npub, text)
            if about == "encrypted":
                claw.encrypt_user(alice.npub)
            if about == "seen":  # of before the deletion, from the history
                claw.see(alice.sign(9, [["h", "tea"]], "hello", NOW - 9))

    await note(one, "secret", NOW)
    async with apart(one) as claw:
        one.now = NOW + 2
        forgotten = await claw.forget(d)
        assert forgotten is not None
    await fake.start()
    await take_unanswered(fake, forgotten.event)
    for count in range(3):
        await note(other, f"since {count}", NOW + 3 + count)
    one.now = NOW + 99
    async with one as claw:
        await sent(claw)
        await claw.load()
        if about == "private notes":
            found = claw._working_copy.private_notes(claw._working_copy.subject_of(alice.npub))
        else:
            shown = claw.group("tea") if about == "group" else claw.user(alice.npub)
            assert shown is not None
            found = shown.notes
        assert found == ("since 0", "since 1", "since 2")
    assert len([event for event in fake.events if event.kind == kinds.DELETION]) == 1
    # It goes with the next one, also what was made of it meanwhile.
    async with apart(one) as claw:
        await claw.forget(d)
    await fake.start()
    for count in range(2):
        await note(other, f"made of it {count}", NOW + 100 + count)
    async with one as claw:
        await sent(claw)
    assert [event for event in fake.events if event.d == d] == []


@pytest.mark.proves("S-25")
async def test_what_is_made_of_the_forgotten_goes_also_if_the_answer_was_lost(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    """The relay had the deletion before, and the version before that."""
    one, other = machines
    await one.note("secret", NOW)
    async with apart(one) as claw:
        one.now = NOW + 2
        forgotten = await claw.forget(ALICE)
        assert forgotten is not None
    await fake.start()
    for count in range(2):
        await other.note(f"since {count}", NOW + 3 + count)
    await take_unanswered(fake, forgotten.event)
    assert fields(fake)["notes"] == ["secret", "since 0", "since 1"]
    async with one as claw:
        await sent(claw)
    assert [event for event in fake.events if event.d == ALICE] == []


@pytest.mark.proves("S-25", "S-31")
@pytest.mark.parametrize("has_base", [True, False])
@pytest.mark.parametrize("at", [NOW + 2, NOW + 600], ids=["right", "a clock ahead"])
async def test_what_waited_and_begins_a_record_anew_is_kept_when_the_forget_is_sent_again(
    fake: FakeRelay, machines: tuple[Machine, Machine], at: int, *, has_base: bool
) -> None:
    one, other = machines
    if has_base:
        await one.note("secret", NOW)
    async with apart(other) as claw:
        other.now = NOW + 1
        claw.note_user(alice.npub, "before")
        await claw.flush()
        other.now = NOW + 5
        claw.note_user(alice.npub, "after")
    await fake.start()
    if not has_base:
        await one.note("secret", NOW)
    async with apart(one) as claw:
        one.now = at
        forgotten = await claw.forget(ALICE)
        assert forgotten is not None
    await fake.start()
    await take_unanswered(fake, forgotten.event)
    other.now = NOW + 9
    async with other as claw:
        await sent(claw)
    await other.note("more", NOW + 10)
    one.now = NOW + 99
    async with one as claw:
        await sent(claw)
    noted = ["before", "after"] if at == NOW + 600 else ["after"]
    assert fields(fake)["notes"] == [*noted, "more"]


async def take_unanswered(fake: FakeRelay, deletion: Event) -> None:
    """The relay stores what the client sent, and the client gets no answer."""
    async with Client(fake.url, bob, timeouts=TIMEOUTS) as stranger:
        await stranger.publish(deletion)


@pytest.mark.proves("S-25")
async def test_what_waits_since_a_forget_stays_when_more_is_deleted_with_it(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    """The deletion of the other machine's version comes back from the relay, and is younger."""
    one, other = machines
    await one.note("secret", NOW)
    async with apart(one) as claw:
        one.now = NOW + 2
        await claw.forget(ALICE)
        claw.note_user(alice.npub, "mine")
        await claw.flush()
    await fake.start()
    await other.note("since", NOW + 5)
    take = fake.on["EVENT"]

    async def put_off(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["kind"] != kinds.DELETION:
            await visitor.say_no(frame[1]["id"], "rate-limited: slow down")
        else:
            await take(visitor, frame)

    fake.on["EVENT"] = put_off
    one.now = NOW + 9
    async with one as claw:
        await claw._client.wait_connected()
        await claw.start()
        await fake.until(lambda: len([e for e in fake.events if e.kind == kinds.DELETION]) == 2)
        await fake.publish(record(TEA, {"notes": ["comes after it"]}))
        await until(lambda: claw.group("tea") is not None)
        fake.on["EVENT"] = take
        await sent(claw)
    assert fields(fake)["notes"] == ["mine"]


@pytest.mark.proves("S-25")
async def test_what_an_earlier_forget_spared_goes_with_a_later_one(
    fake: FakeRelay, machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    """Of three machines: what the first deletes anew is no deletion of what the second forgot."""
    first, other = machines
    second = Machine(fake, tmp_path / "second")
    await first.note("secret", NOW)
    for machine, at in ((first, NOW + 1), (second, NOW + 4)):
        async with machine as claw:
            await claw._client.wait_connected()
            await claw.load()
            await fake.stop()
            await until(lambda claw=claw: not claw.is_online)  # type: ignore[misc]
            machine.now = at
            await claw.forget(ALICE)
        await fake.start()
    async with other as claw:
        await claw._client.wait_connected()
        await claw.start()
        other.now = NOW + 3
        for count in range(4):  # each version is a second newer
            claw.note_user(alice.npub, f"stored {count}")
            await claw.flush()
        claw.note_user(alice.npub, "between")
        async with first as claw_of_first:
            await sent(claw_of_first)
        await until(lambda: claw._working_copy.own(ALICE) is None)
        await claw.flush()
        assert fields(fake)["notes"] == ["between"]
        other.now = NOW + 8
        claw.note_user(alice.npub, "more")
    async with second as claw:
        await sent(claw)
    assert [event for event in fake.events if event.d == ALICE] == []


@pytest.mark.proves("S-25")
async def test_what_was_noted_after_the_other_machine_forgot_it_too_is_kept(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, other = machines
    await one.note("secret", NOW)
    async with apart(one) as claw:
        one.now = NOW + 2
        await claw.forget(ALICE)
    await fake.start()
    other.now = NOW + 3
    await forget_on(other)
    for count in range(2):
        await other.note(f"since {count}", NOW + 9 + count)
    async with one as claw:
        one.now = NOW + 20
        await sent(claw)
    assert fields(fake)["notes"] == ["since 0", "since 1"]


@pytest.mark.proves("S-25")
async def test_a_version_that_the_forgetting_machine_has_not_been_told_goes_too(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    """Stored while it forgot, and dated a second ahead, as there was a version in this one."""
    one, other = machines
    await one.note("secret", NOW)
    async with one as claw:
        await claw._client.wait_connected()
        await claw.load()
        await other.note("of the other", NOW)
        await claw.forget(ALICE)
    assert [event for event in fake.events if event.d == ALICE] == []


@pytest.mark.proves("S-25")
async def test_an_owner_s_request_is_also_for_the_edits_that_wait(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    """The agent sent them first, the request named the version before, and nothing was deleted."""
    one, _ = machines
    await one.note("secret", NOW)
    (stored,) = (event for event in fake.events if event.d == ALICE)
    async with apart(one) as claw:
        claw.note_user(alice.npub, "offline")
        await claw.flush()
    tags = [["e", stored.id], ["a", f"30078:{robot.pubkey}:{ALICE}"], ["p", robot.pubkey]]
    fake.events.append(owner.sign(5, tags, "", NOW + 30))
    await fake.start()
    for _ in range(2):  # it is asked again at each start
        async with one as claw:
            await claw._client.wait_connected()
            await claw.start()
            await sent(claw)
            if claw.user(alice.npub) is None:
                claw.note_user(alice.npub, "afterwards")
                await claw.flush()
    assert fields(fake)["notes"] == ["afterwards"]


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("is_queued", [True, False], ids=["queued", "unsaved"])
@pytest.mark.parametrize("restarts", [True, False], ids=["started again", "running"])
@pytest.mark.parametrize("is_heard", [True, False], ids=["followed", "flushed"])
async def test_an_owner_s_request_is_for_what_was_noted_until_then_and_nothing_else(
    fake: FakeRelay,
    machines: tuple[Machine, Machine],
    *,
    is_queued: bool,
    restarts: bool,
    is_heard: bool,
) -> None:
    """The version that waited was made of what it named, and younger, and was stored with all of
    it; of what did not wait, the note after it was lost too."""
    one, _ = machines
    await one.note("stored", NOW)
    (stored,) = (event for event in fake.events if event.d == ALICE)
    tags = [["e", stored.id], ["a", f"30078:{robot.pubkey}:{ALICE}"], ["p", robot.pubkey]]
    async with apart(one) as claw:
        one.now = NOW + 5
        claw.note_user(alice.npub, "before")
        if is_queued:
            await claw.flush()
        fake.events.append(owner.sign(5, tags, "", NOW + 7))
        one.now = NOW + 9
        claw.note_user(alice.npub, "after")
        if is_queued:
            await claw.flush()
        if not restarts:
            await fake.start()
            await claw._client.wait_connected()
            if is_heard:
                await claw.start()
            await claw.flush()
            await sent(claw)
    if restarts:
        await fake.start()
    for _ in range(2):  # it is asked again at each start
        async with one as claw:
            await claw._client.wait_connected()
            await claw.start()
            await sent(claw)
            memory = claw.user(alice.npub)
            assert memory is not None
            assert memory.notes[0] == "after"
            claw.note_user(alice.npub, "later")
            await claw.flush()
    assert fields(fake)["notes"] == ["after", "later"]
    kept = [event for event in fake.events if event.kind == kinds.DELETION]
    assert [event.created_at for event in kept] == [NOW + 7, NOW + 7]
    assert not left_of(["before", "stored"], one.folder)


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "started again"])
@pytest.mark.parametrize("full", [False, True], ids=["32 characters", "another form of the key"])
async def test_a_note_does_not_overtake_a_forget_that_the_relay_puts_off(
    fake: FakeRelay,
    machines: tuple[Machine, Machine],
    restarts: bool,  # noqa: FBT001
    full: bool,  # noqa: FBT001
) -> None:
    """It was stored at once, with the forgotten text, and the deletion named the version before."""
    one, _ = machines
    take = fake.on["EVENT"]
    is_busy = True

    async def put_off(visitor: Visitor, frame: list[Any]) -> None:
        if is_busy and frame[1]["kind"] == kinds.DELETION:
            await visitor.say_no(frame[1]["id"], "rate-limited: slow down")
        else:
            await take(visitor, frame)

    fake.on["EVENT"] = put_off
    d = ALICE if not full else f"snowclaw:memory:npub:{alice.pubkey}"
    fake.events.append(record(d, {"notes": ["secret"]}))

    async def note_and_send(claw: Snowclaw) -> None:
        nonlocal is_busy
        await claw._client.wait_connected()
        await claw.start()
        assert claw.user(alice.npub) is None
        claw.note_user(alice.npub, "new")
        (written,) = await claw.flush()
        assert written.outcome is Outcome.QUEUED
        assert [event.content for event in fake.events] == ['{"notes": ["secret"]}']
        is_busy = False
        await sent(claw)

    one.now = NOW + 9
    async with one as claw:
        await claw._client.wait_connected()
        await claw.start()
        forgotten = await claw.forget(d)
        assert forgotten is not None
        assert forgotten.outcome is Outcome.QUEUED
        if not restarts:
            await note_and_send(claw)
    if restarts:
        async with one as claw:
            await note_and_send(claw)
    assert fields(fake)["notes"] == ["new"]


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("later", [1, 30], ids=["in the same second", "later"])
@pytest.mark.parametrize("has_base", [True, False])
@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "waiting"])
async def test_what_waits_leaves_the_file_if_another_machine_forgets_the_record_afterwards(
    fake: FakeRelay,
    machines: tuple[Machine, Machine],
    later: int,
    *,
    has_base: bool,
    is_refused: bool,
) -> None:
    """It was stored again, or stayed among the refused ones with its text."""
    one, other = machines
    take = fake.on["EVENT"]

    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say_no(frame[1]["id"], "restricted: only agents may write memory")

    if has_base:
        await one.note("stored", NOW)
    async with apart(one) as claw:
        one.now = NOW + 1
        claw.note_user(alice.npub, "secret")
    if is_refused:
        fake.on["EVENT"] = refuse
        await fake.start()
        async with one as claw:
            await sent(claw)
            assert len(await claw.refused()) == 1
        fake.on["EVENT"] = take
    else:
        await fake.start()
    if not has_base:
        await other.note("of the other", NOW)
    other.now = NOW + later - 1
    await forget_on(other)
    async with one as claw:
        await sent(claw)
        async with asyncio.timeout(ANSWER_S):
            while await claw.refused():  # noqa: ASYNC110  nothing rings when it is so
                await asyncio.sleep(0)
        assert claw.user(alice.npub) is None
    assert [event for event in fake.events if event.d == ALICE] == []
    assert not left_of(["secret"], one.folder)


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("of", ["the other machine", "this one"])
async def test_a_running_agent_does_not_store_what_it_noted_before_a_forget(
    fake: FakeRelay, machines: tuple[Machine, Machine], of: str
) -> None:
    """The notes of the last five minutes."""
    one, other = machines
    await one.note("stored", NOW)
    async with one as claw:
        await claw._client.wait_connected()
        await claw.start()
        claw.note_user(alice.npub, "before")
        if of == "this one":
            await claw.forget(ALICE)
        else:
            await forget_on(other)
            await until(lambda: claw.user(alice.npub) is None)
        assert claw.unsaved == 0
        claw.note_user(alice.npub, "after")  # in the second of the deletion
        count = len(fake.verbs("EVENT"))
        await fake.publish(next(event for event in fake.events if event.kind == kinds.DELETION))
        await claw.flush()
        await fake.until(lambda: len(fake.verbs("EVENT")) > count)
    assert fields(fake)["notes"] == ["after"]


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("of", ["the other machine", "this one"])
async def test_what_is_forgotten_while_it_is_stored_is_not_made_again(
    fake: FakeRelay, machines: tuple[Machine, Machine], of: str
) -> None:
    """The relay refuses it, and the agent learns why."""
    one, other = machines
    await one.note("stored", NOW)
    take = fake.on["EVENT"]
    came: list[tuple[Visitor, list[Any]]] = []

    async def keep(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["EVENT"] = take
        came.append((visitor, frame))

    async with one as claw:
        await claw._client.wait_connected()
        await claw.load()
        claw.note_user(alice.npub, "secret")
        claw.note_group("tea", "kept")
        fake.on["EVENT"] = keep
        flushing = asyncio.create_task(claw.flush())
        await until(lambda: came)
        if of == "this one":
            one.now = NOW + 9
            await claw.forget(ALICE)
        else:
            other.now = NOW + 9
            await forget_on(other)
        await take(*came[0])
        assert [written.event.d for written in await flushing] == [TEA]
        assert (claw.user(alice.npub), claw.unsaved) == (None, 0)
    assert [event.d for event in fake.events if event.kind != kinds.DELETION] == [TEA]


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("begins", ["before", "during"])
async def test_a_relay_that_remembers_no_deletion_stores_no_version_after_its_deletion(
    fake: FakeRelay, machines: tuple[Machine, Machine], begins: str
) -> None:
    """The version was put off for a while, and the deletion was not."""
    one, _ = machines
    is_busy = True
    take, query = fake.take, fake.on["REQ"]
    asked: list[tuple[Visitor, list[Any]]] = []

    async def put_off(visitor: Visitor, frame: list[Any]) -> None:
        if is_busy and frame[1]["kind"] != kinds.DELETION:
            await visitor.say_no(frame[1]["id"], "rate-limited: slow down")
        elif frame[1]["kind"] != kinds.DELETION:
            await take(visitor, frame)
        else:
            await visitor.say_ok(frame[1]["id"])

    async def answer_later(visitor: Visitor, frame: list[Any]) -> None:
        fake.on["REQ"] = query
        asked.append((visitor, frame))

    fake.on["EVENT"] = put_off
    async with one as claw:
        await claw._client.wait_connected()
        claw.note_user(alice.npub, "secret")
        (written,) = await claw.flush()
        assert written.outcome is Outcome.QUEUED
        if begins == "during":  # the version is about to be sent again
            fake.on["REQ"] = answer_later
            async with asyncio.timeout(ANSWER_S):
                while not asked:  # noqa: ASYNC110  nothing rings when it is so
                    await asyncio.sleep(0)
        await claw.forget(ALICE)
        is_busy = False
        for visitor, frame in asked:
            await query(visitor, frame)
        await sent(claw)
        assert claw.user(alice.npub) is None
    assert fake.events == []
    assert not left_of(["secret"], one.folder)


def forget_at(fake: FakeRelay, at: int) -> None:
    """Another machine forgets everything, while this one is offline."""
    gone = [event for event in fake.events if event.kind != kinds.DELETION]
    addresses = {f"30078:{robot.pubkey}:{d}" for d in (ALICE, TEA, PRIVATE, *(e.d for e in gone))}
    tags = [*(["e", event.id] for event in gone), *(["a", each] for each in sorted(addresses))]
    fake.events[:] = [robot.sign(kinds.DELETION, tags, "", at)]


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("is_queued", [True, False], ids=["queued", "unsaved"])
@pytest.mark.parametrize("restarts", [True, False], ids=["started again", "running"])
@pytest.mark.parametrize("is_encrypted", [True, False], ids=["encrypted", "in the clear"])
@pytest.mark.parametrize("has_base", [True, False])
async def test_a_forget_of_the_other_machine_drops_what_was_noted_before_it_and_nothing_else(
    fake: FakeRelay,
    machines: tuple[Machine, Machine],
    *,
    is_queued: bool,
    restarts: bool,
    is_encrypted: bool,
    has_base: bool,
) -> None:
    """The note before it came back with the next one, whose version holds both and is younger."""
    one, _ = machines
    if has_base:
        await one.note("stored", NOW)
    async with apart(one) as claw:
        one.now = NOW + 5
        claw.note_user(alice.npub, "before")
        claw.set_preference(alice.npub, "tea", "before")
        if is_encrypted:
            claw.encrypt_user(alice.npub)
        if is_queued:
            await claw.flush()
        forget_at(fake, NOW + 7)
        one.now = NOW + 9
        claw.note_user(alice.npub, "after")
        claw.set_preference(alice.npub, "cup", "after")
        await claw.flush()
        assert await claw.waiting() == 1
        if not restarts:
            await fake.start()
            await sent(claw)
    if restarts:
        await fake.start()
    async with one as claw:
        await claw._client.wait_connected()
        await sent(claw)
        assert await claw.refused() == []
        await claw.load()
        memory = claw.user(alice.npub)
        assert memory is not None
        assert (memory.notes, memory.preferences) == (("after",), {"cup": "after"})
    if not is_encrypted:
        assert "before" not in str(fake.events)
    assert not left_of(["before", "stored"], one.folder)


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("is_queued", [True, False], ids=["queued", "unsaved"])
async def test_of_a_group_it_drops_no_more_either(
    fake: FakeRelay, machines: tuple[Machine, Machine], *, is_queued: bool
) -> None:
    one, _ = machines
    async with apart(one) as claw:
        for at, text in ((NOW + 5, "before"), (NOW + 9, "after")):
            one.now = at
            claw.note_group("tea", text)
            claw.add_theme("tea", f"theme {text}")
            claw.add_decision("tea", f"decision {text}")
            claw.set_purpose("tea", f"purpose {text}")
            if is_queued:
                await claw.flush()
        forget_at(fake, NOW + 7)
        await claw.flush()
        await fake.start()
        await sent(claw)
    found = fields(fake, TEA)
    assert (found["notes"], found["themes"]) == (["after"], ["theme after"])
    assert (found["decisions"], found["purpose"]) == (
        [["decision after", NOW + 9]],
        "purpose after",
    )


@pytest.mark.proves("S-25")
async def test_of_private_notes_it_drops_no_more_either(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, _ = machines
    fake.events.append(record(ALICE, {"notes": []}, NOW, ["h", "tea"]))
    async with apart(one) as claw:
        for at, text in ((NOW + 5, "before"), (NOW + 9, "after")):
            one.now = at
            await claw.annotate_privately(alice.npub, text)
        forget_at(fake, NOW + 7)
        await fake.start()
        await sent(claw)
    (event,) = (event for event in fake.events if event.d == PRIVATE)
    assert "before" not in event.content
    assert "after" in event.content


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("is_queued", [True, False], ids=["queued", "at once"])
async def test_what_a_restored_relay_gives_again_is_not_stored_with_the_next_note(
    fake: FakeRelay, machines: tuple[Machine, Machine], *, is_queued: bool
) -> None:
    """It is deleted there again."""
    one, _ = machines
    await one.note("secret", NOW)
    backup = list(fake.events)
    one.now = NOW + 5
    await forget_on(one)
    fake.events[:] = backup
    latest(fake)  # it does not know of the deletion
    if is_queued:
        async with apart(one) as claw:
            one.now = NOW + 9
            claw.note_user(alice.npub, "after")
        await fake.start()
        async with one as claw:
            await sent(claw)
            assert await claw.refused() == []
    else:
        await one.note("after", NOW + 9)
    assert fields(fake)["notes"] == ["after"]
    (deletion,) = (event for event in fake.events if event.kind == kinds.DELETION)
    assert deletion.tag_values("e") == [backup[0].id]
    assert not left_of(["secret"], one.folder)


async def test_a_relay_that_refuses_to_delete_again_takes_no_note_away(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    """Its `blocked: deleted` was taken for the answer to the note."""
    one, _ = machines
    await one.note("secret", NOW)
    backup = list(fake.events)
    one.now = NOW + 5
    await forget_on(one)
    fake.events[:] = backup
    latest(fake)
    take = fake.on["EVENT"]

    async def refuse_deletions(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["kind"] == kinds.DELETION:
            await visitor.say_no(frame[1]["id"], "blocked: deleted")
        else:
            await take(visitor, frame)

    async with apart(one) as claw:
        one.now = NOW + 9
        claw.note_user(alice.npub, "after")
    await fake.start()
    fake.on["EVENT"] = refuse_deletions
    async with one as claw:
        await sent(claw)
        (refused,) = await claw.refused()
        assert "after" in refused.event.content
        assert refused.reason == "duplicate: another version is stored"


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("restarts", [True, False], ids=["started again", "running"])
async def test_what_is_noted_after_one_s_own_forget_is_kept_though_the_other_machine_wrote_since(
    fake: FakeRelay, machines: tuple[Machine, Machine], *, restarts: bool
) -> None:
    """The deletion of the other machine's version is younger than the note."""
    one, other = machines
    await one.note("secret", NOW)
    await other.note("of the other", NOW + 1)
    async with apart(one) as claw:
        one.now = NOW + 2
        await claw.forget(ALICE)
        one.now = NOW + 3
        claw.note_user(alice.npub, "mine")
        await claw.flush()
        if not restarts:
            notes = [*fields(fake)["notes"], "since"]
            fake.events[:] = [record(ALICE, {"notes": notes}, NOW + 5, made_from(fake.events[-1]))]
            one.now = NOW + 9
            await fake.start()
            await sent(claw)
    if restarts:
        await fake.start()
        await other.note("since", NOW + 5)
        one.now = NOW + 9
        async with other as claw_of_other:
            await claw_of_other._client.wait_connected()
            await claw_of_other.start()
            async with one as claw:
                await sent(claw)
                await claw.load()
            await until(lambda: claw_of_other.user(alice.npub) is not None)
            for each in (claw, claw_of_other):
                shown = each.user(alice.npub)
                assert shown is not None
                assert shown.notes == ("mine",)
    assert fields(fake)["notes"] == ["mine"]


@pytest.mark.proves("S-31")
@pytest.mark.parametrize("behind", [30, 400])
@pytest.mark.parametrize("noted", ["while it runs", "after a restart", "before the connection"])
async def test_a_note_after_a_forget_is_kept_though_the_clock_is_behind_the_deletion(
    fake: FakeRelay, machines: tuple[Machine, Machine], noted: str, behind: int
) -> None:
    """A deletion is dated like the version of a machine whose clock is right. It was dropped
    without a word."""
    one, slow = machines
    await one.note("secret", NOW)
    slow.now = NOW - behind
    if noted == "while it runs":
        async with apart(slow) as claw:
            await fake.start()
            await claw._client.wait_connected()
            await claw.forget(ALICE)
            await fake.stop()
            await until(lambda: not claw.is_online)
            claw.note_user(alice.npub, "after")
            await claw.flush()
            await fake.start()
            await sent(claw)
    else:
        await forget_on(slow)
        await fake.stop()
        async with slow as claw:
            await claw.load()
            claw.note_user(alice.npub, "after")
            if noted == "before the connection":
                await fake.start()
                await claw._client.wait_connected()
                await claw.start()
                await claw.flush()
        if noted == "after a restart":
            await fake.start()
            async with slow as claw:
                await sent(claw)
    assert fields(fake)["notes"] == ["after"]


@pytest.mark.proves("S-31")
async def test_an_unsaved_note_outlives_a_forget_of_a_clock_that_is_ahead(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, other = machines
    await one.note("stored", NOW)
    async with one as claw:
        await claw._client.wait_connected()
        await claw.start()
        claw.note_user(alice.npub, "mine")
        other.now = NOW + 600
        await forget_on(other)
        await until(lambda: claw._working_copy.own(ALICE) is None)
        assert claw.unsaved == 1
    assert fields(fake)["notes"] == ["mine"]


async def forget_on(machine: Machine, by: str = "both", d: str = ALICE) -> None:
    """`by`: what the kind 5 names."""
    machine.now += 1
    async with machine as claw:
        await claw._client.wait_connected()
        if by == "both":
            await claw.forget(d)
            return
        await claw.load()
        own = claw._working_copy.own(d)
        assert own is not None
        tag = ["e", own.id] if by == "id" else ["a", f"30078:{robot.pubkey}:{d}"]
        await claw.publish(Draft(kinds.DELETION, [tag], "", machine.now))


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("spools", [True, False])
@pytest.mark.parametrize("is_encrypted_before", [True, False])
async def test_what_another_machine_forgets_meanwhile_is_not_stored_again_with_a_note(
    fake: FakeRelay, machines: tuple[Machine, Machine], *, spools: bool, is_encrypted_before: bool
) -> None:
    """The new line alone; encrypted if the record was when it was noted."""
    one, other = machines
    one.now = NOW + 5
    async with one as claw:
        await claw._client.wait_connected()
        claw.note_user(alice.npub, "secret")
        if is_encrypted_before:
            claw.encrypt_user(alice.npub)
    async with one as claw, SnowclawRecords(claw._client, robot, owner.npub) as without:
        await claw._client.wait_connected()
        used = claw if spools else without
        await used.load()
        await forget_on(other)
        count = len(fake.verbs("EVENT"))
        one.now = NOW + 6
        used.note_user(alice.npub, "mine")
        (written,) = await used.flush()
        assert (written.outcome, used.unsaved) == (Outcome.STORED, 0)
        assert len(fake.verbs("EVENT")) == count + 2
        memory = used.user(alice.npub)
        assert memory is not None
        assert memory.notes == ("mine",)
    assert is_encrypted(written.event) == is_encrypted_before
    assert [event.id for event in fake.events if event.d == ALICE] == [written.event.id]


async def test_a_configuration_that_was_deleted_meanwhile_is_set_without_its_values(
    fake: FakeRelay,
) -> None:
    latest(fake)
    client = Client(fake.url, owner, timeouts=TIMEOUTS, now=lambda: NOW)
    async with client, SnowclawRecords(client, owner, owner.npub) as claw:
        first = await claw.set_config("global", respond_mode="none")
        take = fake.on["EVENT"]

        async def delete_first(visitor: Visitor, frame: list[Any]) -> None:
            fake.on["EVENT"] = take
            async with Client(fake.url, timeouts=TIMEOUTS) as other:
                await other.publish(owner.sign(5, [["e", first.event.id]], "", NOW + 1))
            await take(visitor, frame)

        fake.on["EVENT"] = delete_first
        written = await claw.set_config("global", context_history=7)
        assert claw.config().respond_mode != "none"
    assert written.event.tag("respond_mode") is None
    assert written.event.tag("context_history") == "7"


async def test_what_is_forgotten_offline_is_not_sent_and_what_it_was_made_of_is_deleted(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    """By its id, too: a relay may know no deletion by address."""
    one, _ = machines
    await one.note("old", NOW)
    async with apart(one) as claw:
        claw.note_user(alice.npub, "new")
        (written,) = await claw.flush()
        await claw.forget(ALICE)
        await fake.start()
        await sent(claw)
    (frame,) = (frame[1] for frame in fake.verbs("EVENT") if frame[1]["tags"][0] == ["d", ALICE])
    assert not [event for event in fake.events if event.d == ALICE]
    (deletion,) = (event for event in fake.events if event.kind == kinds.DELETION)
    assert deletion.tag_values("e") == [written.event.id, frame["id"]]


async def test_what_was_not_written_for_a_group_is_not_given_to_it(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, _ = machines
    async with apart(one) as claw:
        one.now = NOW + 2
        claw.note_user(alice.npub, "for the owner")
        await claw.flush()
        fake.events.append(record(ALICE, {"notes": ["for all"]}, NOW + 1, ["h", "tea"]))
        await fake.start()
        await sent(claw)
        (refused,) = await claw.refused()
        claw.note_user(alice.npub, "more", group="tea")
        await claw.flush()
    assert "for the owner" in refused.event.content
    assert "group:tea reads the stored version" in refused.reason
    assert fields(fake)["notes"] == ["for all", "more"]


async def test_that_somebody_was_seen_may_be_told_to_a_group(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, _ = machines
    async with apart(one) as claw:
        claw.see(alice.sign(9, [["h", "tea"]], "hello", NOW + 2))
    fake.events.append(record(ALICE, {"notes": ["for all"]}, NOW + 1, ["h", "tea"]))
    await fake.start()
    async with one as claw:
        await sent(claw)
        assert await claw.refused() == []
    assert (fields(fake)["notes"], fields(fake)["last_interaction"]) == (["for all"], NOW + 2)


async def test_an_encrypted_record_is_in_no_file_in_the_clear(
    fake: FakeRelay, machines: tuple[Machine, Machine]
) -> None:
    one, other = machines
    async with one as claw:
        await claw._client.wait_connected()
        claw.note_user(alice.npub, "secret")
        claw.encrypt_user(alice.npub)
    async with apart(one) as claw:
        claw.note_user(alice.npub, "offline")
        await claw.flush()
        files = b"".join(path.read_bytes() for path in one.folder.iterdir())
        assert not any(word in files for word in (b"secret", b"offline"))
    await fake.start()
    await other.note("online", NOW + 3)
    async with one as claw:
        await sent(claw)
        await claw.load()
        memory = claw.user(alice.npub)
    (event,) = (event for event in fake.events if event.d == ALICE)
    assert is_encrypted(event)
    assert memory is not None
    assert sorted(memory.notes) == ["offline", "online", "secret"]


@pytest.mark.parametrize("has_folder", [False, True], ids=["no folder", "folder"])
@pytest.mark.parametrize("ends", ["unanswered", "cancelled", "replaced", "with the block"])
async def test_what_the_relay_stored_without_an_answer_is_not_noted_again(
    fake: FakeRelay, tmp_path: Path, ends: str, *, has_folder: bool
) -> None:
    """The change stayed unsaved, and the next version, made of the stored one, had it twice."""
    latest(fake)
    client = Client(fake.url, robot, timeouts=TIMEOUTS, now=lambda: NOW)
    folder = tmp_path if has_folder else None
    publish, is_stored, may_go = client.publish, asyncio.Event(), asyncio.Event()

    async def publish_without_answer(event: Event, **more: Any) -> Reply:
        client.publish = publish  # type: ignore[method-assign]
        reply = await publish(event, **more)
        is_stored.set()
        if ends == "unanswered":
            raise Unanswered("no answer")
        await may_go.wait()
        return reply

    async with (
        client,
        Snowclaw(client, robot, owner.npub, folder=folder, later=Clock().later) as claw,
    ):
        await claw.load()
        claw.note_user(alice.npub, "tea")
        await claw.flush()
        claw.note_user(alice.npub, "cake")
        client.publish = publish_without_answer  # type: ignore[method-assign]
        claw._debounce.now()
        await is_stored.wait()
        if ends in ("cancelled", "replaced"):
            assert claw._debounce._task is not None
            claw._debounce._task.cancel()
        if ends == "replaced":  # by another machine, which made its version of it
            (first,) = fake.events
            notes = json.dumps({"notes": ["tea", "cake", "hers"]})
            fake.events[:] = [
                robot.sign(30078, [["d", ALICE], made_from(first)], notes, first.created_at + 1)
            ]
        if ends == "with the block":
            asyncio.get_running_loop().call_soon(may_go.set)
        else:
            await asyncio.sleep(0)
            claw.note_user(alice.npub, "milk")
    expected = ["tea", "cake", *(["hers"] if ends == "replaced" else [])]
    if ends != "with the block":
        expected.append("milk")
    (event,) = fake.events
    assert json.loads(event.content)["notes"] == expected

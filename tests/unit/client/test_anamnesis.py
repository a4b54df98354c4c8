"""Anamnesis on a connection: what it writes, and what it makes of what a relay has."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, PublishRefused, QueryClosed, content_hash, trust_score, validate
from relay.client.anamnesis import OUTSIDE, Ambiguous, Anamnesis, UnknownMemory, reader
from relay.client.anamnesis.files import Line, entries_in, write_lines
from relay.client.anamnesis.matching import Question
from relay.client.anamnesis.settings import anamnesis_settings
from relay.client.claims import MAX_OLD
from relay.client.settings import ClientFile
from relay.client.writer import Outcome
from relay.errors import ConfigFaults, Invalid
from relay.memory.anamnesis import provenance
from relay.memory.anamnesis.checks import MemoryType
from relay.memory.anamnesis.references import ENTRY
from relay.memory.anamnesis.trust import Reputations
from relay.nostr.event import event_from
from relay.nostr.filters import Filter
from relay.nostr.keys import SecretKey
from tests.cast import alice, bob, carol, owner, robot, rover
from tests.golden import document
from tests.unit.client.conftest import TIMEOUTS
from tests.unit.client.test_snowclaw import until
from tests.unit.memory.anamnesis.making import superseded, told, vouched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.nostr.event import Event
    from tests.harness.fake_relay import FakeRelay, Visitor

GOLDEN: dict[str, Any] = document("memory/anamnesis.json")
NOW = 1_772_000_000
A, B, C = (content_hash(text) for text in ("a", "b", "c"))
GUARDED = {"memory": {"kinds": [78, 30078]}}


@asynccontextmanager
async def memory_of(
    fake: FakeRelay, signer: SecretKey = robot, now: int = NOW, **more: Any
) -> AsyncIterator[Anamnesis]:
    away = "folder" in more
    client = Client(fake.url, signer, timeouts=TIMEOUTS, now=lambda: now, start_offline=away)
    async with client, Anamnesis(client, signer, **more) as memory:
        yield memory


async def refuse(fake: FakeRelay, kind: int, text: str) -> None:
    """From now on, events of a kind."""

    async def take(visitor: Visitor, frame: list[Any]) -> None:
        if frame[1]["kind"] == kind:
            await visitor.say_no(frame[1]["id"], text)
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = take


# -- writing --------------------------------------------------------------------------------------


@pytest.mark.proves("X-01", "X-02")
async def test_a_memory_is_written_as_its_document_has_it(fake: FakeRelay) -> None:
    wanted = GOLDEN["seed_entry"]["event"]
    author = GOLDEN["seed_entry"]["entry"]["author"]
    entry = GOLDEN["seed_entry"]["entry"]
    agent = SecretKey.parse(GOLDEN["keys"]["agent"]["nsec"])
    async with memory_of(fake, agent, wanted["created_at"], author=author) as memory:
        hashed = await memory.remember(
            entry["content"],
            entry["memory_type"],
            entry["parent_refs"],
            entry["confidence"],
            entry["tags"],
            entry["context"],
        )
    assert hashed == entry["content_hash"]
    (event,) = fake.events
    assert event.id == wanted["id"]


async def test_without_an_author_it_is_the_key(fake: FakeRelay) -> None:
    async with memory_of(fake) as memory:
        await memory.remember("a")
        await memory.vouch(B)
    document, said = (json.loads(event.content) for event in fake.events)
    assert document["author"] == {"id": robot.pubkey, "name": robot.pubkey}
    assert said == {"id": robot.pubkey, "timestamp": "2026-02-25T06:13:20Z", "confidence": 1.0}
    with pytest.raises(Invalid, match=r"author\.name must be a string"):
        Anamnesis(fake.url, robot, {"id": "x"})


async def test_a_repeated_memory_is_not_published_again(fake: FakeRelay) -> None:
    async with memory_of(fake) as memory:
        first = await memory.add(memory.entry("a"))
    async with memory_of(fake, now=NOW + 9) as memory:
        again = await memory.add(memory.entry("a", tags=["other"]))
    assert (first.outcome, again.outcome) == (Outcome.STORED, Outcome.DUPLICATE)
    assert again.event == first.event
    async with memory_of(fake, rover) as memory:
        assert (await memory.add(memory.entry("a"))).outcome is Outcome.STORED
    assert len(fake.events) == 2


async def test_how_long_a_memory_may_be_is_the_relays_to_say(fake: FakeRelay) -> None:
    await refuse(fake, 78, "invalid: content.content must be a string of 1 to 20000 characters")
    async with memory_of(fake) as memory:
        with pytest.raises(PublishRefused, match="1 to 20000"):
            await memory.remember("x" * 20_001)


async def test_a_relay_that_keeps_the_first_is_not_asked_before(fake: FakeRelay) -> None:
    fake.information = GUARDED

    async def taken(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say_ok(frame[1]["id"], "duplicate: already stored under this d")

    fake.on["EVENT"] = taken
    async with memory_of(fake) as memory:
        assert (await memory.add(memory.entry("a"))).outcome is Outcome.DUPLICATE
    assert fake.verbs("REQ") == []


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"content": ""}, "content.content must be a string of 1 to 10000 characters"),
        ({"content": "\ud800"}, "lone surrogate"),
        ({"parents": ["xyz"]}, "parent_refs must be an array of 64 lowercase hex"),
        ({"parents": [A]}, "a memory cannot be its own parent"),
        ({"confidence": 1.5}, "content.confidence must be a number from 0 to 1"),
        ({"memory_type": "rumour"}, "memory_type must be one of episodic, semantic"),
    ],
)
async def test_invalid_entries_are_not_sent(
    fake: FakeRelay, fields: dict[str, Any], why: str
) -> None:
    async with memory_of(fake) as memory:
        with pytest.raises(Invalid, match=why):
            await memory.remember(**{"content": "a", **fields})
    assert fake.verbs("EVENT") == []


@pytest.mark.proves("X-11", "X-12")
async def test_a_vouch_is_replaced_and_taken_back(fake: FakeRelay) -> None:
    async with memory_of(fake, author={"id": "r", "name": "Robot"}) as memory:
        await memory.vouch(A, 0.4)
        await memory.vouch(A, 0.9, "dispute", "R2")
        assert await memory.withdraw(B) is None
        taken_back = await memory.withdraw(A)
    first, second, deletion = fake.events
    assert first.d == second.d == f"anamnesis:vouch:{A}"
    assert second.created_at == first.created_at + 1
    assert json.loads(first.content)["name"] == "Robot"
    said = json.loads(second.content)
    assert (said["name"], said["confidence"], said["attestation"]) == ("R2", 0.9, "dispute")
    assert taken_back is not None
    assert deletion.kind == 5
    assert set(deletion.tag_values("e")) == {first.id, second.id}


async def test_an_invalid_vouch_is_not_sent(fake: FakeRelay) -> None:
    async with memory_of(fake) as memory:
        for confidence, attestation in ((2.0, "confirm"), (1.0, "perhaps")):
            with pytest.raises(Invalid):
                await memory.vouch(A, confidence, attestation)
        with pytest.raises(Invalid, match="64 lowercase hex"):
            await memory.vouch(A[:12])
    assert fake.verbs("EVENT") == []


@pytest.mark.proves("X-15")
async def test_a_correction_is_a_new_memory_and_a_pointer_to_it(fake: FakeRelay) -> None:
    await fake.publish(told(robot, "a", group="den"))
    async with memory_of(fake) as memory:
        assert await memory.supersede(A, "b", tags=["t"], parents=[C]) == B
    old, new, pointer = fake.events
    assert (old.tag("x"), new.tag("x")) == (A, B)
    assert json.loads(new.content)["parent_refs"] == [A, C]
    assert new.tag("h") == "den"
    assert [list(tag) for tag in pointer.tags] == [
        ["d", f"anamnesis:superseded:{A}"],
        ["x", A],
        ["X", B],
        ["h", "den"],
    ]
    assert json.loads(pointer.content) == {"superseded_by": B}


@pytest.mark.proves("X-15")
async def test_a_correction_inherits_type_tags_and_confidence(fake: FakeRelay) -> None:
    old = told(robot, "a", memory_type=MemoryType.INSIGHT, tags=("t",), confidence=0.9)
    await fake.publish(old)
    async with memory_of(fake) as memory:
        await memory.supersede(A, "b")
        await memory.amend(B, memory_type="semantic", tags=["u", "v"])
        await memory.supersede(B, "c", confidence=0.2)
    found = [json.loads(event.content) for event in fake.events if event.kind == 78]
    fields = [(each["memory_type"], each["tags"], each["confidence"]) for each in found[1:]]
    assert fields == [("insight", ["t"], 0.9), ("semantic", ["u", "v"], 0.2)]


async def test_unknown_or_identical_memories_cannot_be_superseded(fake: FakeRelay) -> None:
    async with memory_of(fake) as memory:
        with pytest.raises(UnknownMemory, match=f"unknown memory {A[:12]}$"):
            await memory.supersede(A, "b")
        with pytest.raises(Invalid, match="a memory cannot supersede itself"):
            await memory.supersede(A, "a")
    assert fake.verbs("EVENT") == []


async def test_a_refused_correction_deletes_its_new_memory(fake: FakeRelay) -> None:
    await fake.publish(told(rover, "a"))
    await refuse(fake, 30078, "restricted: only the author or the owner may supersede a memory")
    async with memory_of(fake) as memory:
        with pytest.raises(PublishRefused, match="only the author or the owner"):
            await memory.supersede(A, "b")
        new, deletion = fake.events[1:]
        assert (deletion.kind, deletion.tag("e")) == (5, new.id)
        # … not one that was there before.
        await memory.remember("c")
        with pytest.raises(PublishRefused):
            await memory.supersede(A, "c")
    assert [event.kind for event in fake.events] == [78, 78, 5, 78]


async def test_memories_that_others_let_one_supersede_are_read_up_to_a_number(
    fake: FakeRelay,
) -> None:
    """Each search that found the memory read thousands, and the author's own word among them."""
    texts = [f"noise {number}" for number in range(120)]
    fake.events += [told(robot, "a"), told(robot, "c"), superseded(robot, A, C)]
    for at, text in enumerate(texts):
        fake.events.append(told(rover, text))
        fake.events.append(superseded(rover, content_hash(text), C, at=NOW + at))
    async with memory_of(fake) as memory:
        of = await memory.provenance_of([A, C])
        assert of[A].superseded_by == C
        assert A in of[C].supersedes
        assert MAX_OLD < len(of[C].supersedes) <= 2 * MAX_OLD
    asked = [filter_ for _, _, *filters in fake.verbs("REQ") for filter_ in filters]
    assert max(len(each["#d"]) for each in asked if "#d" in each) <= 4 * 2 * MAX_OLD


async def test_app_data_of_others_with_the_hash_of_a_memory_is_not_fetched(fake: FakeRelay) -> None:
    """Whoever may write in a group could store hundreds of large ones."""
    fake.information = {"memory": {"prefix_d_kinds": [30078, 78]}}
    for number in range(5):
        tags = [["d", f"foo{number}"], ["x", A], ["X", A]]
        fake.events.append(alice.sign(30078, tags, "x" * 1000, NOW + number))
    fake.events += [told(robot, "a"), vouched(rover, A), told(rover, "b"), superseded(rover, B, A)]
    async with memory_of(fake) as memory:
        of = (await memory.provenance_of([A]))[A]
    assert ([each["id"] for each in of.vouchers], of.supersedes) == ([rover.pubkey], (B,))
    asked = [fake.filters_in(frame) for frame in fake.verbs("REQ")]
    assert not [row for filters in asked for row in fake.rows(filters) if row.d.startswith("foo")]


async def test_a_record_that_names_more_memories_than_its_own_is_ignored(fake: FakeRelay) -> None:
    vouch = vouched(rover, A)
    extra = rover.sign(30078, [*map(list, vouch.tags), ["x", B]], vouch.content, NOW)
    fake.events += [told(robot, "a"), extra]
    async with memory_of(fake) as memory:
        assert (await memory.provenance_of([A]))[A].vouchers == []
        assert [*memory.unread] == [extra.id]


async def test_an_owner_can_supersede_with_an_existing_memory(fake: FakeRelay) -> None:
    for event in (told(robot, "a"), told(rover, "b")):
        await fake.publish(event)
    await refuse(fake, 78, "restricted: only agents may write memory")
    async with memory_of(fake, owner) as memory:
        assert await memory.supersede(A, "b") == B
        with pytest.raises(PublishRefused, match="only agents may write memory"):
            await memory.supersede(A, "c")
    assert [event.kind for event in fake.events] == [78, 78, 30078]


@pytest.mark.proves("X-07")
async def test_metadata_are_amended_and_the_amendment_undone(fake: FakeRelay) -> None:
    async with memory_of(fake) as memory:
        await memory.remember("a", tags=["old"])
        await memory.amend(A, tags=["new"], confidence=0.9)
        document = await memory.get(A)
        assert document is not None
        assert (document["tags"], document["confidence"]) == (["new"], 0.9)
        await memory.amend(A)
        document = await memory.get(A)
        assert document is not None
        assert (document["tags"], document["confidence"]) == (["old"], 0.5)
        for fields in ({"content": "b"}, {"tags": "x"}, {"memory_type": "rumour"}):
            with pytest.raises(Invalid):
                await memory.amend(A, **fields)


@pytest.mark.proves("X-22")
async def test_what_is_said_of_an_own_memory_stays_in_its_group(fake: FakeRelay) -> None:
    """Whoever knows the text can store a copy of it outside of the group, dated earlier."""
    copy = told(rover, "a", at=NOW - 3600, tags=("copy",), confidence=0.1)
    fake.events += [copy, told(robot, "a", group="den", tags=("t",), confidence=0.9)]
    async with memory_of(fake) as memory:
        await memory.vouch(A)
        await memory.amend(A, context={"why": "because"})
        await memory.supersede(A, "b")
    said = fake.events[2:]
    assert [event.tag("h") for event in said] == ["den"] * 4
    (new,) = (json.loads(event.content) for event in said if event.kind == 78)
    assert (new["tags"], new["confidence"]) == (["t"], 0.9)


@pytest.mark.proves("X-22")
async def test_the_group_is_named_where_others_have_a_memory_in_several(fake: FakeRelay) -> None:
    fake.events += [told(rover, "a", group="hut", at=NOW - 3600), told(alice, "a", group="den")]
    async with memory_of(fake, owner) as memory:
        for saying in (memory.vouch(A), memory.amend(A, tags=["t"]), memory.supersede(A, "b")):
            with pytest.raises(Invalid, match=r"\(--group\): den, hut$"):
                await saying
        assert fake.verbs("EVENT") == []
        await memory.vouch(A, group="den")
        await memory.amend(A, group="den", tags=["t"])
        await memory.supersede(A, "b", group="den")
    assert [event.tag("h") for event in fake.events[2:]] == ["den"] * 4


async def test_a_memory_in_a_group_and_outside_is_said_to_be_public_or_of_the_group(
    fake: FakeRelay,
) -> None:
    """A copy outside must not make public what is said in the group; one in a group must not keep
    others from correcting a public memory."""
    fake.events += [told(alice, "a", group="den"), told(rover, "a", tags=("t",), at=NOW - 60)]
    async with memory_of(fake, owner) as memory:
        for saying in (memory.vouch(A), memory.amend(A, tags=["t"]), memory.supersede(A, "b")):
            with pytest.raises(Invalid, match=r"\(--group\): den, or say that it is .*--public"):
                await saying
        assert fake.verbs("EVENT") == []
        await memory.vouch(A, group=OUTSIDE)
        await memory.amend(A, group=OUTSIDE, context={"why": "because"})
        await memory.supersede(A, "b", group=OUTSIDE)
        assert [event.tag("h") for event in fake.events[2:]] == [None] * 4
        (new,) = (json.loads(event.content) for event in fake.events[2:] if event.kind == 78)
        assert new["tags"] == ["t"]
        await memory.vouch(A, group="den")
        await memory.supersede(A, "c", group="den")
    assert [event.tag("h") for event in fake.events[-3:]] == ["den"] * 3


async def test_an_unknown_memory_is_not_amended(fake: FakeRelay) -> None:
    async with memory_of(fake) as memory:
        with pytest.raises(UnknownMemory):
            await memory.amend(A, tags=["t"])
    assert fake.verbs("EVENT") == []


async def test_offline_writes_are_readable_and_sent_later(fake: FakeRelay, tmp_path: Path) -> None:
    await fake.stop()
    async with memory_of(fake, folder=tmp_path) as memory:
        assert (await memory.add(memory.entry("a"))).outcome is Outcome.QUEUED
        assert (await memory.vouch(B)).outcome is Outcome.QUEUED
        assert (await memory.add(memory.entry("a", tags=["t"]))).outcome is Outcome.DUPLICATE
        assert await memory.get(A) is not None
        assert [hit.hash for hit in await memory.recall("a")] == [A]
        assert memory.shortfall == ""
    await fake.start()
    async with memory_of(fake, folder=tmp_path):
        await fake.until(lambda: len(fake.events) == 2)
    assert [event.tag("x") for event in fake.events] == [A, B]


# -- reading --------------------------------------------------------------------------------------


@pytest.mark.proves("X-06")
async def test_unreadable_records_are_reported_and_skipped(fake: FakeRelay) -> None:
    good = told(robot, "a")
    bad = rover.sign(78, [["d", f"anamnesis:memory:{A}"], ["x", A]], "{", NOW)
    foreign = rover.sign(30078, [["d", "mine"], ["x", A]], "whatever", NOW)
    fields = {**json.loads(good.content), "superseded_by": C}
    claiming = alice.sign(78, [list(tag) for tag in good.tags], json.dumps(fields), NOW - 1)
    for event in (good, bad, foreign, claiming):
        await fake.publish(event)
    async with memory_of(fake) as memory:
        document = await memory.get(A)
        assert document is not None
        assert document["claimed"] == {"superseded_by": C}
        assert "superseded_by" not in document
        assert (await memory.resolve(A)).current == A
        assert list(memory.unread) == [bad.id]
        assert await memory.get(B) is None
        assert await memory.trust(B) is None


async def test_the_number_of_unreadable_records_kept_is_bounded(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.client.claims._MAX_UNREAD", 1)
    for hashed in (A, B):
        tags = [["d", f"anamnesis:memory:{hashed}"], ["x", hashed]]
        await fake.publish(rover.sign(78, tags, "{", NOW))
    async with memory_of(fake) as memory:
        for hashed in (A, B):
            assert await memory.get(hashed) is None
        assert [unread.event.tag("x") for unread in memory.unread.values()] == [B]


@pytest.mark.proves("X-17")
async def test_valid_corrections_depend_on_the_owners(fake: FakeRelay) -> None:
    for event in (told(robot, "a"), told(rover, "b"), superseded(rover, A, B)):
        await fake.publish(event)

    async def current(**more: Any) -> str:
        async with memory_of(fake, **more) as memory:
            return (await memory.resolve(A)).current

    # On a relay that lets anybody write it, only a word of the author or of an owner does.
    assert await current() == A
    assert await current(owners=[rover.pubkey]) == B
    fake.information = {"pubkey": rover.pubkey}
    assert await current() == B
    # One that asks who may has said yes to it, and knows owners that nobody was told of.
    fake.information = {**GUARDED, "pubkey": owner.pubkey}
    assert await current() == B


@pytest.mark.proves("X-09", "X-10")
async def test_a_walk_asks_for_many_parents_at_a_time(fake: FakeRelay) -> None:
    fake.most_rows = 5_000
    parents = [told(robot, f"parent {number}") for number in range(600)]
    hashes = [event.tag("x") or "" for event in parents]
    gone = content_hash("gone")
    top = told(rover, "top", parents=(*hashes, gone))
    for event in (*parents, top):
        await fake.publish(event)
    async with memory_of(fake) as memory:
        trace = await memory.trace(top.tag("x") or "")
        assert trace.order[:-1] == tuple(hashes)
        assert (trace.depth, trace.missing, trace.truncated) == (1, (gone,), False)
        credits_ = await memory.credit(top.tag("x") or "")
        assert [(each.author, each.entries) for each in credits_] == [
            (robot.pubkey, 600),
            (rover.pubkey, 1),
        ]
        assert [child.hash for child in await memory.children(hashes[0])] == [top.tag("x")]
        assert (await memory.trace(gone)).order == ()


async def test_what_is_said_of_a_memory_is_asked_for_by_name(fake: FakeRelay) -> None:
    """1,400 records of a stranger with its hash, in a group that anybody writes in, made vouching
    for it, amending it and asking for its children fail, with 3.5 GB."""
    fake.information = {"memory": {"prefix_d_kinds": [78, 30078]}}
    memory_of_robot = told(robot, "rain")
    hashed = memory_of_robot.tag("x") or ""
    await fake.publish(memory_of_robot)
    asked: list[dict[str, Any]] = []

    async def noted(visitor: Visitor, frame: list[Any]) -> None:
        asked.extend(frame[2:])
        await fake.answer(visitor, frame)

    fake.on["REQ"] = noted
    async with memory_of(fake) as memory:
        await memory.children(hashed)
        await memory.vouch(hashed, confidence=0.9)
        await memory.amend(hashed, confidence=0.8)
    of_claims = [each for each in asked if 78 in each.get("kinds", ())]
    assert of_claims
    assert all("#d" in each for each in of_claims), of_claims


async def test_memories_that_name_each_other_are_walked_once(fake: FakeRelay) -> None:
    for event in (
        told(robot, "a", parents=(B,)),
        told(robot, "b", parents=(A,)),
        superseded(robot, A, B),
        superseded(robot, B, A),
    ):
        await fake.publish(event)
    async with memory_of(fake) as memory:
        assert set((await memory.trace(A)).order) == {A, B}
        found = await memory.resolve(A)
    assert (found.chain, found.is_cycle) == ((A, B), True)


@pytest.mark.proves("X-14")
async def test_trust_counts_households_once_and_reputation(fake: FakeRelay) -> None:
    for event in (told(robot, "a"), vouched(alice, A), vouched(bob, A), vouched(rover, A)):
        await fake.publish(event)
    homes = (frozenset({alice.pubkey, bob.pubkey}), frozenset({robot.pubkey, rover.pubkey}))
    reputations = Reputations(of={robot.pubkey: 0.9}, households=homes)
    async with memory_of(fake, reputations=reputations) as memory:
        assert [hit.trust.score for hit in await memory.recall("a")] == [0.58]
        assert await memory.recall("a", min_trust=0.7) == []
        found = await memory.trust(A)
    assert found is not None
    assert str(found) == "0.58 attested (confirm 1, disputes 0, anchors 0)"
    async with memory_of(fake) as memory:
        found = await memory.trust(A)
    assert found is not None
    assert str(found) == "0.6 attested (confirm 3, disputes 0, anchors 0)"
    assert trust_score(1) == 0.5
    assert validate({"content": "a"}).valid is False


@pytest.mark.proves("X-14", "X-18")
@pytest.mark.parametrize("nips", [[50], []])
async def test_recall_knows_the_weakest_source_of_a_hit(fake: FakeRelay, nips: list[int]) -> None:
    async def search(visitor: Visitor, frame: list[Any]) -> None:
        for wanted in frame[2:]:
            if wanted.pop("search", None):
                wanted["#x"] = [A]
        await fake.answer(visitor, frame)

    fake.on["REQ"] = search
    fake.information = {"supported_nips": nips}
    for event in (told(robot, "root"), told(robot, "b", parents=(content_hash("root"),))):
        await fake.publish(event)
    await fake.publish(told(robot, "a", parents=(B,)))
    for hashed in (A, B):
        await fake.publish(vouched(alice, hashed))
    async with memory_of(fake) as memory:
        [hit] = await memory.recall("a")
        found = await memory.trust(A)
    assert (hit.hash, hit.trust.score, hit.trust.weakest_source) == (A, 0.3, content_hash("root"))
    assert found == hit.trust


async def test_the_sources_that_a_recall_asks_for_are_bounded_by_number(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "MAX_NODES", 20)
    root = told(robot, "root")
    await fake.publish(root)
    await fake.publish(told(robot, "tea a", parents=(root.tag("x") or "",)))
    await fake.publish(vouched(alice, content_hash("tea a")))
    for number in range(3):
        many = tuple(content_hash(f"{number} {each}") for each in range(50))
        await fake.publish(told(rover, f"tea {number}", parents=many))
    await search_for_entries(fake, "tea")
    async with memory_of(fake) as memory:
        hits = {hit.hash: hit for hit in await memory.recall("tea")}
    names = [name for frame in fake.verbs("REQ") for name in frame[2].get("#d", ())]
    assert sum(name.startswith(ENTRY) for name in names) == 20
    assert hits[content_hash("tea a")].trust.weakest_source == root.tag("x")


async def test_the_sources_that_a_recall_asks_for_are_bounded_by_their_bytes(
    fake: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = ""
    for number in range(7):
        event = told(rover, f"source {number}", parents=(below,) if below else ())
        below = event.tag("x") or ""
        await fake.publish(event)
    await fake.publish(told(rover, "tea", parents=(below,)))
    await search_for_entries(fake, "tea")
    async with memory_of(fake) as memory:
        await memory.recall("tea")
        assert sum("#d" in frame[2] for frame in fake.verbs("REQ")) == 8
        fake.seen.clear()
        monkeypatch.setattr(reader, "_MAX_SOURCE_BYTES", 1)
        [hit] = await memory.recall("tea")
    assert hit.memory.entry.content == "tea"
    assert sum("#d" in frame[2] for frame in fake.verbs("REQ")) == 2


async def search_for_entries(fake: FakeRelay, beginning: str) -> None:
    """From now on a search finds entries whose content begins so."""
    found = [
        event.id for event in fake.events if event.content.startswith(f'{{"content":"{beginning}')
    ]

    async def search(visitor: Visitor, frame: list[Any]) -> None:
        for wanted in frame[2:]:
            if wanted.pop("search", None):
                wanted["ids"] = found
        await fake.answer(visitor, frame)

    fake.on["REQ"] = search
    # A shorter answer is then the last: one REQ for each query.
    fake.information = {"supported_nips": [50], "limitation": {"max_limit": fake.most_rows}}


async def test_a_hash_is_found_by_its_prefix(fake: FakeRelay) -> None:
    first, second = _alike()
    beginning = content_hash(first)[:8]
    async with memory_of(fake) as memory:
        await memory.remember(first)
        assert await memory.full_hash(beginning) == content_hash(first)
        assert await memory.full_hash(A) == A  # it need not be known
        await memory.remember(second)
        with pytest.raises(Ambiguous) as ambiguous:
            await memory.full_hash(beginning)
        lines = str(ambiguous.value).splitlines()
        assert lines[0] == f"{beginning} is a prefix of 2 hashes:"
        assert [line.split()[0] for line in lines[1:]] == sorted(
            hashed[:16] for hashed in ambiguous.value.hashes
        )
        assert "\x1b" not in str(ambiguous.value)
        with pytest.raises(UnknownMemory):
            await memory.full_hash("0" * 8)
        for bad in ("0" * 7, "z" * 8, A.upper(), "0" * 65, ""):
            with pytest.raises(Invalid):
                await memory.full_hash(bad)


def _alike() -> tuple[str, str]:
    """Two texts whose hashes begin with the same 8 characters."""
    seen: dict[str, str] = {}
    number = 0
    while True:
        text = f"memory \x1b[2J {number}"
        beginning = content_hash(text)[:8]
        if beginning in seen:
            return seen[beginning], text
        seen[beginning] = text
        number += 1


# -- recall ---------------------------------------------------------------------------------------


async def fill(fake: FakeRelay) -> None:
    for number, text in enumerate(
        ("rain in the north", "rain and wind, rain again", "the north wind", "silence")
    ):
        await fake.publish(told(robot, text, at=NOW - number * 86_400, tags=(f"t{number}",)))


async def texts(memory: Anamnesis, query: str, **wish: Any) -> list[str]:
    return [hit.memory.entry.content for hit in await memory.recall(query, **wish)]


@pytest.mark.proves("X-18")
async def test_without_search_all_memories_are_scanned_and_that_is_reported(
    fake: FakeRelay,
) -> None:
    await fill(fake)
    async with memory_of(fake) as memory:
        assert memory.shortfall == ""
        assert await texts(memory, "RAIN") == ["rain and wind, rain again", "rain in the north"]
        assert (
            memory.shortfall
            == f"{fake.url} does not support search: all memories are fetched and scanned"
        )
        assert fake.verbs("REQ")[0][2] == {"kinds": [78], "#t": ["anamnesis"], "limit": 5_000}
        assert await texts(memory, "north rain") == ["rain in the north"]
        assert await texts(memory, '"north wind"') == ["the north wind"]
        assert await texts(memory, "north -rain") == ["the north wind"]
        assert await texts(memory, "t3") == ["silence"]
        for query in ("", "  ", "!!!", "-rain", "nothing-of-this"):
            assert await texts(memory, query) == []


@pytest.mark.proves("X-18")
async def test_when_nothing_has_all_the_words_any_will_do(fake: FakeRelay) -> None:
    await fill(fake)
    async with memory_of(fake) as memory:
        found = await texts(memory, "why is there silence in here?")
        assert found == ["silence"]  # and nothing for the sake of "in"
        assert await texts(memory, "silence rain -north") == [
            "silence",
            "rain and wind, rain again",
        ]


@pytest.mark.proves("X-18")
async def test_recall_filters_narrow_the_result(fake: FakeRelay) -> None:
    await fill(fake)
    late = told(alice, "late rain", at=NOW + 60, memory_type=MemoryType.SEMANTIC, confidence=0.9)
    rain = content_hash("rain in the north")
    new = content_hash("late rain")
    for event in (late, vouched(alice, rain, at=NOW), superseded(robot, rain, new, at=NOW + 61)):
        await fake.publish(event)
    async with memory_of(fake, now=NOW + 100) as memory:
        assert await texts(memory, "rain") == ["late rain", "rain and wind, rain again"]
        assert await texts(memory, "rain", include_superseded=True, min_trust=0.5) == [
            "rain in the north"
        ]
        assert await texts(memory, "rain", as_of=NOW, min_trust=0.5) == ["rain in the north"]
        for wish in (
            {"memory_type": "semantic"},
            {"min_confidence": 0.8},
            {"authors": [alice.pubkey]},
        ):
            assert await texts(memory, "rain", **wish) == ["late rain"]
        assert await texts(memory, "rain", topics=["t1", "t9"]) == ["rain and wind, rain again"]
        assert len(await texts(memory, "rain", limit=1)) == 1
        with pytest.raises(Invalid, match="memory_type must be one of"):
            await memory.recall("rain", memory_type="rumour")


@pytest.mark.proves("X-18", "X-19")
async def test_a_relays_search_is_asked_within_anamnesis(fake: FakeRelay) -> None:
    await fill(fake)
    fake.information = {"supported_nips": [50], "memory": {"prefix_d_kinds": [78, 30078]}}
    asked: list[dict[str, Any]] = []

    async def search(visitor: Visitor, frame: list[Any]) -> None:
        """Finds what has the first word; "tide" is in too many."""
        words: list[str] = []
        for wanted in frame[2:]:
            if "search" in wanted:
                asked.append(dict(wanted))
                words.append(wanted.pop("search").split()[0])
        if not words:
            await fake.answer(visitor, frame)
            return
        if words == ["tide"]:
            await visitor.say("CLOSED", frame[1], "error: too much")
            return
        for event in fake.rows(fake.filters_in(frame)):
            if words[0] in event.content:
                await visitor.show(frame[1], event)
        await visitor.say("EOSE", frame[1])

    fake.on["REQ"] = search
    async with memory_of(fake) as memory:
        # "winds" is not in the texts as it is written here: the relay knows better.
        assert await texts(memory, 'wind "of the north" -silence') == [
            "the north wind",
            "rain and wind, rain again",
        ]
        assert memory.shortfall == ""
        # One of several words that cannot be searched for is done without, and that is said.
        assert await texts(memory, "nowhere tide silence") == ["silence"]
        assert memory.shortfall == f"{fake.url} refused to search for 'tide': error: too much"
        with pytest.raises(QueryClosed, match="too much"):
            await memory.recall("tide")
    wanted = asked[0]
    assert wanted["search"] == 'wind "of the north" -silence'
    assert sorted(wanted["kinds"]) == [78, 30078]
    assert sorted(wanted["#d"]) == ["anamnesis:memory:", "anamnesis:meta:"]
    assert 0 < wanted["limit"] <= 1_000


def test_a_question_is_asked_as_nip_50_has_it() -> None:
    question = Question.of('tide "two words" -not -"these two" lang:en a"b')
    assert question.queries() == ['tide "two words" "a b" -not -"these two"']
    (loose,) = question.loosened()
    assert loose.queries() == [f'{each} -not -"these two"' for each in ('"two words"', "tide", "b")]
    assert loose.fits("tide")
    assert not loose.fits("tide these two")
    assert not question.fits("tide two")
    assert Question.of("one").loosened() == ()


# -- files ----------------------------------------------------------------------------------------


def entry_line(content: str, **fields: Any) -> str:
    return json.dumps(
        {
            "content": content,
            "author": {"id": "x", "name": "X", "platform": "p"},
            "timestamp": "2026-02-02T16:00:00Z",
            "content_hash": content_hash(content),
            **fields,
        }
    )


async def test_a_file_is_sent_as_it_is_and_again_changes_nothing(
    fake: FakeRelay, tmp_path: Path
) -> None:
    file = tmp_path / "entries.jsonl"
    lines = [
        entry_line("a", context={"k": [1]}),
        "",
        "nope",
        entry_line("b", content_hash=A, tags="x"),
        entry_line("c", vouchers=[{"id": "v", "timestamp": "2026-02-02T16:00:00Z"}]),
        '{"content":"' + "x" * (3 << 20) + '"}',
        "[1]",
        entry_line("d", superseded_by=A),
    ]
    file.write_bytes("\n".join(lines).encode() + b'\n{"content":"\xff"}')
    read: list[tuple[int, int]] = []
    async with memory_of(fake) as memory:
        done = await memory.import_entries(
            file, group="den", progress=lambda at, total: read.append((at, total))
        )
        again = await memory.import_entries(file, group="den")
    assert (done.stored, done.duplicates, done.claims) == (3, 0, 2)
    assert done.refused == (
        "line 3: is not a JSON object",
        "line 4: content_hash does not match content; content.tags must be an array of strings",
        "line 6: over 1 MiB",
        "line 7: is not a JSON object",
        "line 9: is not a JSON object",
    )
    assert read[-1] == (file.stat().st_size, file.stat().st_size)
    assert again == done._replace(stored=0, duplicates=3)
    first = fake.events[0]
    assert (first.created_at, first.tag("h")) == (1_770_048_000, "den")
    document = json.loads(first.content)
    assert document["author"] == {"id": "x", "name": "X", "platform": "p"}
    assert document["context"] == {"k": [1]}
    claims = [
        (document.get("vouchers"), document.get("superseded_by"))
        for document in (json.loads(event.content) for event in fake.events)
    ]
    assert claims == [
        (None, None),
        ([{"id": "v", "timestamp": "2026-02-02T16:00:00Z"}], None),
        (None, A),
    ]


async def test_refused_entries_are_reported_by_line(fake: FakeRelay, tmp_path: Path) -> None:
    file = tmp_path / "entries.jsonl"
    file.write_text(f"{entry_line('a')}\n\n{entry_line('b')}\n")

    async def take(visitor: Visitor, frame: list[Any]) -> None:
        event = event_from(frame[1])
        if event.tag("x") == B:
            await visitor.say_no(event.id, "invalid: too loud")
        else:
            await fake.take(visitor, frame)

    fake.on["EVENT"] = take
    async with memory_of(fake) as memory:
        done = await memory.import_entries(file)
    assert (done.stored, done.refused) == (1, ("line 3: invalid: too loud",))


async def test_entries_that_cannot_be_events_are_not_sent(fake: FakeRelay, tmp_path: Path) -> None:
    file = tmp_path / "entries.jsonl"
    file.write_text(
        entry_line("a", context={"k": "x" * 3_000})
        + "\n"
        + entry_line("b")
        + "\n"
        + entry_line("c", timestamp="1960-02-02T16:00:00Z")
        + "\n"
    )
    fake.information = {"limitation": {"max_message_length": 3_000}}
    async with memory_of(fake) as memory:
        done = await memory.import_entries(file)
        with pytest.raises(Invalid, match="before 1970"):
            await memory.add(replace(memory.entry("c"), timestamp="1960-02-02T16:00:00Z"))
    assert done.refused == (
        "line 1: its event is over 2990 bytes",
        "line 3: timestamp is before 1970, which events cannot represent",
    )
    assert [event.tag("x") for event in fake.events] == [B]


async def test_an_export_can_be_imported(fake: FakeRelay, tmp_path: Path) -> None:
    for event in (
        told(robot, "b", at=NOW + 1, tags=("t",)),
        told(robot, "a"),
        told(rover, "a", at=NOW + 2),
        told(robot, "c", group="den"),
        vouched(alice, A),
    ):
        await fake.publish(event)
    claiming = {**json.loads(fake.events[0].content), "superseded_by": A}
    claiming["vouchers"] = [{"id": "v", "timestamp": "2026-02-02T16:00:00Z"}]
    tags = [list(tag) for tag in fake.events[0].tags]
    await fake.publish(rover.sign(78, tags, json.dumps(claiming), NOW - 1))
    await fake.publish(vouched(carol, B))
    async with memory_of(fake) as memory:
        assert await memory.export(tmp_path / "all.jsonl") == 2
        assert await memory.export(f"{tmp_path}/den.jsonl", group="den") == 1
        assert (await memory.import_entries(f"{tmp_path}/den.jsonl", group="den")).stored == 0
    found = list(entries_in(tmp_path / "all.jsonl", lambda *_: None))
    assert all(isinstance(line, Line) for line in found)
    texts_ = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [document["content"] for document in texts_] == ["b", "a"]
    assert texts_[1]["vouchers"][0]["id"] == alice.pubkey
    # … what was claimed before, too.
    assert [voucher["id"] for voucher in texts_[0]["vouchers"]] == ["v", carol.pubkey]
    assert texts_[0]["superseded_by"] == A


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "entries.jsonl"
    file.write_text("before\n")

    def broken() -> Any:
        yield "one"
        raise RuntimeError("full")

    with pytest.raises(RuntimeError):
        write_lines(file, broken())
    assert file.read_text() == "before\n"
    assert list(tmp_path.iterdir()) == [file]


# -- settings -------------------------------------------------------------------------------------


def settings_of(**table: Any) -> Any:
    return anamnesis_settings(ClientFile(tables=(("anamnesis", table),)), Path("/home/me"))


def test_the_table_of_client_toml_is_read() -> None:
    settings = settings_of(
        author_id="r2",
        author_name="R2",
        platform="moltbook",
        reputation={alice.npub: 1, bob.pubkey: 0.25},
        households=[[alice.npub, bob.pubkey], []],
    )
    author = (settings.author_id, settings.author_name, settings.platform)
    assert author == ("r2", "R2", "moltbook")
    assert settings.reputations.of == {alice.pubkey: 1.0, bob.pubkey: 0.25}
    assert settings.reputations.owner_of(bob.pubkey) == {alice.pubkey, bob.pubkey}
    assert anamnesis_settings(ClientFile(), Path("/home/me")).author_id is None


def test_every_fault_of_the_table_is_reported_without_secrets() -> None:
    with pytest.raises(ConfigFaults) as faults:
        settings_of(
            author_id=5,
            author_nam="x",
            reputation={alice.npub: 2, bob.nsec: 1},
            households=[[alice.npub], [alice.pubkey], [7]],
        )
    file = "/home/me/.config/rookery/client.toml: [anamnesis]"
    told_ = str(faults.value).splitlines()
    assert told_ == [
        f"{file} unknown key author_nam; did you mean author_name?",
        f"{file} author_id: must be a string",
        f"{file} reputation: of {alice.npub[:16]} must be a number from 0 to 1",
        f"{file} reputation: this is a secret key (nsec); a public key (npub or 64 hex) is needed",
        f"{file} households: {alice.pubkey[:16]} is in two of them",
        f"{file} households: not a public key: '' (an npub or 64 hex characters)",
    ]
    with pytest.raises(ConfigFaults, match="households: must be an array of arrays"):
        settings_of(households=["x"])
    with pytest.raises(ConfigFaults, match="reputation: must be a table"):
        settings_of(reputation=[])


# -- what leaves the cache ------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["at a start", "at a reconnect", "at a recall"])
@pytest.mark.parametrize("by", ["its author", "an admin"])
@pytest.mark.parametrize("whose", [rover, robot], ids=["another agent's", "one's own"])
async def test_what_the_relay_no_longer_gives_is_recalled_offline_no_more(
    fake: FakeRelay, tmp_path: Path, when: str, by: str, whose: SecretKey
) -> None:
    """It stayed until its hash was asked for: a search says nothing of what is cached. One's own,
    which an admin deleted or an owner banned, stayed for ever."""
    fake.information = {"supported_nips": [1, 45, 50], "name": "a fake"}

    async def search(visitor: Visitor, frame: list[Any]) -> None:
        """Finds what stands somewhere."""
        if "search" in frame[2]:
            wanted = {"kinds": [78], "ids": [e.id for e in fake.events if "stands" in e.content]}
            frame = [*frame[:2], wanted]
        await fake.answer(visitor, frame)

    fake.on["REQ"] = search
    async with memory_of(fake, whose) as author:
        hashed = await author.remember("the code of the kettle is 4711")
        await author.remember("the kettle stands in the kitchen")
    claim = next(event for event in fake.events if hashed in event.d)

    def delete() -> None:
        fake.events.remove(claim)
        if by == "its author":
            fake.events.append(whose.sign(5, [["e", claim.id]], "", NOW))

    async with memory_of(fake, folder=tmp_path) as memory:
        await memory._client.wait_connected()
        await memory.get(hashed)
        await memory.recall("kettle")
        assert left_in(memory, claim)
        if when == "at a reconnect":
            delete()
            fake.drop_connection()
            await until(lambda: not left_in(memory, claim))
        elif when == "at a recall":
            memory._checked = None, 0  # a minute has passed
            delete()
            await memory.recall("kitchen")
            assert not left_in(memory, claim)
    if when == "at a start":
        delete()
        async with memory_of(fake, folder=tmp_path) as memory:
            await until(lambda: not left_in(memory, claim))
    await fake.stop()
    async with memory_of(fake, folder=tmp_path) as memory:
        texts = [hit.memory.entry.content for hit in await memory.recall("kettle")]
        assert texts == ["the kettle stands in the kitchen"]
    await fake.start()


def left_in(memory: Anamnesis, claim: Event) -> bool:
    assert memory._cache is not None
    return claim in memory._cache.matching(Filter(ids=frozenset({claim.id})))

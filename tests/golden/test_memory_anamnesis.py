"""memory/anamnesis.json: hashes, entries, provenance, vouches, corrections, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from relay.memory.anamnesis.archive import archive_of
from relay.memory.anamnesis.checks import content_hash
from relay.memory.anamnesis.correction import resolve
from relay.memory.anamnesis.provenance import children, trace
from relay.memory.anamnesis.records import (
    Memory,
    Patch,
    Supersession,
    Vouch,
    entry_draft,
    entry_in,
    fields_of,
    record_in,
    supersession_draft,
    validated,
    vouch_draft,
)
from relay.memory.anamnesis.trust import Reputations, level_of, passed_on, trust_in, trust_score
from relay.memory.fields import compact
from relay.memory.unreadable import UnreadableRecord
from relay.nostr.event import event_from_raw
from relay.nostr.keys import SecretKey
from tests.golden import document
from tests.harness.relay_in_process import STORED, Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.memory.anamnesis.records import Record
    from relay.memory.draft import Draft
    from relay.nostr.event import Event

VECTORS = document("memory/anamnesis.json")
KEYS = VECTORS["keys"]
OWNER = KEYS["owner"]["pubkey"]
TRUSTED = VECTORS["seed_entry"]["entry"]["content_hash"]
A, B, C, D, E = [event["tags"][1][1] for event in VECTORS["dag"]["events"]]
SENT = 1_772_000_000


def event_of(vector: dict[str, Any]) -> Event:
    return event_from_raw(json.dumps(vector).encode())


def record_of(vector: dict[str, Any]) -> Record:
    record = record_in(event_of(vector))
    assert not isinstance(record, UnreadableRecord), record.why
    return record


def records_of(*vectors: dict[str, Any]) -> list[Record]:
    return [record_of(vector) for vector in vectors]


def is_as_signed(draft: Draft, vector: dict[str, Any]) -> None:
    assert draft.tags == vector["tags"]
    assert draft.content == vector["content"]
    key = SecretKey(
        bytes.fromhex(
            next(key["secret"] for key in KEYS.values() if key["pubkey"] == vector["pubkey"])
        )
    )
    assert key.sign(*draft).id == vector["id"]


@pytest.mark.proves("X-02")
@pytest.mark.parametrize("case", VECTORS["hashes"], ids=lambda case: repr(case["content"][:12]))
def test_the_hash_is_of_the_bytes_as_they_are(case: dict[str, str]) -> None:
    assert content_hash(case["content"]) == case["sha256"]


@pytest.mark.proves("X-01", "X-04")
def test_an_entry_is_written_as_its_document_has_it() -> None:
    seed = VECTORS["seed_entry"]
    entry = entry_in(seed["entry"])
    assert compact(fields_of(entry)) == seed["json"]
    is_as_signed(entry_draft(entry), seed["event"])
    assert record_of(seed["event"]) == Memory(event_of(seed["event"]), entry)


@pytest.mark.proves("X-01", "X-08")
@pytest.mark.parametrize("vector", VECTORS["dag"]["events"], ids=lambda vector: vector["id"][:8])
def test_an_entry_names_its_parents(vector: dict[str, Any]) -> None:
    record = record_of(vector)
    assert isinstance(record, Memory)
    is_as_signed(entry_draft(record.entry), vector)


@pytest.mark.proves("X-03", "X-20")
@pytest.mark.parametrize("case", VECTORS["size"], ids=lambda case: case["name"])
def test_length_is_counted_in_code_points(case: dict[str, Any]) -> None:
    character, _, times = case["content_is"].partition(" * ")
    content = character.strip("'") * int(times)
    if case["ok"]:
        assert content_hash(content) == case["sha256"]
    found = validated(
        {
            "content": content,
            "author": {"id": "a", "name": "A"},
            "timestamp": "2026-02-02T16:00:00Z",
            "content_hash": content_hash(content),
            "memory_type": "episodic",
            "tags": [],
            "confidence": 0.5,
        }
    )
    assert found.valid is case["ok"]
    if case["ok"]:
        assert list(found.warnings) == [*filter(None, [case.get("client_warning")])]


@pytest.mark.proves("X-09")
def test_provenance_is_walked_parents_first() -> None:
    archive = archive_of(records_of(*VECTORS["dag"]["events"]))
    for name in ("trace_of_C", "trace_of_E"):
        wanted = VECTORS["dag"][name]
        found = trace(wanted["hash"], archive)
        assert list(found.order) == wanted["order"]
        assert found.depth == wanted["depth"]
        assert list(found.missing) == wanted["missing"]
        assert not found.truncated
        memory = archive.original(wanted["hash"])
        assert memory is not None
        assert list(memory.entry.parents) == wanted.get("parents", list(memory.entry.parents))
    assert [memory.hash for memory in children(A, archive)] == VECTORS["dag"]["children_of_A"]


@pytest.mark.proves("X-11")
@pytest.mark.parametrize("vector", VECTORS["vouches"]["events"], ids=lambda v: v["id"][:8])
def test_a_vouch_is_written_as_its_signer_says_it(vector: dict[str, Any]) -> None:
    vouch = record_of(vector)
    assert isinstance(vouch, Vouch)
    assert vouch.claimed_id == vouch.voucher
    assert vouch.confidence is not None
    is_as_signed(
        vouch_draft(
            vouch.of,
            vouch.voucher,
            name=vouch.name,
            created_at=vector["created_at"],
            confidence=vouch.confidence,
        ),
        vector,
    )


@pytest.mark.proves("X-13", "X-14")
def test_vouchers_are_merged_into_the_document() -> None:
    wanted = VECTORS["vouches"]
    archive = archive_of(records_of(VECTORS["seed_entry"]["event"], *wanted["events"]))
    assert archive.vouchers(TRUSTED) == wanted["merged_after_all"]
    assert archive.document(TRUSTED) == {
        **VECTORS["seed_entry"]["entry"],
        "vouchers": wanted["merged_after_all"],
    }
    trust = trust_in(TRUSTED, archive, Reputations())
    assert trust is not None
    assert {"confirm": trust.confirm, "score": trust.score} == wanted["trust"]


@pytest.mark.proves("X-05")
def test_of_the_same_content_the_earliest_is_the_original() -> None:
    seed, copy = VECTORS["seed_entry"]["event"], VECTORS["same_content_other_author"]["event"]
    for rows in ([seed, copy], [copy, seed]):
        original = archive_of(records_of(*rows)).original(TRUSTED)
        assert original is not None
        assert original.event.id == seed["id"]


@pytest.mark.proves("X-15", "X-17")
def test_a_supersession_leads_to_what_holds_now() -> None:
    wanted = VECTORS["supersession"]
    for name in ("event", "by_owner"):
        found = record_of(wanted[name])
        assert isinstance(found, Supersession)
        at = wanted[name]["created_at"]
        is_as_signed(supersession_draft(found.old, found.new, created_at=at), wanted[name])
    archive = archive_of(records_of(*VECTORS["dag"]["events"], wanted["event"]))
    resolved = resolve(wanted["resolve"]["hash"], archive)
    assert resolved.current == wanted["resolve"]["current"]
    assert list(resolved.chain) == wanted["resolve"]["chain"]
    document_ = archive.document(C)
    assert document_ is not None
    assert document_["superseded_by"] == D


@pytest.mark.proves("X-14")
@pytest.mark.parametrize("row", VECTORS["trust"], ids=lambda row: f"{row['score']}")
def test_trust_is_the_sum_of_its_parts(row: dict[str, Any]) -> None:
    score = trust_score(row["confirm"], row["anchors"], row["disputes"], row["reputation"])
    assert score == row["score"]
    assert level_of(score) == row["level"]


@pytest.mark.proves("X-14")
@pytest.mark.parametrize("row", VECTORS["trust_decay"], ids=lambda row: f"{row['hops']} hops")
def test_trust_that_is_passed_on_decays(row: dict[str, Any]) -> None:
    assert passed_on(1.0, row["hops"]) == row["factor"]


@pytest.fixture(params=["reference", "sqlite"])
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    """A relay of the vectors' owner and agents that holds all their good records."""
    owner, agents = KEYS["owner"]["npub"], [KEYS["agent"]["npub"], KEYS["agent2"]["npub"]]
    policy = policy_of("open", f'[actors]\nowners = ["{owner}"]\nagents = {agents}')
    async with store_of(request.param) as store, Home(store, policy) as home:
        home.now = SENT
        yield home


GOOD = [
    VECTORS["seed_entry"]["event"],
    *VECTORS["dag"]["events"],
    *VECTORS["vouches"]["events"],
    VECTORS["same_content_other_author"]["event"],
    VECTORS["supersession"]["event"],
]


@pytest.mark.proves("X-04", "X-05", "X-07", "X-08", "X-12", "X-16", "G-04")
async def test_a_relay_takes_the_good_and_refuses_the_bad_word_for_word(home: Home) -> None:
    good = [event_of(vector) for vector in GOOD]
    assert await home.take(*good) == [STORED] * len(good)
    bad = VECTORS["bad"]
    assert await home.take(*(event_of(case["event"]) for case in bad)) == [
        (case["ok"], case["message"]) for case in bad
    ]
    cycle = VECTORS["supersession"]["cycle"]
    assert await home.take(event_of(cycle["event"])) == [(False, cycle["message"])]
    assert await home.take(event_of(VECTORS["supersession"]["by_owner"])) == [STORED]


def test_what_cannot_be_read_is_told_and_never_raised() -> None:
    for case in VECTORS["bad"]:
        record = record_in(event_of(case["event"]))
        if isinstance(record, UnreadableRecord):
            assert case["message"] in (f"invalid: {record.why}", "invalid: missing tag x")
        else:
            assert isinstance(record, Memory | Vouch | Supersession | Patch)

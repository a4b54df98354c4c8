"""A reader's archive: vouchers, trust, corrections, provenance, recall."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from relay.memory.anamnesis.archive import Archive, archive_of
from relay.memory.anamnesis.bm25 import normalised, ranks
from relay.memory.anamnesis.checks import Attestation, MemoryType, content_hash
from relay.memory.anamnesis.correction import resolve
from relay.memory.anamnesis.provenance import MAX_NODES, children, credit, trace
from relay.memory.anamnesis.recall import RecallQuery, recalled, recency_of, score_of
from relay.memory.anamnesis.records import (
    Memory,
    Supersession,
    entry_draft,
    fields_of,
    patch_draft,
    record_in,
    vouch_draft,
)
from relay.memory.anamnesis.trust import Reputations, trust_in
from relay.memory.fields import compact
from relay.memory.unreadable import UnreadableRecord
from tests.cast import alice, bob, carol, owner, robot, rover
from tests.unit.memory.anamnesis.making import (
    NOON,
    entry_of,
    patched,
    read,
    superseded,
    told,
    vouched,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

A, B, C, D = (content_hash(text) for text in "abcd")
DAY = 86_400


def archive(*events: Event) -> Archive:
    records = [record_in(event) for event in events]
    assert not [record for record in records if isinstance(record, UnreadableRecord)]
    return archive_of(
        [record for record in records if not isinstance(record, UnreadableRecord)], {owner.pubkey}
    )


def document(hashed: str, *events: Event) -> dict[str, Any]:
    found = archive(*events).document(hashed)
    assert found is not None
    return found


# -- the document ---------------------------------------------------------------------------------


@pytest.mark.proves("X-01")
def test_an_entry_is_read_as_it_was_written() -> None:
    entry = entry_of(
        "a",
        memory_type=MemoryType.SEMANTIC,
        parents=(B,),
        confidence=0,
        tags=("t", "é"),
        context={"deep": [1]},
        more_of_author={"platform": "p", "age": 3},
        anchors=("https://x",),
        group="tea",
    )
    draft = entry_draft(entry)
    assert [tag[0] for tag in draft.tags] == ["d", "x", "X", "t", "t", "t", "r", "h"]
    assert draft.created_at == NOON
    assert "é" in draft.content
    assert read(Memory, robot.sign(*draft)).entry == entry
    with pytest.raises(ValueError, match="timestamp"):
        entry_draft(replace(entry, timestamp="today"))


@pytest.mark.proves("X-06")
def test_what_an_entry_claims_of_itself_is_shown_as_claimed_and_never_counted() -> None:
    claims = {"vouchers": [{"id": "me", "timestamp": "2026-02-02T16:00:00Z"}], "superseded_by": B}
    draft = entry_draft(entry_of("a"))
    content = compact(fields_of(entry_of("a")) | claims)
    event = robot.sign(draft.kind, draft.tags, content, draft.created_at)
    found = document(A, event)
    assert found["claimed"] == claims
    assert found["vouchers"] == []
    assert "superseded_by" not in found
    memory = read(Memory, event)
    assert json.loads(entry_draft(memory.entry).content) == fields_of(entry_of("a")) | claims
    trust = trust_in(A, archive(event), Reputations())
    assert trust is not None
    assert trust.confirm == 0


@pytest.mark.proves("X-07")
def test_the_newest_patch_of_those_who_may_replaces_fields_and_an_empty_one_undoes_it() -> None:
    entry = told(robot, "a", tags=("old",), confidence=0.5)
    patches = [
        patched(robot, A, at=NOON + 1, tags=["one"], confidence=0.9),
        patched(owner, A, at=NOON + 2, tags=["two"]),
        patched(rover, A, at=NOON + 9, tags=["nobody"]),
    ]
    assert document(A, entry, patches[0])["confidence"] == 0.9
    found = document(A, entry, *patches)
    assert (found["tags"], found["confidence"]) == (["two"], 0.5)
    assert document(A, entry, *patches, patched(robot, A, at=NOON + 3))["tags"] == ["old"]
    assert list(found)[:8] == list(fields_of(read(Memory, entry).entry))


@pytest.mark.proves("X-07")
def test_a_patch_is_written_in_the_order_of_the_fields() -> None:
    draft = patch_draft(
        A, {"context": {}, "tags": [], "memory_type": "insight", "x": 1}, created_at=NOON
    )
    assert draft.content == '{"memory_type":"insight","tags":[],"context":{}}'
    assert draft.tags == [["d", f"anamnesis:meta:{A}"], ["x", A]]


@pytest.mark.proves("X-11", "X-13")
def test_a_voucher_is_the_signer_and_another_id_is_a_claim() -> None:
    draft = vouch_draft(A, alice.pubkey, name="Alice", created_at=NOON)
    found = document(A, told(robot, "a"), bob.sign(*draft))
    assert found["vouchers"] == [
        {
            "id": bob.pubkey,
            "claimed_id": alice.pubkey,
            "name": "Alice",
            "timestamp": "2026-02-25T06:13:20Z",
            "confidence": 1.0,
        }
    ]


@pytest.mark.proves("X-12", "X-13")
def test_vouchers_come_by_time_one_of_each_confirmations_only() -> None:
    events = [
        told(robot, "a"),
        vouched(robot, A),
        vouched(carol, A, at=NOON + 1),
        vouched(alice, A, at=NOON + 2),
        vouched(bob, A, at=NOON + 3, attestation=Attestation.DISPUTE),
        vouched(rover, A, at=NOON + 4),
        vouched(rover, A, at=NOON + 5, attestation=Attestation.PARTIAL),
    ]
    for order in (events, events[::-1]):
        ids = [voucher["id"] for voucher in document(A, *order)["vouchers"]]
        assert ids == [carol.pubkey, alice.pubkey]


@pytest.mark.proves("X-12")
def test_of_two_vouches_of_one_second_the_lower_id_stands() -> None:
    two = [vouched(carol, A, confidence=0.1), vouched(carol, A, confidence=0.2)]
    lower = min(two, key=lambda event: event.id)
    for events in (two, two[::-1]):
        [vouch] = archive(*events).vouches[A]
        assert vouch.event.id == lower.id


# -- trust ----------------------------------------------------------------------------------------


def trust(*events: Event, reputations: Reputations | None = None) -> Any:
    return trust_in(A, archive(*events), reputations or Reputations())


@pytest.mark.proves("X-14")
def test_the_keys_of_one_household_are_one_voucher_and_the_authors_own_none() -> None:
    households = Reputations(
        households=(
            frozenset({robot.pubkey, rover.pubkey}),
            frozenset({alice.pubkey, bob.pubkey}),
        )
    )
    events = [told(robot, "a"), *(vouched(who, A) for who in (robot, rover, alice, bob, carol))]
    assert trust(*events).confirm == 4
    found = trust(*events, reputations=households)
    assert (found.confirm, found.disputes) == (2, 0)
    changed = vouched(bob, A, at=NOON + 5, attestation=Attestation.DISPUTE)
    found = trust(*events, changed, reputations=households)
    assert (found.confirm, found.disputes) == (1, 1)


@pytest.mark.proves("X-14")
def test_anchors_are_counted_once_and_reputation_is_the_authors() -> None:
    entry = told(robot, "a", anchors=("https://x", "https://x", "https://y"))
    known = Reputations(of={robot.pubkey: 1.0, rover.pubkey: 0.0})
    found = trust(entry, vouched(rover, A), reputations=known)
    assert str(found) == "0.7 anchored (confirm 1, disputes 0, anchors 2)"
    assert trust_in(B, archive(entry), known) is None


@pytest.mark.proves("X-14")
@pytest.mark.parametrize(
    ("votes", "score"),
    [
        ([(alice, 1.0)], 0.5),
        ([(alice, 0.5)], 0.4),
        ([(alice, 0.0)], 0.3),
        ([(bob, 1.0)], 0.34),  # reputation 0.1
        ([(bob, 1.0), (bob, 0.9)], 0.336),  # the newer one
        ([(carol, 1.0)], 0.5),  # reputation 1.0: as two
        ([(carol, 1.0), (alice, 1.0)], 0.6),  # … and a third
        ([(carol, 0.5), (alice, 0.5)], 0.5),
        ([(alice, 1.0), (bob, 1.0), (rover, 1.0)], 0.52),
    ],
)
def test_a_vote_weighs_its_confidence_times_the_reputation_of_the_voucher(
    votes: list[tuple[SecretKey, float]], score: float
) -> None:
    known = Reputations(of={bob.pubkey: 0.1, carol.pubkey: 1.0})
    events = [
        vouched(who, A, at=NOON + at, confidence=confidence)
        for at, (who, confidence) in enumerate(votes)
    ]
    assert trust(told(robot, "a"), *events, reputations=known).score == score


@pytest.mark.proves("X-14")
def test_a_dispute_weighs_as_a_vouch_does() -> None:
    known = Reputations(of={bob.pubkey: 0.1})
    for who, score in ((alice, 0.225), (bob, 0.285)):
        dispute = vouched(who, A, attestation=Attestation.DISPUTE, confidence=0.5)
        assert trust(told(robot, "a"), dispute, reputations=known).score == score


@pytest.mark.proves("X-14")
def test_the_reputation_of_an_owner_is_the_lowest_of_their_keys() -> None:
    home = (frozenset({alice.pubkey, bob.pubkey}),)
    known = Reputations(of={bob.pubkey: 0.1, alice.pubkey: 1.0}, households=home)
    found = trust(told(robot, "a"), vouched(alice, A), reputations=known)
    assert (found.confirm, found.score) == (1, 0.34)


@pytest.mark.proves("X-14")
def test_a_memory_is_trusted_no_more_than_the_weakest_of_its_sources() -> None:
    chain = [
        told(robot, "c"),
        told(robot, "b", parents=(C, D)),  # D is not known here
        told(robot, "a", parents=(B,), anchors=("https://x", "https://y")),
        vouched(alice, A),
        vouched(alice, B),
    ]
    found = trust(*chain)
    assert (found.score, found.level, found.weakest_source) == (0.3, "unverified", C)
    assert str(found).endswith(f"(confirm 1, disputes 0, anchors 2, weakest source {C[:12]})")
    found = trust(*chain, vouched(alice, C))
    assert (found.score, found.weakest_source) == (0.5, B)
    circle = told(robot, "c", parents=(A,))
    assert trust(circle, *chain[1:]).score == 0.3


class Counting(dict[str, Any]):
    """Counts what is looked up in it."""

    looked_up = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looked_up += 1
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.looked_up += 1
        return super().__contains__(key)


def test_the_work_of_a_recall_grows_with_the_parents_named_and_not_with_hits_times_parents() -> (
    None
):
    unknown = [content_hash(f"unknown {number}") for number in range(400)]
    hubs = [told(robot, f"hub {n}", parents=unknown[n * 100 : n * 100 + 100]) for n in range(4)]
    hub_hashes = [read(Memory, hub).hash for hub in hubs]
    told_hits = [told(robot, f"hit {number}", parents=hub_hashes) for number in range(60)]
    hits = [read(Memory, event).hash for event in told_hits]
    held = archive(*hubs, *told_hits, vouched(alice, hub_hashes[0]))
    counting = Counting(held.memories)
    found = recalled(
        dict.fromkeys(hits, -1.0), replace(held, memories=counting), RecallQuery(limit=60), NOON
    )
    assert len(found) == 60
    memories, parents = 64, 60 * 4 + 400
    assert counting.looked_up <= 10 * memories + 2 * parents


@pytest.mark.proves("X-14")
def test_of_sources_with_the_lowest_score_the_nearest_is_the_weakest() -> None:
    events = [
        told(robot, "d"),
        told(robot, "c"),
        told(robot, "b", parents=(D, C)),
        vouched(alice, A),
        vouched(alice, B),
    ]
    found = trust(*events, told(robot, "a", parents=(B,)))
    assert (found.score, found.weakest_source) == (0.3, D)
    found = trust(*events, told(robot, "a", parents=(B, C)))
    assert (found.score, found.weakest_source) == (0.3, C)


@pytest.mark.proves("X-14")
def test_a_correction_is_not_weakened_by_what_it_corrects() -> None:
    events = [told(robot, "b"), told(robot, "a", parents=(B,)), vouched(alice, A)]
    events += [vouched(bob, B, attestation=Attestation.DISPUTE)]
    assert trust(*events).score == 0.15
    assert trust(*events, superseded(robot, B, A)).score == 0.5


@pytest.mark.proves("X-14")
def test_a_partial_word_counts_neither_way() -> None:
    found = trust(told(robot, "a"), vouched(rover, A, attestation=Attestation.PARTIAL))
    assert (found.confirm, found.disputes, found.score) == (0, 0, 0.3)


# -- corrections ----------------------------------------------------------------------------------


@pytest.mark.proves("X-17")
def test_the_owners_correction_beats_the_authors_and_the_fork_is_told() -> None:
    events = [
        *(told(robot, text) for text in "abcd"),
        superseded(robot, A, B, at=NOON + 9),
        superseded(owner, A, C),
        superseded(robot, C, D),
        superseded(rover, D, A, at=NOON + 9),
    ]
    for order in list(permutations(events[4:]))[:6]:
        found = resolve(A, archive(*events[:4], *order))
        assert found.chain == (A, C, D)
        assert found.current == D
        assert found.forks == ((A, B),)
        assert not found.is_cycle
    assert document(A, *events)["superseded_by"] == C
    assert "superseded_by" not in document(D, *events)


@pytest.mark.proves("X-17")
def test_of_two_owners_the_newer_word_counts_then_the_lower_id() -> None:
    owners = {owner.pubkey, alice.pubkey}
    events = [superseded(owner, A, B), superseded(alice, A, C)]
    records = [
        record for event in events if not isinstance(record := record_in(event), UnreadableRecord)
    ]
    lower = min(records, key=lambda record: record.event.id)
    assert resolve(A, archive_of(records, owners)).current == lower.new  # type: ignore[union-attr]
    later = record_in(superseded(owner, A, D, at=NOON + 1))
    assert not isinstance(later, UnreadableRecord)
    assert resolve(A, archive_of([*records, later], owners)).current == D


@pytest.mark.proves("X-17")
def test_a_circle_from_another_relay_ends() -> None:
    events = [told(robot, "a"), told(robot, "b"), superseded(robot, A, B), superseded(robot, B, A)]
    found = resolve(A, archive(*events))
    assert found.chain == (A, B)
    assert found.is_cycle
    assert resolve(C, archive()).chain == (C,)


# -- provenance -----------------------------------------------------------------------------------


@pytest.mark.proves("X-09")
def test_each_ancestor_comes_once_before_its_children_in_the_order_of_parents() -> None:
    events = [
        told(robot, "a", parents=(D,)),
        told(robot, "b", parents=(A,)),
        told(rover, "c", parents=(B, A, content_hash("gone"))),
        told(robot, "d"),
    ]
    found = trace(C, archive(*events))
    assert found.order == (D, A, B, C)
    assert found.depth == 3
    assert found.missing == (content_hash("gone"),)
    assert trace(content_hash("gone"), archive()).missing == (content_hash("gone"),)


@pytest.mark.proves("X-09")
def test_parents_in_a_circle_are_walked_once() -> None:
    """The hash is of the content alone, so two memories can name each other."""
    events = [told(robot, "a", parents=(B,)), told(robot, "b", parents=(A,))]
    found = trace(A, archive(*events))
    assert found.order == (B, A)
    assert found.depth == 1
    assert not found.truncated


@pytest.mark.proves("X-09")
def test_a_walk_ends_at_ten_thousand() -> None:
    many = [content_hash(f"{number}") for number in range(MAX_NODES + 5)]
    found = trace(A, archive(told(robot, "a", parents=tuple(many))))
    assert found.truncated
    assert len(found.missing) + len(found.order) == MAX_NODES


@pytest.mark.proves("X-09", "X-10")
def test_children_are_oldest_first_and_credit_counts_the_whole_ancestry() -> None:
    events = [
        told(robot, "a", at=NOON),
        told(rover, "b", at=NOON + 2, parents=(A,), name="Rover"),
        told(robot, "c", at=NOON + 1, parents=(A,)),
        told(rover, "d", at=NOON + 3, parents=(B, C)),
        told(alice, "d", at=NOON + 9, parents=(A,)),
    ]
    held = archive(*events)
    assert [memory.hash for memory in children(A, held)] == [C, B]
    assert {(each.author, each.entries) for each in credit(D, held)} == {
        (robot.pubkey, 2),
        (rover.pubkey, 2),
    }
    assert [each.name for each in credit(B, held) if each.author == rover.pubkey] == ["Rover"]


# -- recall ---------------------------------------------------------------------------------------


def order(ranked: dict[str, float], events: Iterable[Event], **wish: Any) -> list[str]:
    return [hit.hash for hit in recalled(ranked, archive(*events), RecallQuery(**wish), NOON)]


@pytest.mark.proves("X-18")
def test_a_score_is_text_and_trust_and_recency() -> None:
    assert score_of(1, 1, 1) == 1
    assert score_of(0.5, 0.4, 0.2) == 0.43
    assert recency_of(NOON - 30 * DAY, NOON) == 0.5
    assert recency_of(NOON + 30 * DAY, NOON) == 1
    held = archive(*(told(robot, text, at=NOON - 30 * DAY) for text in "abc"))
    _, hit, _ = recalled({A: -3.0, B: -5.0, C: -1.0}, held, RecallQuery(), NOON)
    assert hit.hash == A
    assert hit.score == round(0.6 * 0.5 + 0.25 * 0.3 + 0.15 * 0.5, 6)
    assert hit.why == "text 0.50, trust 0.30 (unverified), recency 0.50"


@pytest.mark.proves("X-18")
def test_ties_go_to_the_newer_then_to_the_lowest_id() -> None:
    same = [told(robot, text, at=NOON + 5) for text in "ab"]
    newer = told(robot, "c", at=NOON + 9)
    first, second = [read(Memory, event).hash for event in sorted(same, key=lambda event: event.id)]
    assert order(dict.fromkeys([A, B, C], -1.0), [*same, newer]) == [C, first, second]


@pytest.mark.proves("X-18")
def test_copies_are_one_hit_and_do_not_vouch_for_each_other() -> None:
    events = [told(robot, "a"), told(robot, "a", at=NOON + 1), told(rover, "a", at=NOON + 2)]
    [hit] = recalled({A: -1.0}, archive(*events), RecallQuery(), NOON)
    assert hit.memory.event.id == events[0].id
    assert hit.trust.confirm == 0


@pytest.mark.proves("X-17", "X-18")
def test_what_was_superseded_is_left_out_unless_asked_for() -> None:
    events = [told(robot, "a"), told(robot, "b"), superseded(robot, A, B, at=NOON - 5)]
    ranked = {A: -2.0, B: -1.0}
    assert order(ranked, events) == [B]
    assert order(ranked, events, include_superseded=True) == [A, B]
    assert order(ranked, events, as_of=NOON - 6) == []


@pytest.mark.proves("X-18")
def test_how_well_a_text_matches_is_measured_among_what_is_wished_for() -> None:
    held = archive(told(robot, "a"), told(robot, "b"), superseded(robot, A, B, at=NOON - 5))
    ranked = {A: -2.0, B: -1.0}
    [hit] = recalled(ranked, held, RecallQuery(), NOON)
    assert (hit.hash, hit.text) == (B, 1.0)
    both = recalled(ranked, held, RecallQuery(include_superseded=True), NOON)
    assert [(hit.hash, hit.text) for hit in both] == [(A, 1.0), (B, 0.0)]


@pytest.mark.proves("X-18")
def test_wishes_narrow_what_is_found() -> None:
    events = [
        told(robot, "a", at=NOON - 9, tags=("x", "y"), confidence=0.9),
        told(rover, "b", memory_type=MemoryType.INSIGHT, tags=("z",), confidence=0.2),
        vouched(owner, A, at=NOON - 3),
    ]
    texts = {A: -2.0, B: -1.0, C: -2.0}
    wishes: list[tuple[dict[str, Any], list[str]]] = [
        ({}, [A, B]),
        ({"topics": ("q", "y")}, [A]),
        ({"memory_type": MemoryType.INSIGHT}, [B]),
        ({"min_trust": 0.5}, [A]),
        ({"min_confidence": 0.2}, [A, B]),
        ({"min_confidence": 0.3}, [A]),
        ({"authors": frozenset({rover.pubkey})}, [B]),
        ({"authors": frozenset()}, []),
        ({"as_of": NOON - 1}, [A]),
        ({"as_of": NOON - 4, "min_trust": 0.5}, []),
        ({"limit": 1}, [A]),
    ]
    for wish, found in wishes:
        assert order(texts, events, **wish) == found, wish
    events.append(patched(owner, B, at=NOON + 1, confidence=1))
    assert order(texts, events, min_confidence=1) == [B]


@pytest.mark.proves("X-18")
def test_text_scores_go_from_the_best_to_the_last() -> None:
    texts = {"a": "tea with milk", "b": "tea tea and more tea", "c": "coffee", "d": "TEA"}
    ranked = ranks("Tea?", texts)
    assert ranked.keys() == {"a", "b", "d"}
    assert ranks("tea milk", texts)["a"] < ranks("tea milk", texts)["b"]
    scores = normalised(ranks("tea milk", texts))
    assert (max(scores.values()), min(scores.values())) == (1, 0)
    assert normalised({"a": -2.0, "b": -2.0}) == {"a": 1, "b": 1}
    assert normalised({}) == {} == ranks("x", {})


@pytest.mark.proves("X-05")
def test_what_the_reader_wrote_is_not_corrected_by_whoever_tells_the_same_with_an_older_date() -> (
    None
):
    """As another relay may hold it, which checks nothing."""
    events = [
        told(robot, "a"),
        told(rover, "a", at=NOON - DAY),
        told(rover, "b"),
        superseded(rover, A, B),
        patched(rover, A, confidence=0.0),
    ]
    records = [record_in(event) for event in events]
    known = [record for record in records if not isinstance(record, UnreadableRecord)]
    for is_authoritative in (False, True):
        own = archive_of(known, reader=robot.pubkey, is_authoritative=is_authoritative)
        assert own.successor(A) is None
        assert own.metadata(A) == {}
        other = archive_of(known, reader=alice.pubkey, is_authoritative=is_authoritative)
        assert other.successor(A) is not None
    corrected = archive_of(
        [*known, read(Supersession, superseded(robot, A, C))], reader=robot.pubkey
    )
    successor = corrected.successor(A)
    assert successor is not None
    assert successor.new == C

"""memory/aman.json: Aman's kinds, their encryption, what wins, what is cut, what is refused."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from policies import load
from relay.errors import Invalid
from relay.facts import Who
from relay.memory.aman.checks import check
from relay.memory.aman.fold import Fold, Row
from relay.memory.aman.records import (
    Clear,
    Preference,
    Record,
    SharedKey,
    Subscriptions,
    Summary,
    ToolCall,
    draft_of,
    encrypted_draft_of,
    payload_hash,
    payload_of,
    record_in,
)
from relay.memory.check_options import CheckOptions
from relay.memory.systems import MEMORY_SYSTEMS
from relay.memory.unreadable import UnreadableRecord
from relay.nostr.event import event_from
from relay.nostr.keys import SecretKey
from relay.nostr.secretbox import key_from, seal, unseal
from tests.golden import document
from tests.unit.policies.facts import being

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event

VECTORS = document("memory/aman.json")
PLAIN, BOX, BAD = VECTORS["plain"], VECTORS["secretbox"], VECTORS["bad"]
KEYS = {name: SecretKey.parse(pair["nsec"]) for name, pair in VECTORS["keys"].items()}
SHARED = SharedKey(key_from(BOX["key_forms"]["hex"]), "NOSTR_SECRETBOX_KEY")
AGENT = being(Who.AGENT, Who.KNOWN)

RECORDS: dict[str, Record] = {
    "preference": Preference("user-1", "prefer_speed", 1700000000),
    "summary": Summary("group:abc", "U: کجا؟\nA: تهران ☀️", 42, 1700000001),
    "tool": ToolCall("hk", "weather", True, "sunny", "user-1", None, 1700000002),  # noqa: FBT003
    "clear": Clear("hk", None, 1700000003),
    "subs": Subscriptions("user-1", ("iran", "bitcoin"), 1700000004),
}


def events(rows: list[dict[str, Any]]) -> list[Event]:
    return [event_from(row) for row in rows]


@pytest.mark.proves("A-01", "A-02", "A-05")
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case["name"])
def test_a_record_is_the_same_event_everywhere(case: dict[str, Any]) -> None:
    record, event = RECORDS[case["name"]], event_from(case["event"])
    assert list(payload_of(record)) == list(case["payload"])
    assert orjson.loads(orjson.dumps(payload_of(record))) == case["payload"]
    assert payload_hash(case["payload"]) == case["sha256"]
    draft = draft_of(record)
    assert draft.content == case["payload_json"]
    assert KEYS["agent"].sign(*draft).id == event.id
    assert record_in(event) == record
    assert check(event, CheckOptions()) is None


@pytest.mark.proves("A-01", "A-02", "A-23")
@pytest.mark.parametrize("case", BOX["cases"], ids=lambda case: case["name"])
def test_a_sealed_record_is_the_same_event_everywhere(case: dict[str, Any]) -> None:
    record, event = RECORDS[case["name"]], event_from(case["event"])
    nonce = bytes.fromhex(case["nonce_hex"])
    assert seal(case["payload_json"], SHARED.key, nonce) == case["content"]
    assert unseal(case["content"], SHARED.key) == case["payload_json"]
    assert KEYS["agent"].sign(*encrypted_draft_of(record, SHARED.key, nonce)).id == event.id
    assert record_in(event, SHARED) == record
    assert check(event, CheckOptions()) is None


@pytest.mark.proves("A-24")
def test_every_spelling_of_the_key_is_the_same_key() -> None:
    assert {key_from(text) for text in BOX["key_forms"].values()} == {SHARED.key}


@pytest.mark.proves("A-24")
@pytest.mark.parametrize("case", BOX["bad_keys"], ids=lambda case: case["key"])
def test_a_bad_key_is_refused_with_its_text(case: dict[str, str]) -> None:
    with pytest.raises(Invalid) as refused:
        key_from(case["key"])
    assert refused.value.text == case["error"]


@pytest.mark.proves("A-23")
def test_what_was_tampered_with_is_not_unseal() -> None:
    with pytest.raises(Invalid) as refused:
        unseal(BOX["tampered"]["content"], SHARED.key)
    assert refused.value.text.startswith(BOX["tampered"]["error"])


@pytest.mark.proves("A-02")
def test_a_writer_who_leaves_null_fields_out_has_another_d() -> None:
    case = VECTORS["tool_hash_without_optional"]
    payload = orjson.loads(case["payload_json"])
    assert payload_hash(payload) == case["sha256"] != payload_hash({**payload, "group_id": None})


@pytest.mark.proves("A-07", "A-08", "A-09")
@pytest.mark.parametrize("case", VECTORS["last_write_wins"], ids=lambda case: case["name"])
def test_the_last_write_wins_whatever_comes_first(case: dict[str, Any]) -> None:
    versions = events(case.get("events") or case["events_in_id_order"])
    for order in permutations(versions):
        fold = Fold()
        for event in order:
            fold.apply(event)
        kept = fold.snapshot(event.tag("hk") or "", event.pubkey).preference
        assert kept is not None
        assert kept.id == case["kept"]


@pytest.mark.proves("A-02", "A-06", "A-07", "A-13")
def test_one_payload_sealed_twice_is_one_row_of_each_author() -> None:
    case = VECTORS["append_only"]
    first, again = events(case["events"])
    other = event_from(case["other_author_same_d"])
    assert first.d == again.d == other.d
    read = [record_in(first, SHARED), record_in(again, SHARED), record_in(other)]
    assert read == [RECORDS["tool"]] * 3
    fold = Fold(SHARED)
    assert [fold.apply(event) for event in (first, again, other)] == ["hk", None, "hk"]
    [kept] = fold.snapshot("hk", first.pubkey).tools
    assert kept.id == case["kept_if_in_this_order"]
    assert [row.id for row in fold.snapshot("hk", other.pubkey).tools] == [other.id]
    assert len(fold.snapshot("hk").tools) == 1


def values(row: Row[Any] | None, names: set[str]) -> dict[str, object] | None:
    return None if row is None else {name: getattr(row.record, name) for name in names}


@pytest.mark.proves("A-15")
def test_a_snapshot_is_cut_by_the_latest_clear() -> None:
    case = VECTORS["projection"]
    for order in (1, -1):
        fold = Fold()
        for event in events(case["events"])[::order]:
            fold.apply(event)
        found, want = fold.snapshot("proj", KEYS["agent"].pubkey), case["snapshot"]
        assert found.history_key == want["history_key"]
        assert found.preference is not None
        assert found.preference.record.preference == want["preference"]
        assert found.summary is want["summary"] is None
        tools = [values(row, set(want["tool_history"][0])) for row in found.tools]
        assert tools == want["tool_history"]
        assert [row.time for row in found.clears] == want["clears"]
        assert found.cleared_at == case["latest_clear"]
        assert found.unread == ()


@pytest.mark.proves("A-22")
def test_another_schema_version_is_taken_and_reported_as_unread(tmp_path: Path) -> None:
    case = VECTORS["unknown_version"]
    event = event_from(case["event"])
    assert case["ok"] == [True, ""]
    assert load(tmp_path, MEMORY_SYSTEMS).refusal(event, AGENT) is None
    found = record_in(event)
    assert isinstance(found, UnreadableRecord)
    assert not found.is_locked
    assert found.why == "30093 'u:preference': schema version '2', only 1 is known"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory.mktemp("policies"), MEMORY_SYSTEMS)


WHO = {
    KEYS["agent"].pubkey: AGENT,
    KEYS["owner"].pubkey: being(Who.OWNER, Who.KNOWN),
    KEYS["member"].pubkey: being(Who.KNOWN, Who.MEMBER),
}


@pytest.mark.proves("G-03", "G-04", "A-04", "A-25")
@pytest.mark.parametrize("case", BAD, ids=lambda case: case["name"])
def test_a_bad_record_is_refused_with_its_text(policy: Any, case: dict[str, Any]) -> None:
    event = event_from(case["event"])
    verdict = policy.refusal(event, WHO[event.pubkey])
    assert f"{verdict.prefix}: {verdict.text}" == case["message"]

"""Aman's records: drafts and decoding."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.aman.checks import check
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
    history_key,
    key_and_time,
    payload_hash,
    payload_of,
    record_in,
)
from relay.memory.check_options import CheckOptions
from relay.memory.unreadable import UnreadableRecord
from relay.nostr.event import Event
from relay.nostr.secretbox import seal
from tests.cast import robot
from tests.unit.memory.aman.making import LABELS, PAYLOADS, event_of

KEY = SharedKey(bytes(range(32)), "NOSTR_SECRETBOX_KEY")
NONCE = bytes(24)
ALL = sorted(PAYLOADS)

texts = st.text()
times = st.integers(0, 2**53)
unknown = st.dictionaries(
    texts.filter(lambda name: all(name not in payload for payload in PAYLOADS.values())),
    st.none() | st.booleans() | texts | st.lists(texts),
    max_size=3,
)
maybe = st.none() | texts
records = st.one_of(
    st.builds(Preference, texts, texts, times, unknown),
    st.builds(Summary, texts, texts, times, times, unknown),
    st.builds(ToolCall, texts, texts, st.booleans(), texts, maybe, maybe, times, unknown),
    st.builds(Clear, texts, maybe, times, unknown),
    st.builds(Subscriptions, texts, st.lists(texts).map(tuple), times, unknown),
)


@pytest.mark.proves("A-01", "A-02", "A-03", "A-04")
@given(records)
def test_what_is_written_is_read_back_and_taken_by_the_relay(record: Record) -> None:
    for draft in (draft_of(record), encrypted_draft_of(record, KEY.key, NONCE)):
        event = robot.sign(*draft)
        assert record_in(event, KEY) == record
        assert key_and_time(event) == (record.history_key, record.time)
        assert check(event, CheckOptions(ts_is_created_at=True, verify_hash=True)) is None


@pytest.mark.proves("A-01")
def test_tags_have_one_order_and_enc_comes_last() -> None:
    record = Preference("hk", "tea", 7)
    tags = [["d", "hk:preference"], ["k", "aman_preference"], ["hk", "hk"], ["v", "1"], ["ts", "7"]]
    text = '{"history_key":"hk","preference":"tea","updated_at":7}'
    assert draft_of(record) == (30093, tags, text, 7)
    sealed = encrypted_draft_of(record, KEY.key, NONCE)
    assert sealed.tags == [*tags, ["enc", "secretbox-v1"]]
    assert "tea" not in sealed.content


@pytest.mark.proves("A-02")
def test_the_d_of_an_appended_record_is_the_hash_of_its_plain_text() -> None:
    tool = ToolCall(
        "hk",
        "weather",
        success=True,
        content="sunny",
        sender_id="user-1",
        group_id=None,
        created_at=1700000002,
    )
    want = "hk:74a3c70d8b877ec0452e1bb9b3ab0bfd683747757919ffbaef4e8bb4196ecd5c"
    assert draft_of(tool).d == want
    assert {encrypted_draft_of(tool, KEY.key, bytes([n] * 24)).d for n in range(3)} == {want}
    assert payload_hash(payload_of(tool)) == want.removeprefix("hk:")


@pytest.mark.proves("A-02")
def test_absent_fields_are_written_as_null_and_unknown_ones_last() -> None:
    clear = Clear("hk", None, 7, {"mood": "ü"})
    assert draft_of(clear).content == (
        '{"history_key":"hk","sender_id":null,"created_at":7,"mood":"ü"}'
    )


def test_half_a_character_is_written_as_one_that_an_event_can_hold() -> None:
    half = "cut \ud83d"
    tool = ToolCall(
        "hk",
        half,
        success=True,
        content=half,
        sender_id=None,
        group_id=half,
        created_at=7,
        more={half: [half, {"x": half}]},
    )
    draft = draft_of(tool)
    event = robot.sign(*draft)
    found = record_in(event)
    assert isinstance(found, ToolCall)
    assert (found.tool_name, found.content) == ("cut \ufffd", "cut \ufffd")
    assert found.more == {"cut \ufffd": ["cut \ufffd", {"x": "cut \ufffd"}]}
    assert check(event, CheckOptions(verify_hash=True)) is None
    assert draft.d == f"hk:{payload_hash(payload_of(tool))}"
    assert encrypted_draft_of(tool, KEY.key, NONCE).d == draft.d


@pytest.mark.proves("A-04")
def test_unknown_fields_are_kept_when_a_record_is_written_again() -> None:
    found = record_in(event_of(30093, {**PAYLOADS[30093], "mood": ["x", {"y": 1}]}))
    assert isinstance(found, Preference)
    assert orjson.loads(draft_of(found).content)["mood"] == ["x", {"y": 1}]


@pytest.mark.proves("A-03")
def test_a_history_key_is_that_of_the_group_or_of_the_sender() -> None:
    assert history_key("user-1") == "user-1"
    assert history_key("user-1", "abc") == "group:abc"
    assert history_key("user-1", "") == "group:"


@pytest.mark.proves("A-03")
@pytest.mark.parametrize(
    ("kind", "d", "hk"),
    [
        (30093, "group:a:preference", "group:a"),
        (30093, "preference", ""),
        (30093, "a:preference:preference", "a:preference"),
        (30094, "a:preference", ""),
        (30095, "group:a:b:00ff", "group:a:b"),
        (30096, "00ff", ""),
        (30097, "a:subscription_state", "a"),
    ],
)
def test_without_hk_the_suffix_of_d_is_stripped_from_the_right(kind: int, d: str, hk: str) -> None:
    assert key_and_time(event_of(kind, d=d, hk=None)).history_key == hk


def test_a_record_without_hk_is_read_by_its_d() -> None:
    assert record_in(event_of(30093, hk=None)) == Preference("hk", "tea", 7)


@pytest.mark.parametrize("kind", ALL)
def test_optional_fields_may_be_missing(kind: int) -> None:
    payload = {
        name: value
        for name, value in PAYLOADS[kind].items()
        if name not in ("sender_id", "group_id")
    }
    found = record_in(event_of(kind, payload))
    assert not isinstance(found, UnreadableRecord | Event)
    assert draft_of(found).kind == kind


@pytest.mark.parametrize("kind", [30090, 30091, 30092])
def test_documents_are_passed_through_as_they_are(kind: int) -> None:
    event = robot.sign(kind, [["d", "x"], ["enc", "secretbox-v1"]], "anything", 7)
    assert record_in(event) is event
    assert record_in(event, KEY) is event


# -- what cannot be read (A-22, A-26) -------------------------------------------------------------


def unread(event: Event, key: SharedKey | None = None) -> UnreadableRecord:
    found = record_in(event, key)
    assert isinstance(found, UnreadableRecord)
    assert found.event is event
    assert "\n" not in found.why
    return found


@pytest.mark.proves("A-26")
@pytest.mark.parametrize("kind", ALL)
def test_without_a_key_an_encrypted_row_is_locked(kind: int) -> None:
    found = unread(event_of(kind, seal("psst", KEY.key, NONCE), enc="secretbox-v1"))
    assert found.is_locked
    assert found.why == f"{kind} {LABELS[kind][1]!r}: locked, and no key is configured"


@pytest.mark.proves("A-22", "A-26")
@pytest.mark.parametrize("kind", ALL)
def test_a_wrong_key_is_told_by_event_and_source_of_the_key(kind: int) -> None:
    found = unread(event_of(kind, seal("psst", bytes(32), NONCE), enc="secretbox-v1"), KEY)
    assert found.is_locked
    assert found.why == (
        f"{kind} {LABELS[kind][1]!r}: cannot decrypt: wrong key, or the content was altered"
        " (key from NOSTR_SECRETBOX_KEY)"
    )


@pytest.mark.proves("A-26")
@pytest.mark.parametrize("kind", ALL)
def test_a_plain_row_is_read_with_a_key_too(kind: int) -> None:
    assert record_in(event_of(kind), KEY) == record_in(event_of(kind))


@pytest.mark.proves("A-26")
@pytest.mark.parametrize("key", [None, KEY])
def test_another_encryption_is_told_with_both_names(key: SharedKey | None) -> None:
    found = unread(event_of(30093, "x", enc="aes"), key)
    assert found.is_locked
    assert found.why == "30093 'hk:preference': enc is 'aes', only 'secretbox-v1' can be opened"


@pytest.mark.proves("A-22")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("psst", "content is not a JSON object"),
        ("[]", "content is not a JSON object"),
        ('{"history_key":"hk"}', "content.preference must be a string"),
        (
            '{"history_key":"psst","preference":"psst","updated_at":7}',
            "content.history_key must equal tag hk",
        ),
        (
            '{"history_key":"hk","preference":"\\ud800","updated_at":7}',
            "content is not a JSON object",
        ),
        ('{"a":' * 2000 + "1" + "}" * 2000, "content is not a JSON object"),
    ],
)
def test_a_bad_content_is_told_without_a_word_of_it(content: str, why: str) -> None:
    plain = unread(event_of(30093, content))
    sealed = unread(event_of(30093, seal(content, KEY.key, NONCE), enc="secretbox-v1"), KEY)
    assert plain.why == sealed.why == f"30093 'hk:preference': {why}"
    assert not plain.is_locked
    assert not sealed.is_locked


@pytest.mark.proves("A-05")
def test_a_subscription_state_is_read_under_any_d_but_none() -> None:
    for d in ("hk:topics", "anything"):
        assert isinstance(record_in(event_of(30097, d=d)), Subscriptions)
    assert unread(event_of(30097, d="")).why == "30097 '': d must be <hk>:subscription_state"


def test_what_others_put_into_tags_stays_on_one_short_line() -> None:
    found = unread(event_of(30095, "x", d="hk:" + "a\n" * 500, enc="b\n" * 500))
    assert len(found.why) < 500


def test_other_kinds_are_no_records_of_aman() -> None:
    assert unread(robot.sign(1, [], "x", 7)).why == "kind 1 is none of Aman's"


def test_a_shared_key_never_shows_itself() -> None:
    shown = repr(KEY)
    assert repr(KEY.key) not in shown
    assert KEY.key.hex() not in shown
    assert "NOSTR_SECRETBOX_KEY" in shown


@given(st.sampled_from(ALL), st.text(), st.booleans())
def test_reading_never_raises(kind: int, content: str, is_said_to_be_sealed: bool) -> None:  # noqa: FBT001
    enc = "secretbox-v1" if is_said_to_be_sealed else None
    assert isinstance(record_in(event_of(kind, content, enc=enc), KEY), UnreadableRecord)

"""The refusals of Aman records."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

import pytest

from relay.memory.aman.checks import check, check_lenient
from relay.memory.check_options import CheckOptions
from relay.memory.fields import compact
from tests.cast import robot
from tests.unit.memory.aman.making import PAYLOADS, event_of

ANY = CheckOptions()
ALL = sorted(PAYLOADS)
STRINGS = {
    30093: ["preference"],
    30094: ["summary"],
    30095: ["tool_name", "content"],
    30096: [],
    30097: [],
}
COUNTS = {
    30093: ["updated_at"],
    30094: ["message_count", "updated_at"],
    30095: ["created_at"],
    30096: ["created_at"],
    30097: ["updated_at"],
}
OPTIONAL = [(30095, "sender_id"), (30095, "group_id"), (30096, "sender_id")]


def said(kind: int, **fields: object) -> str | None:
    """Of a payload with these fields changed; `...` leaves one out."""
    payload = {**PAYLOADS[kind], **fields}
    left = {name: value for name, value in payload.items() if value is not ...}
    return check(event_of(kind, left), ANY)


@pytest.mark.parametrize("kind", ALL)
def test_a_right_record_is_right(kind: int) -> None:
    assert check(event_of(kind), ANY) is None


@pytest.mark.proves("A-04", "G-04")
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ALL for name in ("history_key", *STRINGS[kind])],
)
@pytest.mark.parametrize("value", [..., None, 1, True, ["x"], {}])
def test_a_text_is_a_string(kind: int, name: str, value: object) -> None:
    assert said(kind, **{name: value}) == f"content.{name} must be a string"


@pytest.mark.proves("A-04", "G-04")
@pytest.mark.parametrize(("kind", "name"), [(k, name) for k in ALL for name in COUNTS[k]])
@pytest.mark.parametrize("value", [..., None, "7", True, False, -1, 1.0, 1.5])
def test_a_count_is_an_integer_from_0_on_and_no_boolean(
    kind: int, name: str, value: object
) -> None:
    assert said(kind, **{name: value}) == f"content.{name} must be an integer"


@pytest.mark.proves("A-04")
@pytest.mark.parametrize(("kind", "name"), [(k, name) for k in ALL for name in COUNTS[k]])
@pytest.mark.parametrize("value", [0, 2**53, 2**64 - 1])
def test_any_integer_from_0_on_is_a_count(kind: int, name: str, value: int) -> None:
    assert said(kind, **{name: value}) is None


@pytest.mark.proves("A-04")
@pytest.mark.parametrize("value", [..., None, 1, 0, "true"])
def test_success_is_a_boolean(value: object) -> None:
    assert said(30095, success=value) == "content.success must be a boolean"


@pytest.mark.proves("A-04")
@pytest.mark.parametrize("value", [..., None, "tea", {}, ["tea", 1], [["tea"]]])
def test_topics_are_an_array_of_strings(value: object) -> None:
    assert said(30097, topics=value) == "content.topics must be an array of strings"


@pytest.mark.proves("A-04")
def test_topics_may_be_none() -> None:
    assert said(30097, topics=[]) is None


@pytest.mark.proves("A-04")
@pytest.mark.parametrize(("kind", "name"), OPTIONAL)
def test_an_optional_field_is_a_string_or_null_or_missing(kind: int, name: str) -> None:
    assert [said(kind, **{name: value}) for value in (..., None, "", "u")] == [None] * 4
    assert said(kind, **{name: 1}) == f"content.{name} must be a string"


@pytest.mark.proves("A-04")
@pytest.mark.parametrize("kind", ALL)
def test_unknown_fields_are_welcome(kind: int) -> None:
    assert said(kind, mood={"deep": [1]}) is None


@pytest.mark.proves("G-03")
def test_the_first_field_at_fault_is_named() -> None:
    assert check(event_of(30095, {"x": 1}), ANY) == "content.history_key must be a string"
    assert said(30095, success=1, content=1) == "content.success must be a boolean"
    assert said(30094, message_count="3", history_key="x") == (
        "content.message_count must be an integer"
    )


@pytest.mark.parametrize("kind", ALL)
def test_the_history_key_is_that_of_the_tag(kind: int) -> None:
    assert said(kind, history_key="other") == "content.history_key must equal tag hk"


@pytest.mark.proves("A-03")
def test_a_history_key_may_hold_colons() -> None:
    payload = {**PAYLOADS[30093], "history_key": "group:a:b"}
    assert check(event_of(30093, payload, d="group:a:b:preference", hk="group:a:b"), ANY) is None
    assert check(event_of(30093, payload, d="group:a:preference", hk="group:a:b"), ANY) == (
        "d must be group:a:b:preference"
    )


@pytest.mark.parametrize("content", ["", "x", "[]", "null", '"{}"', '{"a":1', '{"a":NaN}', "{}{}"])
@pytest.mark.parametrize("kind", ALL)
def test_the_content_is_a_json_object(kind: int, content: str) -> None:
    event = event_of(kind, content)
    assert check(event, ANY) == "content is not a JSON object"
    assert check_lenient(event, ANY) == "content is not a JSON object"


@pytest.mark.proves("G-05")
@pytest.mark.parametrize("kind", ALL)
def test_lenient_asks_for_a_json_object_and_nothing_more(kind: int) -> None:
    assert check_lenient(event_of(kind, "{}", d="x", k="x", v="x", ts="x"), ANY) is None
    assert check_lenient(event_of(kind, "no json", enc="rot13"), ANY) is None


@pytest.mark.proves("A-25", "G-21")
@pytest.mark.parametrize("kind", ALL)
def test_of_an_encrypted_content_only_form_and_length_are_looked_at(kind: int) -> None:
    box = b64encode(bytes(40)).decode()
    assert check(event_of(kind, box, enc="secretbox-v1"), ANY) is None
    for bad in ("", "{}", b64encode(bytes(39)).decode(), box.rstrip("="), box + "\n", "-" * 60):
        event = event_of(kind, bad, enc="secretbox-v1")
        assert check(event, ANY) == "content is not secretbox-v1"


@pytest.mark.parametrize("enc", ["", "secretbox", "secretbox-v2", "nip44"])
def test_another_encryption_is_refused(enc: str) -> None:
    assert check(event_of(30093, enc=enc), ANY) == "tag enc must be secretbox-v1"


@pytest.mark.parametrize("v", ["", "0", "00", "-1", "1.0", "one", "²", " 1"])
def test_v_is_a_positive_integer(v: str) -> None:
    assert check(event_of(30093, v=v), ANY) == "tag v must be a positive integer"


@pytest.mark.parametrize("v", ["2", "10", "9" * 30])
def test_the_content_of_another_version_is_not_looked_at(v: str) -> None:
    assert check(event_of(30093, "not even JSON", v=v), ANY) is None


@pytest.mark.parametrize("ts", ["", "x", "-1", "1.5", "²", "9" * 19])
def test_ts_is_unix_seconds(ts: str) -> None:
    assert check(event_of(30093, ts=ts), ANY) == "tag ts must be unix seconds"


@pytest.mark.proves("G-14")
def test_ts_is_not_in_the_future() -> None:
    assert check(event_of(30093, ts="900"), CheckOptions(latest=900)) is None
    assert check(event_of(30093, ts="901"), CheckOptions(latest=900)) == "ts is in the future"


@pytest.mark.proves("A-08")
def test_ts_is_created_at_where_that_is_the_rule() -> None:
    assert check(event_of(30093, ts="8"), ANY) is None
    equal = CheckOptions(ts_is_created_at=True)
    assert check(event_of(30093, ts="7"), equal) is None
    assert check(event_of(30093, ts="8"), equal) == "ts must equal created_at"


@pytest.mark.proves("A-05")
def test_a_subscription_state_may_have_any_d() -> None:
    for d in ("hk", "anything", "hk:topics", "hk2:subscription_state"):
        assert check(event_of(30097, d=d), ANY) is None


@pytest.mark.proves("A-15")
def test_what_a_row_was_written_after_are_ids() -> None:
    plain = event_of(30095, d="hk:1")
    for ids, fault in (
        ([], None),
        (["a" * 64, "b" * 64], None),
        (["a"], "tag after must name events"),
    ):
        event = robot.sign(30095, [*plain.tags, ["after", *ids]], plain.content, 7)
        assert check(event, ANY) == fault


@pytest.mark.parametrize(("kind", "end"), [(30093, "preference"), (30094, "summary")])
def test_the_d_of_a_replaceable_record_is_fixed(kind: int, end: str) -> None:
    for d in ("", "hk", "hk:", end, f"hk:{end} ", f"hk2:{end}", f"hk:hk:{end}"):
        assert check(event_of(kind, d=d), ANY) == f"d must be hk:{end}"


@pytest.mark.parametrize("kind", [30095, 30096])
def test_the_d_of_an_appended_record_begins_with_its_key(kind: int) -> None:
    for d in ("", "hk", "hk:", "hk2:1", "1"):
        assert check(event_of(kind, d=d), ANY) == "d must start with hk:"
    assert check(event_of(kind, d="hk:anything"), ANY) is None


@pytest.mark.proves("A-12")
@pytest.mark.parametrize("kind", [30095, 30096])
def test_the_hash_is_looked_at_where_that_is_asked_for(kind: int) -> None:
    asked, text = CheckOptions(verify_hash=True), compact(PAYLOADS[kind])
    right = sha256(text.encode()).hexdigest()
    assert check(event_of(kind, d=f"hk:{right}"), asked) is None
    for wrong in ("0" * 64, right[:-1], right + "0", right.upper()):
        event = event_of(kind, d=f"hk:{wrong}")
        assert check(event, asked) == "d does not match the payload hash"
        assert check(event, ANY) is None
    sealed = event_of(kind, b64encode(bytes(40)).decode(), enc="secretbox-v1")
    assert check(sealed, asked) is None
    other_fault = event_of(kind, {**PAYLOADS[kind], "created_at": "7"})
    assert check(other_fault, asked) == "content.created_at must be an integer"


@pytest.mark.parametrize("kind", [30090, 30091, 30092])
def test_documents_are_not_looked_into(kind: int) -> None:
    event = robot.sign(kind, [["d", "x"], ["k", "x"]], "no json", 7)
    assert check(event, ANY) is None
    assert check_lenient(event, ANY) is None

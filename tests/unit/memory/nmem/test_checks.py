"""The refusals of nmem records, one by one, and their order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from relay.memory.check_options import CheckOptions
from relay.memory.nmem.checks import check
from tests.unit.memory.nmem import making

if TYPE_CHECKING:
    from relay.nostr.event import Event

HASH = "0" * 64
NO_OBSERVATION = "d must be nmem:obs:<session>:<sha256 of content>"
NO_PROMPT = "d must be nmem:prompt:<session>:<sha256 of content>"
NO_RECORD = "d must be nmem:session:<id> or nmem:pin:<event id>"


def fault(event: Event) -> str | None:
    return check(event, CheckOptions())


def without(fields: dict[str, Any], name: str) -> str:
    return json.dumps({key: value for key, value in fields.items() if key != name})


def test_right_records_have_no_fault() -> None:
    assert fault(making.observation(metadata={"failed": True}, prompt=HASH)) is None
    assert fault(making.prompt()) is None
    assert fault(making.session(ended_at=making.NOW, signature=[["command", 1]])) is None
    assert fault(making.pin(HASH)) is None


@pytest.mark.parametrize("d", ["nmem:", "nmem:task:1", "nmem:session:", "nmem:session", "nmem:obs"])
def test_an_unknown_record_is_refused(d: str) -> None:
    assert fault(making.event(30078, d, "no object")) == NO_RECORD
    assert fault(making.event(78, d, "no object")) == f"{NO_OBSERVATION} or {NO_PROMPT[10:]}"


@pytest.mark.proves("M-02")
@pytest.mark.parametrize(
    "end", ["s", HASH, f"s:{HASH[1:]}", f"s:{HASH[1:]}A", f":{HASH}", f"s:{HASH}\n"]
)
def test_d_ends_with_a_session_and_a_hash_before_anything_is_read(end: str) -> None:
    assert fault(making.event(78, f"nmem:obs:{end}", "no object")) == NO_OBSERVATION
    assert fault(making.event(78, f"nmem:prompt:{end}", "no object")) == NO_PROMPT


@pytest.mark.proves("M-02")
@pytest.mark.parametrize("name", ["s:1", "a:b:c", ":", "two\nlines", f"x:{HASH}"])
def test_a_session_may_hold_a_colon(name: str) -> None:
    assert fault(making.observation(session_id=name)) is None
    assert fault(making.session(id=name)) is None


@pytest.mark.parametrize("content", ["", "no", "[]", "null", '{"a":1'])
def test_content_is_an_object(content: str) -> None:
    for kind, d in (
        (78, f"nmem:obs:s:{HASH}"),
        (78, f"nmem:prompt:s:{HASH}"),
        (30078, "nmem:session:s"),
        (30078, f"nmem:pin:{HASH}"),
    ):
        assert fault(making.event(kind, d, content)) == "content is not a JSON object"


def test_the_session_is_asked_before_the_hash() -> None:
    other = "content.session_id must equal the session in d"
    assert fault(making.event(78, f"nmem:obs:s:{HASH}", '{"session_id":"t"}')) == other
    assert fault(making.event(78, f"nmem:obs:s:{HASH}", "{}")) == other
    assert fault(making.event(78, f"nmem:obs:s:{HASH}", '{"session_id":"s"}')) == NO_OBSERVATION


def test_the_hash_is_of_the_content_as_it_was_published() -> None:
    right = making.observation()
    spaced = making.event(78, right.d, right.content.replace(": ", ":"))
    assert fault(right) is None
    assert fault(spaced) == NO_OBSERVATION


OBSERVATION_FAULTS = [
    ("prompt", 1, "a string or null"),
    ("timestamp", "now", "an integer"),
    ("timestamp", True, "an integer"),
    ("timestamp", 1.5, "an integer"),
    ("timestamp", None, "an integer"),
    ("obs_type", 1, "a string"),
    ("source_event", None, "a string"),
    ("tool_name", 1, "a string or null"),
    ("file_path", ["x"], "a string or null"),
    ("content", {}, "a string"),
    ("metadata", [1], "an object or null"),
    ("metadata", "x", "an object or null"),
]


@pytest.mark.parametrize(("name", "value", "shape"), OBSERVATION_FAULTS)
def test_a_field_of_an_observation_has_its_type(name: str, value: object, shape: str) -> None:
    assert fault(making.observation(**{name: value})) == f"content.{name} must be {shape}"


@pytest.mark.parametrize("name", ["timestamp", "obs_type", "source_event", "content"])
def test_a_field_of_an_observation_that_is_missing_is_told(name: str) -> None:
    content = without(making.OBSERVATION, name)
    assert (fault(making.hashed("nmem:obs:", content)) or "").startswith(f"content.{name} must be")


@pytest.mark.parametrize("name", ["prompt", "tool_name", "file_path", "metadata"])
def test_what_may_be_null_may_be_missing(name: str) -> None:
    assert fault(making.hashed("nmem:obs:", without(making.OBSERVATION, name))) is None


def test_the_first_wrong_field_is_the_answer() -> None:
    wrong = making.observation(content=1, timestamp=None, prompt=1)
    assert fault(wrong) == "content.prompt must be a string or null"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"timestamp": "now", "source": "x"}, "content.timestamp must be an integer"),
        ({"source": "robot", "content": 1}, "content.source must be user or agent"),
        ({"source": None}, "content.source must be user or agent"),
        ({"source": ["user"]}, "content.source must be user or agent"),
        ({"content": None}, "content.content must be a string"),
        ({"content": "ü" * 2001}, "content.content is over 2000 characters"),
    ],
)
def test_a_prompt_has_a_time_a_source_and_a_text(changed: dict[str, Any], text: str) -> None:
    assert fault(making.prompt(**changed)) == text


def test_a_prompt_is_measured_in_characters() -> None:
    assert fault(making.prompt(content="😀" * 2000)) is None


NEITHER: list[object] = [5, None, ["a", 1], {}]
"""No string, no array of strings."""


@pytest.mark.proves("M-05")
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"project": None}, "content.project must be a string"),
        ({"started_at": "1"}, "content.started_at must be an integer"),
        ({"ended_at": "1"}, "content.ended_at must be an integer"),
        ({"ended_at": making.NOW - 1}, "content.ended_at is before started_at"),
        ({"signature": {"command": 1}}, "content.signature must be an array of pairs"),
        ({"signature": [["command", "1"]]}, "content.signature must be an array of pairs"),
        ({"signature": [["command", 1, 1]]}, "content.signature must be an array of pairs"),
        ({"signature": [[1, 1]]}, "content.signature must be an array of pairs"),
        ({"summary": []}, "content.summary must be an object or null"),
        ({"summary": {"intent": None}}, "content.summary.intent must be a string"),
        *[
            (
                {"summary": {name: value}},
                f"content.summary.{name} must be a string or an array of strings",
            )
            for name in ("learned", "completed", "next_steps", "files_read", "files_edited")
            for value in NEITHER
        ],
        ({"ended_at": 1, "signature": 1, "summary": 1}, "content.ended_at is before started_at"),
        ({"signature": 1, "summary": 1}, "content.signature must be an array of pairs"),
    ],
)
def test_a_field_of_a_session_has_its_form(changed: dict[str, Any], text: str) -> None:
    assert fault(making.session(**changed)) == text


def test_a_session_is_what_d_calls_it() -> None:
    other = making.event(30078, "nmem:session:t", making.session().content)
    assert fault(other) == "content.id must equal the session in d"


@pytest.mark.proves("M-05")
def test_a_summary_may_say_little_and_its_notes_anything() -> None:
    for summary in ({}, {"learned": "one"}, {"intent": "", "notes": [{"a": [None]}]}, {"more": 1}):
        assert fault(making.session(summary=summary)) is None


@pytest.mark.parametrize("end", ["xyz", "", HASH[1:], "A" * 64, f"{HASH}0"])
def test_a_pin_names_an_event(end: str) -> None:
    assert fault(making.pin(end, "no object")) == "d must be nmem:pin:<event id>"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"pinned":1}', "content.pinned must be a boolean"),
        ('{"pinned":null}', "content.pinned must be a boolean"),
        ('{"pinned":true,"at":"now"}', "content.at must be an integer"),
        ("{}", None),
    ],
)
def test_a_pin_says_yes_or_no_and_when(content: str, text: str | None) -> None:
    assert fault(making.pin(HASH, content)) == text

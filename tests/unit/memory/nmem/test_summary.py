"""relay/memory/nmem/summary.py: what is accepted from small models."""

from __future__ import annotations

import pytest

from relay.errors import Invalid
from relay.memory.fields import compact
from relay.memory.nmem.summary import Summary, parse_summary, summary_fault, summary_from

ANSWER = '{"intent": "tea", "learned": "one", "notes": {"a": 1}}'
READ = Summary("tea", ("one",), notes={"a": 1})


@pytest.mark.proves("M-06")
@pytest.mark.parametrize(
    "answer",
    [
        ANSWER,
        f"```json\n{ANSWER}\n```",
        f"```\n{ANSWER}```",
        f"\n\n{ANSWER}\n",
        f"Here it is:\n```json\n{ANSWER}\n```\nAnything else?",
    ],
)
def test_what_stands_around_the_answer_is_no_part_of_it(answer: str) -> None:
    assert parse_summary(answer) == READ


@pytest.mark.proves("M-06")
@pytest.mark.parametrize("answer", ["", "I cannot.", "}{", "```json\n[1]\n```", '{"intent": "te'])
def test_an_answer_without_an_object_is_unusable(answer: str) -> None:
    with pytest.raises(Invalid, match="the answer holds no JSON object"):
        parse_summary(answer)


@pytest.mark.proves("M-05")
def test_an_answer_with_a_wrong_field_is_unusable() -> None:
    with pytest.raises(Invalid, match="completed must be a string or an array of strings"):
        parse_summary('{"completed": {"a": 1}}')


@pytest.mark.proves("M-05")
@pytest.mark.parametrize("value", [None, 5, ["a", None], {}])
def test_only_a_string_or_strings_are_a_list(value: object) -> None:
    assert summary_fault({"next_steps": value}) == (
        "next_steps must be a string or an array of strings"
    )


def test_a_summary_is_written_as_the_document_has_it() -> None:
    assert READ.fields() == {
        "intent": "tea",
        "learned": ["one"],
        "completed": [],
        "next_steps": [],
        "files_read": [],
        "files_edited": [],
        "notes": {"a": 1},
    }
    assert summary_from(READ.fields()) == READ


def test_what_cannot_be_stored_of_an_answer_is_replaced() -> None:
    nested = parse_summary('{"intent": "x", "notes": ' + "[" * 300 + "]" * 300 + "}")
    assert "\u2026" in compact(nested.fields())
    assert parse_summary('{"intent": "x\\ud800"}').intent == "x\ufffd"

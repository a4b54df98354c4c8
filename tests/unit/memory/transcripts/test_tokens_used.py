"""Token usage of a session (D-28); golden case: extra.json."""

from __future__ import annotations

import pytest

from relay.memory.transcripts.assembly import assembled
from relay.memory.transcripts.token_usage import Usage, usage_in
from tests.golden import HERE, document
from tests.unit.memory.transcripts.telling import line, told

RESULT = b'{"type":"result","usage":{"input_tokens":1,"output_tokens":true},"num_turns":"2"}\n'


def usage_of(data: bytes) -> Usage | None:
    return usage_in(assembled(told(data)).lines)


@pytest.mark.proves("D-28")
def test_the_golden_session_says_what_it_used() -> None:
    used = usage_of((HERE / "memory/conversation/mixed-blocks.jsonl").read_bytes())
    wanted = document("memory/conversation/expected/extra.json")["usage_of_mixed_blocks"]
    assert used is not None
    assert {name: getattr(used, name) for name in wanted} == wanted


@pytest.mark.proves("D-28")
def test_the_last_account_counts() -> None:
    last = b'{"type":"result","usage":{"input_tokens":9,"cache_read_input_tokens":5}}\n'
    used = usage_of(RESULT + last + line() + b"\xff\n" + b'"result"\n')
    assert used == Usage(9, 0, 5, 0, None, None)
    assert used.context_tokens == 14


def test_numbers_that_are_none_are_left_out() -> None:
    assert usage_of(RESULT) == Usage(1, 0, 0, 0, None, None)


def test_a_session_without_account_has_none() -> None:
    assert usage_of(line() + b'{"type":"result"}\n' + b'{"x":"result"}\n') is None

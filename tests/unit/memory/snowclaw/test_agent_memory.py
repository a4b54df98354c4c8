"""relay/memory/snowclaw: agent memory and collective memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.errors import Invalid
from relay.memory.check_options import CheckOptions
from relay.memory.snowclaw.agent_memory import AgentMemory, agent_memory_draft, agent_memory_in
from relay.memory.snowclaw.checks import check
from relay.memory.snowclaw.collective import (
    CollectiveMemory,
    Tier,
    collective_draft,
    collective_in,
)
from relay.memory.snowclaw.encryption import OwnKey, encrypted
from relay.memory.unreadable import UnreadableRecord
from tests.cast import robot
from tests.unit.memory.snowclaw.making import (
    AT,
    TAGS_OF_COLLECTIVE,
    record,
    signed,
    text_record,
)

SELF = OwnKey.of(robot)
NONCE = bytes(range(32))
RUST = CollectiveMemory(
    "rust/errors",
    "use anyhow",
    "at the edge",
    Tier.GROUP,
    "model",
    0.1 + 0.2,
    robot.pubkey,
    3,
    "a review",
    ("rust", "errors"),
    "tea",
    {"more": [1, None]},
)


@pytest.mark.proves("S-05")
@pytest.mark.parametrize(
    "memory",
    [
        AgentMemory("user:k0:profile", "prefers tabs", session="s-9"),
        AgentMemory("x", "", "daily"),
        AgentMemory("x", '{"json": 1}', "a word"),
    ],
)
def test_agent_memory_is_read_as_it_was_written(memory: AgentMemory) -> None:
    event = signed(agent_memory_draft(memory, AT))
    assert check(event, CheckOptions()) is None
    assert agent_memory_in(event) == memory


@pytest.mark.proves("S-05", "S-13")
def test_encrypted_agent_memory_says_so_in_its_last_tag() -> None:
    memory = AgentMemory("plan", "a secret", session="s-9")
    draft = encrypted(agent_memory_draft(memory, AT), SELF, NONCE)
    assert draft.tags == [
        ["d", "snowclaw:core:plan"],
        ["app", "snowclaw"],
        ["category", "core"],
        ["agent", "snowclaw"],
        ["session", "s-9"],
        ["encrypted", "nip44"],
    ]
    event = signed(draft)
    assert agent_memory_in(event, SELF) == memory
    locked = agent_memory_in(event)
    assert isinstance(locked, UnreadableRecord)
    assert locked.is_locked


@pytest.mark.proves("S-06")
def test_a_category_that_is_none_is_not_written() -> None:
    for category in ("memory", "config", "", "a:b"):
        with pytest.raises(Invalid, match="d must be snowclaw:<category>:<key>"):
            agent_memory_draft(AgentMemory("x", "y", category), AT)
    unread = agent_memory_in(record("snowclaw:memory:group:x"))
    assert isinstance(unread, UnreadableRecord)
    assert not unread.is_locked


@pytest.mark.proves("S-27")
def test_collective_memory_is_read_as_it_was_written() -> None:
    plain = replace(RUST, group=None, context=None, labels=(), extra={}, tier=Tier.PUBLIC)
    for memory in (RUST, plain):
        event = signed(collective_draft(memory, AT))
        assert check(event, CheckOptions()) is None
        assert collective_in(event) == memory
    assert event.content == '{"summary":"use anyhow","detail":"at the edge"}'


def test_collective_memory_that_says_too_little_is_reported() -> None:
    good = TAGS_OF_COLLECTIVE
    for event, why in (
        (record("snow:memory:x"), "snow:tier must be public, group or private"),
        (text_record("snow:memory:x", "[]", *good), "content is not a JSON object"),
        (record("snow:memory:x", {"detail": 1}, *good), "content.detail must be a string"),
        (record("snowclaw:core:x", None, *good), "d must be snow:memory:<topic>"),
    ):
        assert collective_in(event) == UnreadableRecord(event, why)
    locked = collective_in(text_record("snow:memory:x", "sealed", *good, ["encrypted", "nip44"]))
    assert isinstance(locked, UnreadableRecord)
    assert locked.is_locked

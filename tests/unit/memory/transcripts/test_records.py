"""Session states, commands and run configurations: drafts and decoding (D-27)."""

from __future__ import annotations

from typing import Any

import pytest

from relay.memory.transcripts.records import (
    RunConfiguration,
    SessionCommand,
    SessionState,
    Status,
    Verb,
    command_draft,
    command_of,
    configuration_draft,
    configuration_of,
    state_draft,
    state_of,
)
from relay.memory.unreadable import UnreadableRecord
from relay.nostr.event import Event, event_from
from tests.cast import robot
from tests.golden import document

EXTRA = document("memory/conversation/expected/extra.json")


def signed(kind: int, *tags: list[str]) -> Event:
    return robot.sign(kind, list(tags), "", 1)


def is_as_golden(draft: Any, fields: dict[str, Any]) -> bool:
    golden = (fields["kind"], fields["tags"], fields["content"], fields["created_at"])
    return bool(draft == golden)


@pytest.mark.proves("D-27")
def test_a_state_goes_there_and_back() -> None:
    state = state_of(event_from(EXTRA["state"]))
    assert isinstance(state, SessionState)
    assert (state.title, state.status, state.custom_title) == (
        "Reading files",
        Status.WORKING,
        None,
    )
    assert (state.permission_mode, state.home_dir) == ("default", "/home/dev")
    assert is_as_golden(state_draft(state, EXTRA["state"]["created_at"]), EXTRA["state"])


@pytest.mark.proves("D-27")
def test_a_state_that_says_more_has_its_tags_in_order() -> None:
    state = SessionState("s", custom_title="mine", indicator="red", spawn_id="x")
    draft = state_draft(state, 7)
    assert [tag[0] for tag in draft.tags] == [
        "d",
        "title",
        "custom_title",
        "cwd",
        "status",
        "indicator",
        "hostname",
        "home_dir",
        "backend",
        "permission-mode",
        "cli_session",
        "spawn_id",
        "t",
        "t",
        "source",
    ]
    assert state_of(robot.sign(*draft)) == state


@pytest.mark.proves("D-27")
@pytest.mark.parametrize(
    "status", ["idle", "working", "needs_input", "error", "done", "pending", "deleted"]
)
def test_each_status_is_read(status: str) -> None:
    state = state_of(signed(31988, ["d", "s"], ["status", status]))
    assert isinstance(state, SessionState)
    assert state.status.value == status
    assert state_of(signed(31988, ["d", "s"])) == SessionState("s", source="")


@pytest.mark.proves("D-27")
@pytest.mark.parametrize("verb", ["spawn_session", "resume_session"])
def test_each_command_is_read(verb: str) -> None:
    command = command_of(signed(31989, ["d", "c"], ["command", verb]))
    assert isinstance(command, SessionCommand)
    assert command.verb.value == verb


@pytest.mark.proves("D-27")
def test_a_command_goes_there_and_back() -> None:
    command = command_of(event_from(EXTRA["command"]))
    assert isinstance(command, SessionCommand)
    assert (command.verb, command.prompt) == (Verb.SPAWN, "Fix the build")
    assert is_as_golden(command_draft(command, EXTRA["command"]["created_at"]), EXTRA["command"])
    resume = SessionCommand("c", Verb.RESUME, session_id="s", resume_session_id="r")
    assert command_of(robot.sign(*command_draft(resume, 1))) == resume


@pytest.mark.proves("D-27")
@pytest.mark.parametrize("fields", EXTRA["run_config"], ids=["there", "deleted"])
def test_a_run_configuration_goes_there_and_back(fields: dict[str, Any]) -> None:
    configuration = configuration_of(event_from(fields))
    assert isinstance(configuration, RunConfiguration)
    assert configuration.is_deleted is any(tag[0] == "deleted" for tag in fields["tags"])
    assert is_as_golden(configuration_draft(configuration, fields["created_at"]), fields)


def test_what_cannot_be_read_is_reported() -> None:
    for found, why in (
        (state_of(signed(31988)), "no tag d"),
        (state_of(signed(31988, ["d", "s"], ["status", "dancing"])), "tag status is unknown"),
        (command_of(signed(31989, ["command", "spawn_session"])), "no tag d"),
        (command_of(signed(31989, ["d", "c"], ["command", "explode"])), "tag command is unknown"),
        (command_of(signed(31989, ["d", "c"])), "tag command is unknown"),
        (configuration_of(signed(31991)), "no tag d"),
    ):
        assert isinstance(found, UnreadableRecord)
        assert found.why == why

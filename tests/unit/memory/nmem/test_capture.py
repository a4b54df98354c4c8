"""relay/memory/nmem/capture.py: hooks, projects and thinking blocks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from relay.errors import Invalid
from relay.memory.check_options import CheckOptions
from relay.memory.junk import core_of
from relay.memory.nmem import capture
from relay.memory.nmem.capture import (
    Captured,
    Ending,
    HookEvent,
    captured,
    hook_in,
    project_at,
    thoughts_in,
)
from relay.memory.nmem.checks import check
from relay.memory.nmem.records import (
    Observation,
    Prompt,
    Session,
    Source,
    observation_draft,
    prompt_draft,
)
from relay.memory.secrets import SecretFilter
from tests.cast import robot
from tests.contract.writing import unsigned
from tests.unit.memory.nmem.making import NOW

if TYPE_CHECKING:
    from pathlib import PurePath

SECRETS = SecretFilter()
CHANCE = "q8Zr4TnX2vLk9WsB7yHd3Mf"


def hooked(event: str, **fields: Any) -> tuple[Captured, ...]:
    text = json.dumps({"session_id": "s", "hook_event_name": event, **fields})
    return captured(hook_in(text), NOW, "rook", SECRETS, prompt="p" * 64)


def called(tool: str, event: str = "PostToolUse", **fields: Any) -> Observation:
    [seen] = hooked(event, tool_name=tool, **fields)
    assert isinstance(seen, Observation)
    return seen


# -- the JSON of a hook ---------------------------------------------------------------------------


@pytest.mark.proves("M-13")
def test_a_hook_may_be_named_by_the_command() -> None:
    text = '{"session_id":"s","hook_event_name":"Stop"}'
    assert hook_in(text).event is HookEvent.STOP
    assert hook_in(text, "SessionStart").event is HookEvent.SESSION_START


def test_a_hook_may_name_a_transcript() -> None:
    text = '{"session_id":"s","hook_event_name":"Stop","transcript_path":"/t.jsonl"}'
    assert hook_in(text).transcript_path == "/t.jsonl"
    assert hook_in(text.replace("/t.jsonl", "")).transcript_path is None


@pytest.mark.proves("M-13")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the hook is not a JSON object"),
        ("[]", "the hook is not a JSON object"),
        ('{"session_id":"s"', "the hook is not a JSON object"),
        ('{"session_id":"s"}', "no hook is called ''"),
        ('{"session_id":"s","hook_event_name":"PreCompact"}', "no hook is called 'PreCompact'"),
        ('{"session_id":"s","hook_event_name":["Stop"]}', "no hook is called ''"),
        ('{"hook_event_name":"Stop"}', "session_id must be a string"),
        ('{"session_id":7,"hook_event_name":"Stop"}', "session_id must be a string"),
    ],
)
def test_garbage_is_no_hook(text: str, why: str) -> None:
    with pytest.raises(Invalid) as refused:
        hook_in(text)
    assert refused.value.text == why


def test_fields_of_a_wrong_type_are_as_good_as_missing() -> None:
    seen = called("Read", tool_input="no", cwd=7)
    assert (seen.content, seen.file_path) == ("Read", None)


# -- what is recorded -----------------------------------------------------------------------------


@pytest.mark.proves("M-14")
def test_a_session_starts_and_says_why() -> None:
    assert hooked("SessionStart", source="startup") == (Session("s", "rook", NOW),)
    session, seen = hooked("SessionStart", source="compact")
    assert session == Session("s", "rook", NOW)
    assert seen == Observation("s", NOW, "session_compact", "SessionStart", "compact")


@pytest.mark.proves("M-15")
def test_a_prompt_is_cut_and_freed_of_secrets() -> None:
    [said] = hooked("UserPromptSubmit", prompt=f"password=x {'ü' * 3000}")
    assert isinstance(said, Prompt)
    assert said == Prompt("s", NOW, Source.USER, f"[REDACTED] {'ü' * 1989}")
    [full] = hooked("UserPromptSubmit", prompt=f"{'ü ' * 995} token=a")
    assert isinstance(full, Prompt)
    assert len(full.content) == 2000


@pytest.mark.proves("M-15")
@pytest.mark.parametrize("prompt", ["", " \n", "<system-reminder>x</system-reminder>", 7, None])
def test_what_no_user_said_is_no_prompt(prompt: object) -> None:
    assert hooked("UserPromptSubmit", prompt=prompt) == ()


@pytest.mark.proves("M-16")
def test_a_call_follows_from_the_newest_prompt() -> None:
    seen = called("Edit", tool_input={"file_path": "/a"})
    assert seen == Observation(
        "s", NOW, "file_edit", "PostToolUse", "/a", "Edit", "/a", None, "p" * 64
    )


@pytest.mark.proves("M-16")
def test_a_command_is_cut() -> None:
    assert called("Bash", tool_input={"command": "x" * 600}).content == "x" * 500
    assert called("Task", tool_input={"prompt": "x " * 600}).content == "x " * 100


@pytest.mark.proves("M-16")
def test_the_name_of_a_tool_is_no_secret() -> None:
    name = "mcp__claude_Browser7__takeScreenshotQz"
    seen = called(name)
    assert (seen.content, seen.metadata, seen.obs_type) == (name, None, "mcp_call")


@pytest.mark.proves("M-18", "M-30")
def test_what_was_taken_out_is_marked() -> None:
    seen = called("Bash", tool_input={"command": f"curl -u {CHANCE} x"})
    assert (seen.content, seen.metadata) == ("curl -u [REDACTED] x", {"redacted": True})


@pytest.mark.proves("M-30")
def test_a_secret_across_the_cut_is_not_cut_in_two() -> None:
    url = "postgres://admin:hunter2hunter2@db/x"
    seen = called("Bash", tool_input={"command": "x" * 470 + " " + url})
    assert seen.content == "x" * 470 + " [REDACTED]"


@pytest.mark.proves("M-18", "M-30")
def test_what_git_said_is_freed_of_secrets() -> None:
    said = "To https://me:hunter2@git.example.org/r.git\n   abc1234..def5678  main -> main\n"
    seen = called(
        "Bash", tool_input={"command": "git push"}, tool_response={"stdout": "", "stderr": said}
    )
    assert seen.metadata == {
        "remote_url": "[REDACTED]git.example.org/r.git",
        "hash_range": "abc1234..def5678",
        "branch": "main",
    }


@pytest.mark.proves("M-18")
def test_a_call_that_failed_keeps_what_it_answered() -> None:
    seen = called(
        "Bash",
        "PostToolUseFailure",
        tool_input={"command": "git push"},
        tool_response=f"{'no ' * 700}{CHANCE}",
    )
    assert seen.metadata == {"failed": True, "response": ("no " * 700)[:2000]}
    assert seen.source_event == "PostToolUseFailure"
    other = called("Bash", "PostToolUseFailure", tool_input={"command": CHANCE}, error="no")
    assert other.metadata == {"failed": True, "response": "no", "redacted": True}


@pytest.mark.proves("M-30")
def test_a_path_is_freed_of_secrets_too() -> None:
    seen = called("Read", tool_input={"file_path": "/x/token=abc"})
    assert seen.file_path == seen.content == "/x/[REDACTED]"


def test_a_stop_ends_the_session() -> None:
    assert hooked("Stop") == (Ending("s", NOW),)


def test_the_same_hook_twice_is_one_record() -> None:
    first, again = (called("Bash", tool_input={"command": "ls"}) for _ in range(2))
    assert observation_draft(first, "rook").d == observation_draft(again, "rook").d


@pytest.mark.parametrize("text", ["\ud83d", "a\x00b", "a\u2028b", "😀" * 2001, "'\"\\", "{" * 900])
def test_whatever_an_agent_says_makes_a_right_record(text: str) -> None:
    drafts = [
        *(
            prompt_draft(each)
            for each in hooked("UserPromptSubmit", prompt=text)
            if isinstance(each, Prompt)
        ),
        observation_draft(called("Bash", tool_input={"command": text}), "rook"),
        observation_draft(called("Read", tool_input={"file_path": text}), "rook"),
        observation_draft(called("Bash", "PostToolUseFailure", tool_response=text), "rook"),
        observation_draft(called(text), "rook"),
    ]
    assert len(drafts) == 5
    for draft in drafts:
        assert check(unsigned(robot, draft.kind, draft.tags, draft.content), CheckOptions()) is None


# -- the project ----------------------------------------------------------------------------------


@pytest.mark.proves("M-21")
@pytest.mark.parametrize(
    ("cwd", "roots", "project"),
    [
        ("/w/rook/src/deep", {"/w/rook", "/w"}, "rook"),
        ("/w/rook", {"/w/rook"}, "rook"),
        ("/w/rook/src", set(), "src"),
        ("/w/rook/src/", set(), "src"),
        ("", {"/"}, "unknown"),
        ("/", set(), "unknown"),
        ("/home/me", set(), "home"),
        ("/home/me/", set(), "home"),
        ("/home/me/notes", {"/home/me"}, "home"),
        ("/home/me/notes", set(), "notes"),
    ],
)
def test_a_project_is_called_after_its_root(cwd: str, roots: set[str], project: str) -> None:
    def is_root(folder: PurePath) -> bool:
        return str(folder) in roots

    assert project_at(cwd, "/home/me", is_root) == project


def test_above_a_path_that_is_too_long_no_root_is_looked_for() -> None:
    """200 kB of folders took 20 GB."""
    looked: list[PurePath] = []

    def is_root(folder: PurePath) -> bool:
        looked.append(folder)
        return False

    assert project_at("/a" * 2_049, "/home/me", is_root) == "a"
    assert len(looked) == 1


# -- thoughts -------------------------------------------------------------------------------------


def line(*thoughts: str, kind: str = "assistant", **more: Any) -> bytes:
    blocks = [{"type": "thinking", "thinking": text} for text in thoughts]
    said = {"type": kind, "message": {"content": [{"type": "text", "text": "no"}, *blocks]}}
    return json.dumps({**said, **more}).encode()


def thoughts(*lines: bytes, known: tuple[str, ...] = ()) -> list[Prompt]:
    return list(thoughts_in(lines, "s", NOW, SECRETS, known))


@pytest.mark.proves("M-19")
def test_thoughts_become_prompts_of_the_agent() -> None:
    stamp = "2026-02-25T06:13:10.500Z"
    assert thoughts(line(" hm\n", "so", timestamp=stamp)) == [
        Prompt("s", 1_771_999_990, Source.AGENT, "hm"),
        Prompt("s", 1_771_999_990, Source.AGENT, "so"),
    ]


@pytest.mark.proves("M-19")
def test_a_thought_is_cut_freed_of_secrets_and_said_once() -> None:
    found = thoughts(
        line("x " * 2000), line(f"it is {CHANCE}"), line("a"), line("a"), line("b"), known=("b",)
    )
    assert [each.content for each in found] == ["x " * 1000, "it is [REDACTED]", "a"]


def test_known_thoughts_are_read_for_a_thought_only_and_each_compared_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def noted(text: str) -> tuple[str, ...]:
        compared.append(text)
        return core_of(text)

    monkeypatch.setattr(capture, "core_of", noted)
    known = [f"known only here {number}" for number in range(50)]
    read = iter(known)
    assert list(thoughts_in([b"{}", line()], "s", NOW, SECRETS, read)) == []
    assert next(read) == known[0], "nothing was read"
    for number in range(3):
        said = line(f"new here {number}", "Known ONLY here, 7.")
        found = [each.content for each in thoughts(said, known=tuple(known))]
        assert found == [f"new here {number}"]
    assert len(compared) <= 54


@pytest.mark.proves("M-19")
@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xff\xfe",
        b'{"thinking"',
        line("x", kind="user"),
        line("  "),
        line(),
        b'{"type":"assistant","message":"thinking"}',
        b'{"type":"assistant","message":{"content":"thinking"}}',
        b'{"type":"assistant","message":{"content":[["thinking"],{"type":"thinking"}]}}',
        b'["thinking"]',
    ],
    ids=str,
)
def test_a_line_without_a_thought_gives_nothing_and_stops_nothing(bad: bytes) -> None:
    assert [each.content for each in thoughts(bad, line("after"))] == ["after"]


@pytest.mark.parametrize(
    "stamp", [None, 7, "", "yesterday", "2026-02-25T06:13:10", "0001-01-01T00:00:00Z"]
)
def test_a_line_without_a_time_is_of_now(stamp: object) -> None:
    assert [each.timestamp for each in thoughts(line("x", timestamp=stamp))] == [NOW]

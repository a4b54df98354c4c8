"""relay/memory/nmem/tools.py: types, titles and git facts of tool calls."""

from __future__ import annotations

import pytest

from relay.memory.nmem.records import ObsType
from relay.memory.nmem.tools import (
    classify_bash,
    classify_tool,
    file_of,
    git_facts,
    response_text,
    title_of,
)


@pytest.mark.proves("M-17")
@pytest.mark.parametrize(
    ("command", "obs_type"),
    [
        ("git push && git commit -m x", "git_push"),
        ("gh pr create; git commit -m x", "git_commit"),
        ("cd /p && git -c a=b commit --amend", "git_commit"),
        ("push git", "command"),
        ("git log; push", "command"),
        ("legit push", "command"),
        ("gh", "github"),
        ("GH_TOKEN=x gh pr list", "command"),
        ("make && gh run watch", "github"),
    ],
)
def test_a_command_is_what_its_words_say(command: str, obs_type: str) -> None:
    assert classify_bash(command) == obs_type


@pytest.mark.proves("M-17")
def test_a_tool_of_a_server_is_a_call_of_it() -> None:
    assert classify_tool("mcp__files__read", {}) is ObsType.MCP_CALL
    assert classify_tool("Bash", {}) is ObsType.COMMAND
    assert classify_tool("Bash", {"command": ["git", "push"]}) is ObsType.COMMAND
    assert classify_tool("", {}) is ObsType.TOOL_OTHER


@pytest.mark.proves("M-16")
@pytest.mark.parametrize(
    ("tool", "given", "title", "file"),
    [
        ("Bash", {"command": "ls"}, ("ls", 500), None),
        ("Read", {"file_path": "/a"}, ("/a", 2000), "/a"),
        ("Write", {"file_path": "/a", "content": "no"}, ("/a", 2000), "/a"),
        ("Edit", {"file_path": "/a"}, ("/a", 2000), "/a"),
        ("Grep", {"pattern": "x", "path": "/a"}, ("x in /a", 2000), "/a"),
        ("Grep", {"pattern": "x"}, ("x", 2000), None),
        ("Glob", {"pattern": "*.py", "path": "/a"}, ("*.py", 2000), "/a"),
        ("Task", {"description": "d", "prompt": "p"}, ("d", 200), None),
        ("Task", {"prompt": "p"}, ("p", 200), None),
        ("WebFetch", {"url": "https://x"}, ("https://x", 2000), None),
        ("WebSearch", {"query": "tea"}, ("tea", 2000), None),
        (
            "AskUserQuestion",
            {"questions": [{"question": "A?"}, {"question": "B?"}]},
            ("A?", 2000),
            None,
        ),
        ("AskUserQuestion", {"questions": ["A?"]}, None, None),
        ("TodoWrite", {"todos": []}, None, None),
        ("Bash", {}, None, None),
        ("Read", {"file_path": 7}, None, None),
    ],
)
def test_a_call_has_a_title_and_perhaps_a_file(
    tool: str, given: dict[str, object], title: tuple[str, int] | None, file: str | None
) -> None:
    assert title_of(tool, given) == title
    assert file_of(tool, given) == file


def test_bash_answers_with_two_streams() -> None:
    assert response_text({"stdout": "a", "stderr": "b", "interrupted": False}) == "a\nb"
    assert response_text({"stdout": "", "stderr": "b"}) == "b"
    assert response_text("a") == "a"
    assert response_text({"type": "text"}) == '{"type":"text"}'
    assert response_text(None) == ""
    assert response_text([{"type": "text"}]) == '[{"type":"text"}]'
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    assert response_text(deep) == ""


COMMITTED = "[main (root-commit) abc1234] first [x] y\n 1 file changed, 2 insertions(+)\n"
PUSHED = "To https://git.example.org/r.git\n * [new branch]      tea -> tea\n"


@pytest.mark.proves("M-18")
def test_git_says_what_was_committed() -> None:
    assert git_facts(ObsType.GIT_COMMIT, COMMITTED) == {
        "branch": "main",
        "commit_hash": "abc1234",
        "commit_message": "first [x] y",
        "files_changed": 1,
        "insertions": 2,
    }
    assert git_facts(ObsType.GIT_COMMIT, "[detached HEAD 0123abc] x")["branch"] == "detached HEAD"
    assert git_facts(ObsType.GIT_COMMIT, "nothing to commit, working tree clean") == {}
    assert git_facts(ObsType.COMMAND, COMMITTED) == {}


@pytest.mark.proves("M-18")
def test_git_says_what_was_pushed() -> None:
    assert git_facts(ObsType.GIT_PUSH, PUSHED) == {
        "remote_url": "https://git.example.org/r.git",
        "branch": "tea",
    }
    forced = "To x:r\n + abc1234...def5678 HEAD -> main (forced update)\n"
    assert git_facts(ObsType.GIT_PUSH, forced) == {
        "remote_url": "x:r",
        "hash_range": "abc1234...def5678",
        "branch": "main",
    }
    assert git_facts(ObsType.GIT_PUSH, "Everything up-to-date") == {}


def test_a_commit_that_is_pushed_at_once_keeps_what_it_was() -> None:
    facts = git_facts(ObsType.GIT_PUSH, COMMITTED + PUSHED)
    assert (facts["commit_hash"], facts["branch"]) == ("abc1234", "tea")

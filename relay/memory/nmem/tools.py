"""Tool calls: type, title, file and git facts (M-16…M-18)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from relay.memory.fields import compact
from relay.memory.nmem.records import ObsType

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES: Final[Mapping[str, ObsType]] = {
    "Read": ObsType.FILE_READ,
    "Write": ObsType.FILE_WRITE,
    "Edit": ObsType.FILE_EDIT,
    "Grep": ObsType.SEARCH,
    "Glob": ObsType.SEARCH,
    "Task": ObsType.TASK_SPAWN,
    "WebFetch": ObsType.WEB_FETCH,
    "WebSearch": ObsType.WEB_SEARCH,
}

_COMMAND: Final = 500
_TASK: Final = 200
_OTHER: Final = 2000
"""Maximum characters of a title."""


def classify_tool(name: str, arguments: Mapping[str, object]) -> ObsType:
    """The observation type of a call; `arguments`: the tool's input."""
    if name == "Bash":
        return classify_bash(_text(arguments, "command"))
    if "__" in name:
        return ObsType.MCP_CALL
    return _TYPES.get(name, ObsType.TOOL_OTHER)


def classify_bash(command: str) -> ObsType:
    """By the words of each segment; a push takes precedence over a commit, a commit over `gh`."""
    found = {_type_of_segment(segment.split()) for segment in re.split("&&|;", command)}
    for obs_type in (ObsType.GIT_PUSH, ObsType.GIT_COMMIT, ObsType.GITHUB):
        if obs_type in found:
            return obs_type
    return ObsType.COMMAND


def _type_of_segment(words: list[str]) -> ObsType:
    if "git" in words:
        after = words[words.index("git") + 1 :]
        if "push" in after:
            return ObsType.GIT_PUSH
        if "commit" in after:
            return ObsType.GIT_COMMIT
    return ObsType.GITHUB if words[:1] == ["gh"] else ObsType.COMMAND


def title_of(name: str, arguments: Mapping[str, object]) -> tuple[str, int] | None:
    """(title, maximum characters) of a call; None: use the tool's name."""
    text, limit = _title(name, arguments)
    return (text, limit) if text else None


def _title(name: str, arguments: Mapping[str, object]) -> tuple[str, int]:
    match name:
        case "Bash":
            return _text(arguments, "command"), _COMMAND
        case "Read" | "Write" | "Edit":
            return _text(arguments, "file_path"), _OTHER
        case "Grep":
            pattern, path = _text(arguments, "pattern"), _text(arguments, "path")
            return f"{pattern} in {path}" if path else pattern, _OTHER
        case "Glob":
            return _text(arguments, "pattern"), _OTHER
        case "Task":
            return _text(arguments, "description") or _text(arguments, "prompt"), _TASK
        case "WebFetch":
            return _text(arguments, "url"), _OTHER
        case "WebSearch":
            return _text(arguments, "query"), _OTHER
        case "AskUserQuestion":
            return _first_question(arguments), _OTHER
        case _:
            return "", _OTHER


def file_of(name: str, arguments: Mapping[str, object]) -> str | None:
    match name:
        case "Read" | "Write" | "Edit":
            return _text(arguments, "file_path") or None
        case "Grep" | "Glob":
            return _text(arguments, "path") or None
        case _:
            return None


def _first_question(arguments: Mapping[str, object]) -> str:
    questions = arguments.get("questions")
    if isinstance(questions, list) and questions and isinstance(questions[0], dict):
        return _text(questions[0], "question")
    return _text(arguments, "question")


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def response_text(response: object) -> str:
    """A tool's response as text; Bash returns two streams."""
    if isinstance(response, str):
        return response
    if isinstance(response, dict):
        streams = [_text(response, name) for name in ("stdout", "stderr")]
        if any(streams):
            return "\n".join(stream for stream in streams if stream)
    try:
        return "" if response is None else compact(response)
    except TypeError:  # nested too deeply
        return ""


# -- output of git ------------------------------------------------------------------------------

_COMMITTED: Final = re.compile(
    r"^\[(?P<branch>[^\]\n]+?)(?: \(root-commit\))? (?P<hash>[0-9a-f]{4,64})\] (?P<message>.*)$",
    re.MULTILINE,
)
_COUNTED: Final = (
    ("files_changed", re.compile(r"^ (\d{1,9}) files? changed", re.MULTILINE)),
    ("insertions", re.compile(r" (\d{1,9}) insertions?\(\+\)")),
    ("deletions", re.compile(r" (\d{1,9}) deletions?\(-\)")),
)
_CREATED: Final = re.compile(r"^ create mode \d{6} (.+)$", re.MULTILINE)
_REMOTE: Final = re.compile(r"^To (\S+)$", re.MULTILINE)
_PUSHED: Final = re.compile(r"^ [ +*=!-] (?P<range>\S+) +\S+ -> (?P<branch>\S+)", re.MULTILINE)
_NEW: Final = re.compile(r"^ \* \[new \w+\] +\S+ -> (?P<branch>\S+)", re.MULTILINE)


def git_facts(obs_type: ObsType, output: str) -> dict[str, object]:
    """Facts in git's output about a commit or push; one command may do both."""
    match obs_type:
        case ObsType.GIT_COMMIT:
            return _commit(output)
        case ObsType.GIT_PUSH:
            return _commit(output) | _push(output)
        case _:
            return {}


def _commit(output: str) -> dict[str, object]:
    found = _COMMITTED.search(output)
    if found is None:
        return {}
    facts: dict[str, object] = {
        "branch": found["branch"],
        "commit_hash": found["hash"],
        "commit_message": found["message"],
    }
    for name, counted in _COUNTED:
        number = counted.search(output)
        if number is not None:
            facts[name] = int(number[1])
    created = _CREATED.findall(output)
    return facts | ({"new_files": created} if created else {})


def _push(output: str) -> dict[str, object]:
    facts: dict[str, object] = {}
    remote, pushed, new = (each.search(output) for each in (_REMOTE, _PUSHED, _NEW))
    if remote is not None:
        facts["remote_url"] = remote[1]
    if pushed is not None:
        facts |= {"hash_range": pushed["range"], "branch": pushed["branch"]}
    elif new is not None:
        facts["branch"] = new["branch"]
    return facts

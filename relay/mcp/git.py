"""The git history of a file: its commits, and files changed together with it (M-29).

git runs no commands configured by the repository, reads no files that its settings name, prompts
for nothing and fetches nothing; its memory and time are limited. Texts of a history are untrusted
data.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relay.mcp.arguments import ToolFault
from relay.memory.fence import UNNAMED, attributed, fenced, name_in
from relay.memory.fields import whole_number
from relay.memory.secrets import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DEADLINE_S: Final = 10.0
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of git's output; a commit may name every file of a large tree."""
_MOST_MEMORY: Final = 1 << 30
"""Bytes that git may allocate; what it maps of packs is not counted."""
_SHOWN: Final = 10
"""Co-changed files shown."""
_DAY: Final = 86_400
_REVERT: Final = re.compile(r"^revert\b|\brollback\b", re.IGNORECASE)
_OWN_SETTINGS: Final = (
    *("-c", "core.attributesFile=/dev/null"),
    *("-c", "diff.orderFile=/dev/null"),
    *("-c", "i18n.logOutputEncoding=UTF-8"),
    *("-c", "log.follow=false"),
)
"""A folder that somebody else made may name a file without end in its settings, or such as make git
write or refuse something else than is read here."""
_GIT_ENVIRONMENT: Final = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",  # not known to git before 2.45 and its security releases
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_LITERAL_PATHSPECS": "1",
    "LC_ALL": "C",
}


class NotInGit(ToolFault):
    """The file is in no repository, or in none of its commits."""


@dataclass(frozen=True, slots=True)
class Commit:
    oid: str
    timestamp: int
    """Unix seconds; 0: it has no readable date."""
    author: str
    message: str
    """Subject line."""
    insertions: int
    """Lines of this file."""
    deletions: int
    co_changed: tuple[str, ...]
    """Other files of the commit."""

    @property
    def is_revert(self) -> bool:
        return _REVERT.search(self.message) is not None


async def commits_in(here: Path, file_path: str, most: int) -> tuple[str, list[Commit]]:
    """The file's path in the repository of `here`, and its newest commits, newest first.

    Raises NotInGit, ToolFault.
    """
    root = Path((await _git(here, "rev-parse", "--show-toplevel")).decode(errors="replace").strip())
    path = _path_in(root, here, file_path)
    output = await _git(
        root,
        "log",
        f"--max-count={most}",
        "--full-diff",
        "--no-renames",
        "--no-mailmap",
        "--numstat",
        "-z",
        "--no-show-signature",
        "--no-color",
        "--format=%H%x00%at%x00%an%x00%s",
        "--",
        path,
    )
    commits = list(_commits(output, path))
    if not commits:
        raise NotInGit(f"file not found in history: {file_path}")
    return path, commits


def summary_of(path: str, commits: Sequence[Commit], now: int) -> str:
    """The history in a few sentences, in a fence: names and messages are by whoever committed.

    Needs at least one commit, newest first.
    """
    days = max(0, commits[0].timestamp - commits[-1].timestamp) // _DAY
    reverts = sum(commit.is_revert for commit in commits)
    text = (
        f"{path}: {len(commits)} commits over {days}d,"
        f" +{sum(commit.insertions for commit in commits)}"
        f"/-{sum(commit.deletions for commit in commits)}"
    )
    text += f", {reverts} reverts." if reverts else "."
    together = ", ".join(f"{name}({count})" for name, count in _together(commits)[:3])
    if together:
        text += f" Co-changes: {together}."
    recent = ", ".join(
        f'"{commit.message}" by {name_in(commit.author) or UNNAMED} ({_age(commit, now)})'
        for commit in commits[:2]
    )
    line = " ".join(f"{text} Recent: {recent}.".split())
    return fenced(attributed(line, ""), "git", "who committed")


def history_of(path: str, commits: Sequence[Commit]) -> dict[str, Any]:
    """The history as numbers, commit by commit."""
    return {
        "path": path,
        "commits": [
            {
                "oid": commit.oid[:8],
                "message": attributed(commit.message, ""),
                # As git has it, it could look like that of a record, which has signed it.
                "author": name_in(commit.author) or UNNAMED,
                "timestamp": commit.timestamp,
                "insertions": commit.insertions,
                "deletions": commit.deletions,
                "is_revert": commit.is_revert,
                "co_changed": commit.co_changed[:_SHOWN],
            }
            for commit in commits
        ],
        "churn": {
            "total_commits": len(commits),
            "total_insertions": sum(commit.insertions for commit in commits),
            "total_deletions": sum(commit.deletions for commit in commits),
            "first_commit_ts": commits[-1].timestamp,
            "last_commit_ts": commits[0].timestamp,
            "reverts": sum(commit.is_revert for commit in commits),
        },
        "co_changes": [
            {"path": name, "frequency": count} for name, count in _together(commits)[:_SHOWN]
        ],
    }


def _together(commits: Sequence[Commit]) -> list[tuple[str, int]]:
    counts = Counter(name for commit in commits for name in commit.co_changed)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _age(commit: Commit, now: int) -> str:
    days = max(0, now - commit.timestamp) // _DAY
    return f"{days}d ago" if days else "today"


def _path_in(root: Path, here: Path, file_path: str) -> str:
    """The path as git names it. Parent folders may be links; the last component is not resolved."""
    given = here / file_path
    try:
        return str((given.parent.resolve() / given.name).relative_to(root.resolve()))
    except (ValueError, OSError, RuntimeError):
        # Without the root: the repository's own settings may name any folder.
        raise NotInGit(f"file_path is not in the git repository: {file_path}") from None


def _commits(output: bytes, path: str) -> Iterator[Commit]:
    r"""Parses NUL-terminated tokens: four per commit, then `added\tdeleted\tpath` per file."""
    tokens = iter(output.decode(errors="replace").split("\0"))
    head: list[str] = []
    files: dict[str, tuple[int, int]] = {}
    for token in tokens:
        counts = token.lstrip("\n").split("\t", 2)
        if head and len(counts) == 3:
            files[counts[2]] = (_number(counts[0]), _number(counts[1]))
        elif token.strip():
            if head:
                yield _commit(head, files, path)
            head = [token.strip(), *(next(tokens, "") for _ in range(3))]
            files = {}
    if head:
        yield _commit(head, files, path)


def _commit(head: Sequence[str], files: Mapping[str, tuple[int, int]], path: str) -> Commit:
    oid, at, author, message = head
    insertions, deletions = files.get(path, (0, 0))
    others = tuple(name for name in files if name != path)
    return Commit(oid, _number(at), author, message, insertions, deletions, others)


def _number(text: str) -> int:
    return whole_number(text) or 0  # lines of a binary file: "-"; a date that git cannot read: ""


async def _git(folder: Path, *arguments: str) -> bytes:
    """git's output. Raises NotInGit if git fails, ToolFault."""
    environment = without_secrets(
        {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    )
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            *_OWN_SETTINGS,
            "-C",
            str(folder),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment | _GIT_ENVIRONMENT,
        )
    except OSError as error:
        raise NotInGit(f"git cannot be run: {error.strerror}") from error
    assert process.stdout is not None
    _limit_memory(process.pid)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            output = await _read(process.stdout)
            code = await process.wait()
    except TimeoutError:
        raise ToolFault(f"git took longer than {_DEADLINE_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise NotInGit("no git history: the folder is in no repository, or the repository is empty")
    return output


def _limit_memory(process_id: int) -> None:
    """Of a running process; on Linux only."""
    if sys.platform == "linux":
        limits = (_MOST_MEMORY, _MOST_MEMORY)
        with suppress(OSError, ValueError):  # it has ended, or has a lower limit
            resource.prlimit(process_id, resource.RLIMIT_DATA, limits)


async def _read(stream: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(65_536):
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            raise ToolFault("git's output is too long; use a smaller max_commits")
    return b"".join(parts)

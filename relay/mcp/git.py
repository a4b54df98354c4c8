"""What git knows of a file: its commits, and what changes together with it. M-29.

git is told to run nothing that the repository's own settings name, to ask nobody and to fetch
nothing. Texts in a history are whoever's: data.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relay.mcp.arguments import ToolFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_DEADLINE_S: Final = 10.0
_MOST_BYTES: Final = 16 * 1024 * 1024
"""Of what git says; a commit may name every file of a large tree."""
_SHOWN: Final = 10
"""Files that change together with this one."""
_DAY: Final = 86_400
_REVERT: Final = re.compile(r"^revert\b|\brollback\b", re.IGNORECASE)
_OFF: Final = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "LC_ALL": "C",
}


class NotInGit(ToolFault):
    """The file lies in no repository, or in none of its commits."""


@dataclass(frozen=True, slots=True)
class Commit:
    oid: str
    timestamp: int
    """Unix seconds."""
    author: str
    message: str
    """Its first line."""
    insertions: int
    """Lines of this file."""
    deletions: int
    co_changed: tuple[str, ...]
    """Other files of the commit."""

    @property
    def is_revert(self) -> bool:
        return _REVERT.search(self.message) is not None


async def commits_in(here: Path, file_path: str, most: int) -> tuple[str, list[Commit]]:
    """The file's path in the repository that `here` lies in, and its newest commits, newest first.

    Raises NotInGit, ToolFault.
    """
    root = Path((await _git(here, "rev-parse", "--show-toplevel")).decode(errors="replace").strip())
    path = _path_in(root, here, file_path)
    said = await _git(
        root,
        "log",
        f"--max-count={most}",
        "--full-diff",
        "--no-renames",
        "--numstat",
        "-z",
        "--no-show-signature",
        "--no-color",
        "--format=%H%x00%at%x00%an%x00%s",
        "--",
        path,
    )
    commits = list(_commits(said, path))
    if not commits:
        raise NotInGit(f"file not found in history: {file_path}")
    return path, commits


def summary_of(path: str, commits: Sequence[Commit], now: int) -> str:
    """The history in a few sentences. At least one commit, newest first."""
    days = max(0, commits[0].timestamp - commits[-1].timestamp) // _DAY
    reverts = sum(commit.is_revert for commit in commits)
    told = (
        f"{path}: {len(commits)} commits over {days}d,"
        f" +{sum(each.insertions for each in commits)}/-{sum(each.deletions for each in commits)}"
    )
    told += f", {reverts} reverts." if reverts else "."
    together = ", ".join(f"{name}({count})" for name, count in _together(commits)[:3])
    if together:
        told += f" Co-changes: {together}."
    recent = ", ".join(f'"{each.message}" ({_age(each, now)})' for each in commits[:2])
    return f"{told} Recent: {recent}."


def history_of(path: str, commits: Sequence[Commit]) -> dict[str, Any]:
    """The same in numbers, commit by commit."""
    return {
        "path": path,
        "commits": [
            {
                "oid": each.oid[:8],
                "message": each.message,
                "author": each.author,
                "timestamp": each.timestamp,
                "insertions": each.insertions,
                "deletions": each.deletions,
                "is_revert": each.is_revert,
                "co_changed": each.co_changed[:_SHOWN],
            }
            for each in commits
        ],
        "churn": {
            "total_commits": len(commits),
            "total_insertions": sum(each.insertions for each in commits),
            "total_deletions": sum(each.deletions for each in commits),
            "first_commit_ts": commits[-1].timestamp,
            "last_commit_ts": commits[0].timestamp,
            "reverts": sum(each.is_revert for each in commits),
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
    """As git names it. What the path goes through may be links, what it ends at is not followed."""
    given = here / file_path
    try:
        return str((given.parent.resolve() / given.name).relative_to(root.resolve()))
    except (ValueError, OSError, RuntimeError):
        raise NotInGit(f"file_path is not in the git repository {root}: {file_path}") from None


def _commits(said: bytes, path: str) -> Iterator[Commit]:
    r"""Of tokens that end with NUL: four of a commit, then one a file, `added\tdeleted\tpath`."""
    tokens = iter(said.decode(errors="replace").split("\0"))
    head: list[str] = []
    files: dict[str, tuple[int, int]] = {}
    for token in tokens:
        counts = token.lstrip("\n").split("\t", 2)
        if head and len(counts) == 3:
            files[counts[2]] = (_lines(counts[0]), _lines(counts[1]))
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
    return Commit(oid, int(at), author, message, insertions, deletions, others)


def _lines(count: str) -> int:
    return int(count) if count.isdigit() else 0  # "-": not a text


async def _git(folder: Path, *arguments: str) -> bytes:
    """What it prints. Raises NotInGit when it says no, ToolFault."""
    around = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            "-C",
            str(folder),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=around | _OFF,
        )
    except OSError as error:
        raise NotInGit(f"git cannot be run: {error.strerror}") from error
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_DEADLINE_S):
            said = await _read(process.stdout)
            code = await process.wait()
    except TimeoutError:
        raise ToolFault(f"git took longer than {_DEADLINE_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise NotInGit(f"git has no history of this: {folder} is in no repository, or it is empty")
    return said


async def _read(stream: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(65_536):
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            raise ToolFault("git says too much of this file; ask for fewer with max_commits")
    return b"".join(parts)

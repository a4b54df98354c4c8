"""Session files on disk: their lines, and the session each belongs to.

Everything here blocks; call it in a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.errors import UserError
from relay.files import opened_below
from relay.memory.transcripts.lines import session_facts
from relay.memory.transcripts.moved import comparable
from relay.memory.transcripts.paths import PathTokens
from relay.memory.transcripts.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from relay.memory.transcripts.lines import SessionFacts
    from relay.memory.transcripts.plan import Plan

SUFFIX: Final = ".jsonl"
SUB_AGENT: Final = "agent-"
"""How the names of sub-agents' files, and so their ids, begin."""
_MAX_LINE: Final = 64 * 2**20
_LINKED: Final = (errno.ELOOP, errno.ENOTDIR)
"""Errors for a symbolic link, or for a file in a folder that has become one."""


class NoFile(UserError):
    """There is no file of this name."""


@dataclass(frozen=True, slots=True)
class SessionFile:
    """A snapshot of one file: later growth is not part of it."""

    path: Path
    size: int
    """Bytes."""
    changed_ms: int
    """Modification time, milliseconds since 1970."""
    opening: SessionFacts
    inode: tuple[int, int]
    """Device and number."""
    root: Path | None = None
    """See `opened`."""

    @property
    def session(self) -> str:
        """The session id in the file, else its file name (D-11)."""
        return self.opening.session or self.path.stem

    @property
    def is_of_sub_agent(self) -> bool:
        """Whether its lines name the session of which a sub-agent wrote them."""
        is_own = self.path.stem == self.session
        return not is_own and (self.opening.is_side_chain or self.path.stem.startswith(SUB_AGENT))

    def converter(self, author: str, plan: Plan) -> Transcript:
        """The converter of its lines, from the start. `author`: who will sign, 64 hex."""
        return Transcript(
            author, self.opening, stem=self.path.stem, now_ms=self.changed_ms, plan=plan
        )

    def lines(self) -> Iterator[bytes]:
        """The lines with their line ends, one at a time in memory. Raises OSError, and UserError
        when the file was replaced by another one."""
        with opened(self.path, self.root) as file:
            if _inode_of(os.fstat(file.fileno())) != self.inode:
                raise UserError(f"{self.path} was replaced while it was read")
            yield from lines_of(file, self.size)


def opened(path: Path, root: Path | None) -> BinaryIO:
    """Open a file for reading. Below `root`, where others may have put files, symbolic links are
    not followed: the file then counts as missing. Raises OSError."""
    if root is None:
        return path.open("rb")
    try:
        return os.fdopen(opened_below(root, path.relative_to(root).as_posix()), "rb")
    except OSError as error:
        if error.errno in _LINKED:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
        raise


def session_file(path: Path, root: Path | None = None) -> SessionFile:
    """`root`: as of `opened`. Raises NoFile; UserError for a folder, an empty file or a line that
    is too long; OSError."""
    try:
        with opened(path, root) as file:
            about = os.fstat(file.fileno())
            if not about.st_size:
                raise UserError(f"{path} is empty")
            found = session_facts(lines_of(file, about.st_size))
    except FileNotFoundError:
        raise NoFile(f"there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, not a session file") from None
    changed_ms = about.st_mtime_ns // 1_000_000
    return SessionFile(path, about.st_size, changed_ms, found, _inode_of(about), root)


def _inode_of(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def lines_of(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The lines of the next `size` bytes. Raises UserError for a longer line than sessions have."""
    while size > 0 and (raw := file.readline(min(size, _MAX_LINE + 1))):
        if len(raw) > _MAX_LINE:
            raise UserError(f"a line of over {_MAX_LINE >> 20} MiB is in no session")
        size -= len(raw)
        yield raw


def root_of(path: Path) -> Path | None:
    """`root` of `opened` for the results of `files_in`: only a link named by the user is
    followed."""
    return path if path.is_dir() else None


def files_in(path: Path) -> list[Path]:
    """The file itself, or every session file below a folder, by name. Symbolic links are none."""
    if not path.is_dir():
        return [path]
    return sorted(found for found in path.rglob(f"*{SUFFIX}") if _is_regular(found))


def _is_regular(path: Path) -> bool:
    with suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def session_ids(
    files: Iterable[SessionFile], taken: Mapping[str, Path] | None = None
) -> dict[Path, str]:
    """The session id of each file of a folder, different from those in `taken` (id → file).

    Several files may name one session: sub-agents write files of their own. As lines are numbered
    by file, the session id goes to the file of that name, else to the first that is not a
    sub-agent's: the session's own file may be gone, and stored. The others use their file names.
    Only files of one session that was resumed in another directory have the same id.
    """
    ids: dict[Path, str] = {}
    used = dict(taken or {})
    ordered = sorted(files, key=lambda file: (file.session != file.path.stem, file.path))
    for file in ordered:
        known = used.get(file.session)
        if known is not None and known.stem == file.path.stem == file.session:
            with suppress(UserError):  # the other one was removed
                if is_same_session(file, session_file(known)):
                    ids[file.path] = file.session
                    continue
        wanted = [file.path.stem, f"{file.path.parent.name}/{file.path.stem}"]
        if not file.is_of_sub_agent:
            wanted.insert(0, file.session)
        free = (name for name in wanted if name not in used)
        ids[file.path] = name = next(free, str(file.path))
        used[name] = file.path
    return ids


def is_same_session(file: SessionFile, other: SessionFile) -> bool:
    """Whether one file is the beginning of the other, but for directory and branch."""
    tokens, others = (PathTokens(each.opening.base or "") for each in (file, other))
    return all(
        comparable(here, tokens) == comparable(there, others)
        for here, there in zip(file.lines(), other.lines(), strict=False)
        if here.endswith(b"\n") and there.endswith(b"\n")
    )

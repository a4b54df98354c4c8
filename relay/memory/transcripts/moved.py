"""A session that continues in another directory, on this machine or another.

Its file is then rewritten with the paths and the branch of that place. Its events keep those of its
first import, so that a line has the same events wherever it is imported from (D-14).
"""

from __future__ import annotations

from relay.memory.transcripts.paths import Directory, PathTokens, with_field


class Move:
    """Moves lines from one directory to another."""

    def __init__(self, base: str, origin: str) -> None:
        """`base`: directory of the file, without trailing `/`. `origin`: of the first import."""
        self._tokens = PathTokens(base)
        self._origin = Directory(origin)

    def line(self, raw: bytes) -> bytes:
        """The line as it stood in the first file. Lines that are not UTF-8 are not changed."""
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return raw
        return self._origin.restored(self._tokens.tokenised(text)).encode()


def comparable(raw: bytes, tokens: PathTokens) -> bytes:
    """The line in a form that its copies elsewhere share. `tokens`: of the file's directory."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw
    return without_branch(tokens.tokenised(text)).encode()


def without_branch(text: str) -> str:
    """A line with an empty `gitBranch`."""
    return with_field(text, "gitBranch", "") if '"gitBranch"' in text else text

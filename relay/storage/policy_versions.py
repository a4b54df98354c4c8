"""Policy files kept in a database, for all relays on it: numbered versions, each whole.

Invariants: a version never changes once it is stored; the newest is the one in force. A file name
cannot lead outside of the folder that it is written to.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from relay.errors import ConfigFaults, Fault, Invalid, StoreFault

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_FILES: Final = 256
MAX_BYTES: Final = 32 << 20
"""Of all files of a version together."""
KEPT: Final = 200
"""Number of versions kept; a push deletes older ones."""
MAX_NAME: Final = 200
MAX_NOTE: Final = 500
"""Characters of the message, and of the name of its author."""


class PolicyVersion(NamedTuple):
    number: int
    """From 1 on."""
    at: int
    """Unix seconds, by the clock of the machine that pushed."""
    by: str
    message: str
    sha256: str
    """Hash of `packed(files)`, in hex."""
    files: int
    bytes: int


class Overtaken(StoreFault):
    """A version was pushed that the pusher had not seen; `newest` is None when all were deleted."""

    def __init__(self, newest: PolicyVersion | None) -> None:
        super().__init__("another version of the policies was pushed")
        self.newest = newest


def packed(files: Mapping[str, bytes]) -> bytes:
    """The files as bytes: equal for equal names and contents. Raises Invalid for an invalid set of
    files."""
    if len(files) > MAX_FILES:
        raise Invalid(f"{len(files)} files, at most {MAX_FILES} are allowed")
    size = sum(map(len, files.values()))
    if size > MAX_BYTES:
        raise Invalid(f"{size:,} bytes in all, at most {MAX_BYTES:,} are allowed")
    for name in files:
        if not _is_name(name):
            raise Invalid(f"{name!r} is no name of a policy file")
    return msgspec.msgpack.encode(sorted(files.items()))


def unpacked(data: bytes, version: PolicyVersion) -> dict[str, bytes]:
    """The files. Raises ConfigFaults when their hash is not that of the version."""
    try:
        files = dict(msgspec.msgpack.decode(data, type=list[tuple[str, bytes]]))
        if sha256(packed(files)).hexdigest() == version.sha256:
            return files
    except (msgspec.MsgspecError, UnicodeDecodeError, Invalid):
        pass
    name = f"version {version.number} of the policies"
    raise ConfigFaults([Fault(name, 0, "is damaged in the database: push another")])


def _is_name(name: str) -> bool:
    """A relative path without steps out of its folder."""
    is_plain = 0 < len(name) <= MAX_NAME and name.isprintable() and "\\" not in name
    return is_plain and all(part not in ("", ".", "..") for part in name.split("/"))

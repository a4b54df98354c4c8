"""Every error class of Rookery, and the words that OK and CLOSED begin with.

RookeryError
├── Refused            what a client sent cannot be taken; has its wire word
│   ├── Invalid        … because its form is wrong
│   ├── Unsupported    … because this relay does not know that part of the protocol
│   ├── TooManyRecords … because the set to be reconciled is too large
│   └── TooWide        … because too much would have to be looked at
├── ConfigFaults       files of the admin that cannot be used: every fault with file and line
├── StoreFault         the store cannot do its work
│   └── StoreVersion   the store was written by another version
├── FolderBusy         another process writes in this data folder
└── UserError          a command cannot go on; the text says what to do next
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Prefix(StrEnum):
    """The machine-readable words of OK and CLOSED. NIP-01, NIP-42 (N01-92)."""

    DUPLICATE = "duplicate"
    POW = "pow"
    BLOCKED = "blocked"
    RATE_LIMITED = "rate-limited"
    INVALID = "invalid"
    RESTRICTED = "restricted"
    MUTE = "mute"
    ERROR = "error"
    AUTH_REQUIRED = "auth-required"
    UNSUPPORTED = "unsupported"


class RookeryError(Exception):
    """Anything that Rookery itself raises."""


class Refused(RookeryError):
    """A message that is not taken: the word of the wire and a text its author can act on."""

    def __init__(self, prefix: Prefix, text: str) -> None:
        super().__init__(f"{prefix}: {text}")
        self.prefix = prefix
        self.text = text


class Invalid(Refused):
    """The form of a message is wrong; the text names the field."""

    def __init__(self, text: str) -> None:
        super().__init__(Prefix.INVALID, text)


class Unsupported(Refused):
    """A part of the protocol that this relay does not offer."""

    def __init__(self, text: str) -> None:
        super().__init__(Prefix.UNSUPPORTED, text)


class TooManyRecords(Refused):
    """A set that negentropy should compare is too large; `most` is the limit. N77-04."""

    def __init__(self, most: int) -> None:
        super().__init__(Prefix.BLOCKED, f"the set has over {most} records")
        self.most = most


class TooWide(Refused):
    """A search whose answer would take too long."""

    def __init__(self) -> None:
        super().__init__(
            Prefix.ERROR, "this search has to look at too much: add words, kinds or authors"
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in one line of a file; `line` is 0 when it concerns the file as a whole."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.text}"


class ConfigFaults(RookeryError):
    """Settings or policies that cannot be used; all faults at once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class StoreFault(RookeryError):
    """The store cannot do its work (disk full, file damaged, closed)."""


class StoreVersion(StoreFault):
    """The store was written by a version that this one can neither read nor migrate."""


class FolderBusy(RookeryError):
    """Another process holds the data folder."""

    def __init__(self, folder: str, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"{folder} is in use by {who}; stop it or choose another folder")
        self.pid = pid


class UserError(RookeryError):
    """A command cannot go on: one line that says what to do, and the exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code

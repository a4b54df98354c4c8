"""Error classes of Rookery, how a write ends, and the machine-readable prefixes of OK and CLOSED.

Invariant: only `ok_reply` makes the message of an OK.

RookeryError
├── Refused            a client message is refused; carries the prefix of the reply
│   ├── Invalid        … malformed
│   ├── Unsupported    … a part of the protocol that this relay does not support
│   ├── TooManyRecords … a negentropy set is too large
│   ├── TooWide        … a search would examine too much
│   └── TooSlow        … a query would keep others waiting
├── ConfigFaults       settings or policies with faults, each with file and line
├── StoreFault         the store failed
│   ├── Outdated       … others changed more than it can tell
│   └── StoreVersion   the store was written by an incompatible version
├── TooMuchToRead      a batch needs larger rows than it may read at once
│   └── TookTooLong    … or statements that take longer than it may
├── FolderBusy         another process holds the lock of the data folder
└── UserError          a command cannot continue; the text says what to do next
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_SECRET: Final = re.compile(
    r"((?:nsec|ncryptsec)1)[a-z0-9]+"
    r"|(://[^\s/@:]{0,256}:)\S{0,1024}(?=@)"
    r"|(?<![0-9a-z])([0-9a-f]{4})(?:[0-9a-f]{56,59}|[0-9a-f]{61,66})(?![0-9a-z])",
    re.IGNORECASE,
)
"""A secret key; the password in a URL, of up to 1,024 characters, since to the end of a long word
from each of many `://` takes hours; hex that is nearly a key: public keys and ids have 64."""


def masked(text: str) -> str:
    """Without secrets: a safeguard for logs, and for what quotes an argument or a setting."""
    return _SECRET.sub(lambda found: f"{found[1] or found[2] or found[3]}…", text)


class Prefix(StrEnum):
    """Machine-readable prefixes of OK and CLOSED. NIP-01, NIP-42 (N01-92)."""

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
    """Base class."""


class Refused(RookeryError):
    """A client message is refused: prefix of the reply and a text that the client's author can act
    on."""

    def __init__(self, prefix: Prefix, text: str) -> None:
        super().__init__(f"{prefix}: {text}")
        self.prefix = prefix
        self.text = text


class Invalid(Refused):
    """Malformed message; the text names the field."""

    def __init__(self, text: str) -> None:
        super().__init__(Prefix.INVALID, text)


class Unsupported(Refused):
    """A part of the protocol that this relay does not support."""

    def __init__(self, text: str) -> None:
        super().__init__(Prefix.UNSUPPORTED, text)


class TooManyRecords(Refused):
    """A negentropy set is larger than `limit`. N77-04."""

    def __init__(self, limit: int) -> None:
        super().__init__(Prefix.BLOCKED, f"more than {limit} records match")
        self.limit = limit


class TooMuchToRead(RookeryError):
    """The rows that a batch must know are larger than `Lookups.most`, `most_own`,
    `most_moderated` or `most_records`."""

    def __init__(self, shares: Mapping[Any, float]) -> None:
        """`shares`: name of `Lookups.limited`, or client → its part of the limit. Without them the
        lane tries halves of the clients, and does not know which of them to serve apart."""
        super().__init__()
        self.shares = shares


class TookTooLong(TooMuchToRead):
    """The statements of a transaction took longer than `Lookups.longest_s`; nothing changed."""

    def __init__(self) -> None:
        super().__init__({})


class TooWide(Refused):
    """A search would examine too many rows."""

    def __init__(self) -> None:
        super().__init__(Prefix.ERROR, "this search is too broad: add words, kinds or authors")


class TooSlow(Refused):
    """One page of a query took too long."""

    def __init__(self) -> None:
        super().__init__(
            Prefix.ERROR, "this query takes too long: add ids, authors, kinds, tags or times"
        )


@dataclass(frozen=True, slots=True)
class Reject:
    """A refusal as a value: prefix, text without secrets, and the name of the rule."""

    prefix: Prefix
    text: str
    rule: str
    reveals: bool = field(default=False, compare=False)
    """It depends on what is stored of a group, or on its state: the judge conceals it from a
    connection that may not read that."""

    def refused(self) -> Refused:
        return Refused(self.prefix, self.text)


class WriteOutcome(Enum):
    """The outcome of a write that no rule refused."""

    STORED = auto()
    PASSED_ON = auto()
    """Ephemeral: delivered live, not stored."""
    DUPLICATE = auto()
    TAKEN = auto()
    """Append-only, and another event is stored under this `d`."""
    SUPERSEDED = auto()
    CHANGED = auto()
    """Made from another version than the one that is stored."""
    BASE_DELETED = auto()
    """Made from a version that is deleted."""
    REGENERATED = auto()
    """Imported group state: the relay signs its own."""
    DELETED = auto()
    EXPIRED = auto()
    UNTOLD = auto()
    """One of DUPLICATE, TAKEN, SUPERSEDED and DELETED, for a connection that may not read the row:
    the answer is the one that it gets for an event that is stored."""
    MEMBER = auto()
    """A request to join the relay by a member. These four are not stored."""
    JOINED = auto()
    LEFT = auto()
    NO_MEMBER = auto()
    """A request to leave by a key that is no member."""


ANOTHER_VERSION: Final = "another version is stored"
VERSION_DELETED: Final = "the version that it was made from is deleted"
EVENT_BANNED: Final = "this event is banned here"
RIGHTS_CHANGED: Final = "your read rights have changed"
"""In the end of a negentropy session that may be begun again."""
GROUP_CHANGED: Final = "the group was changed meanwhile"
"""Refusals of what was made from another version."""

Result = WriteOutcome | Reject
"""What the OK of an event says."""


_DIFFERS: Final = re.compile(
    r"(?<=^invalid: created_at: )\d+ s | \((?:id [0-9a-f]{64}|column \d+)\)$"
)


def kind_of_reason(reason: str) -> str:
    """The reason of a refusal without what differs from event to event, to count by."""
    return _DIFFERS.sub("", reason)


def is_error(reply: tuple[bool, str]) -> bool:
    """Whether this OK says that the relay could not take the event, through no fault of the
    event."""
    accepted, text = reply
    return not accepted and text.startswith(f"{Prefix.ERROR}:")


def ok_reply(result: Result) -> tuple[bool, str]:
    """The third and fourth element of OK."""
    if isinstance(result, Reject):
        return False, f"{result.prefix}: {result.text}"
    match result:
        case WriteOutcome.STORED | WriteOutcome.PASSED_ON | WriteOutcome.UNTOLD:
            return True, ""
        case WriteOutcome.DUPLICATE:
            return True, "duplicate: already have this event"
        case WriteOutcome.REGENERATED:
            return True, "duplicate: the relay signs this itself"
        case WriteOutcome.TAKEN:
            return True, "duplicate: already stored under this d"
        case WriteOutcome.SUPERSEDED:
            return False, "duplicate: a newer version is stored"
        case WriteOutcome.CHANGED:
            return False, f"duplicate: {ANOTHER_VERSION}"
        case WriteOutcome.BASE_DELETED:
            return False, f"duplicate: {VERSION_DELETED}"
        case WriteOutcome.DELETED:
            return False, "blocked: deleted"
        case WriteOutcome.EXPIRED:
            return False, "invalid: event expired"
        case WriteOutcome.MEMBER:
            return True, "duplicate: you are already a member of this relay"
        case WriteOutcome.JOINED:
            return True, "info: welcome to this relay"
        case WriteOutcome.LEFT:
            return True, "info: you have left this relay"
        case WriteOutcome.NO_MEMBER:
            return True, "duplicate: you are not a member of this relay"
        case _:
            assert_never(result)


@dataclass(frozen=True, slots=True)
class Fault:
    """`line` is 0 when the fault concerns the whole file."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.text}"


class ConfigFaults(RookeryError):
    """Settings or policies with faults; all at once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class StoreFault(RookeryError):
    """The store failed: disk full, file damaged, closed."""


class Outdated(StoreFault):
    """Others changed more than the store can tell: read all state again."""


class StoreVersion(StoreFault):
    """The store was written by a version that this one can neither read nor migrate."""


class FolderBusy(RookeryError):
    """Another process holds the lock of the data folder."""

    def __init__(self, folder: str, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        self.fact = f"{folder} is in use by {who}"
        super().__init__(f"{self.fact}; stop it or choose another folder")
        self.pid = pid


class UserError(RookeryError):
    """A command cannot continue: one line that says what to do, and the exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(masked(text))
        self.code = code


def how_to_install(extra: str = "") -> str:
    """The command that installs this program again, with an extra: from its clone, if it runs from
    one."""
    clone = Path(__file__).parents[1]
    source = str(clone) if (clone / "pyproject.toml").is_file() else "rookery"
    what = f"{source}[{extra}]" if extra else source
    editable = "-e " if source != "rookery" else ""
    return f"{shlex.quote(sys.executable)} -m pip install {editable}{shlex.quote(what)}"

"""What the OK of an event says: how its write ended, or why it is refused.

Invariant: only `ok_reply` makes the message of an OK.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from relay.errors import Prefix, Refused


@dataclass(frozen=True, slots=True)
class Reject:
    """A refusal as a value: prefix, text without secrets, and the name of the rule."""

    prefix: Prefix
    text: str
    rule: str

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


Result = WriteOutcome | Reject
"""What the OK of an event says."""


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

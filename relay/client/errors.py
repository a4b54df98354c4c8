"""What can go wrong between a client and a relay.

RookeryError
└── ClientError
    ├── Unreachable       no connection could be made; says why the last try failed
    ├── Unanswered        the deadline of a request passed; says what was waited for
    ├── ClientClosed      used outside its `async with`
    ├── NoKey             something must be signed and the client has no key
    ├── PublishRefused    OK false: the relay does not take the event
    ├── QueryClosed       CLOSED or NEG-ERR: the relay does not answer, or has ended it
    ├── AnswerTooLong     more events than one answer may hold
    ├── NotARelay         the URL answers, but with no relay information document
    ├── Incomparable      no comparison: no NIP-77 there, or what it says cannot be followed
    └── ConnectionLost    inside this package only: requests survive it and are sent again
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from relay.errors import RookeryError

if TYPE_CHECKING:
    from relay.nostr.event import Event

_WORD: Final = re.compile(r"([a-z][a-z0-9-]*): ?(.*)", re.DOTALL).fullmatch


def split_reason(reason: str) -> tuple[str, str]:
    """The machine-readable word of an OK or CLOSED, empty when it has none, and the text.

    The word compares with `relay.errors.Prefix`; other relays may say words that are not in it.
    """
    found = _WORD(reason)
    return (found[1], found[2]) if found else ("", reason)


class ClientError(RookeryError):
    """Anything that a client of a relay may meet."""


class Unreachable(ClientError):
    """No connection to the relay."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"cannot reach {url}: {why}")
        self.url = url
        self.why = why


class Unanswered(ClientError):
    """A request had no answer within its deadline."""


class ClientClosed(ClientError):
    """The client is not inside its `async with`, or has failed."""


class NoKey(ClientError):
    """The client was made without a key."""

    def __init__(self) -> None:
        super().__init__("this client has no key to sign with; make it with Client(url, key)")


class PublishRefused(ClientError):
    """The relay answered OK false."""

    def __init__(self, prefix: str, text: str, event: Event, login: str = "") -> None:
        """`login`: why the relay took no login, when it took none."""
        super().__init__(_said(prefix, text, login))
        self.prefix = prefix
        self.text = text
        self.event = event


class QueryClosed(ClientError):
    """The relay answered a query with CLOSED, or ended a subscription with it."""

    def __init__(self, prefix: str, text: str, login: str = "") -> None:
        super().__init__(_said(prefix, text, login))
        self.prefix = prefix
        self.text = text


class AnswerTooLong(ClientError):
    """One query brought more events than may be held at once."""

    def __init__(self, most: int, of: str = "events") -> None:
        super().__init__(f"the answer has more than {most} {of}; read it in pages with query_all()")


class NotARelay(ClientError):
    """The HTTP side of the URL gives no relay information document (NIP-11)."""


class Incomparable(ClientError):
    """Sets cannot be compared with this relay."""


class ConnectionLost(ClientError):
    """The connection ended under a request."""


def _said(prefix: str, text: str, login: str) -> str:
    reason = f"{prefix}: {text}" if prefix else text or "refused without a reason"
    return f"{reason} (login refused: {login})" if login else reason

"""Errors of the client.

RookeryError
└── ClientError
    ├── Unreachable       no connection could be made; names the reason of the last failure
    ├── Unanswered        the deadline of a request passed; names the expected answer
    ├── ClientClosed      used outside its `async with`
    ├── NoKey             an event must be signed and the client has no key
    ├── PublishRefused    OK false
    ├── QueryClosed       CLOSED or NEG-ERR
    ├── CallRefused       a NIP-86 call had an error
    ├── AnswerTooLong     more events than one answer, or all pages of it, may hold
    ├── NotARelay         the URL answers, but without a relay information document (NIP-11)
    ├── Incomparable      no NIP-77 reconciliation possible with this relay
    └── ConnectionLost    internal to this package: the request is sent again after a reconnect
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from relay.errors import ANOTHER_VERSION, EVENT_BANNED, VERSION_DELETED, Prefix, RookeryError
from relay.memory.fence import shell_word
from relay.nostr.keys import npub

if TYPE_CHECKING:
    from relay.nostr.event import Event

TEMPORARY: Final = frozenset({Prefix.ERROR, Prefix.RATE_LIMITED})
"""Prefixes of refusals that do not depend on the event or filter: the request may be repeated."""
ABOUT_AUTHOR: Final = frozenset({Prefix.RESTRICTED, Prefix.BLOCKED, Prefix.AUTH_REQUIRED})
"""Prefixes of refusals that apply to everything a key sends."""
_PREFIX: Final = re.compile(r"([a-z][a-z0-9-]*): ?(.*)", re.DOTALL).fullmatch


_NOT_IN_AN_ID: Final = re.compile(r"[^\w-]")
_MAX_ID: Final = 64
"""Characters."""

IN_THE_FUTURE: Final = " s in the future"
"""In a relay's text about `created_at`."""
MAX_SAID: Final = 2000
"""Characters kept and shown of a text by the relay: a frame may hold 16 million."""


def split_reason(reason: str) -> tuple[str, str]:
    """The machine-readable prefix of an OK or CLOSED reason (empty if it has none), and the text.

    The prefix compares with `relay.errors.Prefix`; other relays may send prefixes not listed there.
    """
    # One line: the next would begin like one of ours.
    reason = " ".join(reason[:MAX_SAID].splitlines())
    found = _PREFIX(reason)
    return (found[1], found[2]) if found else ("", reason)


def quoted_id(id_: str) -> str:
    """The id of a session in an error: another key may have chosen it, a line or more of text."""
    return _NOT_IN_AN_ID.sub("\N{REPLACEMENT CHARACTER}", id_[:_MAX_ID])


class ClientError(RookeryError):
    """Base class of the client's errors."""


class Unreachable(ClientError):
    """No connection to the relay."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"cannot reach {url}: {why}")
        self.url = url
        self.why = why


class Unanswered(ClientError):
    """A request had no answer within its deadline."""

    events = 0
    """Of a query: how many had come by then. The rest of a large answer may be on its way."""


class ClientClosed(ClientError):
    """The client is not inside its `async with`, or its task has failed."""


class NoKey(ClientError):
    """The client was created without a key."""

    def __init__(self) -> None:
        super().__init__("this client has no key to sign with; create it with Client(url, key)")


class PublishRefused(ClientError):
    """The relay answered OK false."""

    def __init__(self, prefix: str, text: str, event: Event, login: str = "") -> None:
        """`login`: why the relay refused the AUTH event; empty if it did not."""
        super().__init__(_reason_text(prefix, text, login))
        self.prefix = prefix
        self.text = text
        self.event = event
        signer = npub(event.pubkey)
        self.remedy = _remedy(text, signer, event.tag("h"))
        """What lifts the refusal, for people; empty: not known."""
        self.add_note("; ".join(filter(None, (f"signed with {signer}", self.remedy))))

    @property
    def is_too_early(self) -> bool:
        """Whether the event is dated ahead of the relay's clock: it may be sent later."""
        is_about_date = self.prefix == Prefix.INVALID and self.text.startswith("created_at: ")
        return is_about_date and IN_THE_FUTURE in self.text

    @property
    def is_deleted(self) -> bool:
        """Whether the event is deleted: by its id, or by its address as of a later time."""
        return self.prefix == Prefix.BLOCKED and self.text == "deleted"

    @property
    def is_removed(self) -> bool:
        """Whether the event is deleted, or banned: it is not to be stored again."""
        return self.is_deleted or (self.prefix == Prefix.BLOCKED and self.text == EVENT_BANNED)

    @property
    def is_base_deleted(self) -> bool:
        """Whether the version that the event was made from is deleted."""
        return self.prefix == Prefix.DUPLICATE and self.text == VERSION_DELETED

    @property
    def is_rival(self) -> bool:
        """Whether another version is stored than the event was made from."""
        return self.prefix == Prefix.DUPLICATE and self.text == ANOTHER_VERSION


class QueryClosed(ClientError):
    """The relay ended a query or subscription with CLOSED."""

    def __init__(self, prefix: str, text: str, login: str = "") -> None:
        super().__init__(_reason_text(prefix, text, login))
        self.prefix = prefix
        self.text = text


class CallRefused(ClientError):
    """The relay refused a NIP-86 call, or offers none."""

    def __init__(self, prefix: str, text: str) -> None:
        super().__init__(_reason_text(prefix, text, ""))
        self.prefix = prefix
        self.text = text


class AnswerTooLong(ClientError):
    """The relay returned more events than the client holds at once, or reads in pages."""

    events = 0
    """Of a query: how many could be held."""

    def __init__(self, most: int, of: str = "events") -> None:
        way = "use a narrower filter" if "pages" in of else "read it in pages with query_all()"
        super().__init__(f"the answer has more than {most} {of}; {way}")


class NotARelay(ClientError):
    """The HTTP side of the URL returns no relay information document (NIP-11)."""


class Incomparable(ClientError):
    """Event sets cannot be compared with this relay."""


class ConnectionLost(ClientError):
    """The connection ended during a request."""


def _remedy(text: str, signer: str, group: str | None) -> str:
    if "not a member" in text and group is not None:
        return f"an admin adds it: `rookery group add {shell_word(group)} {signer}`"
    if "only agents may write memory" in text:
        return "an owner adds it to [actors] agents in the relay's policies/00-actors.toml"
    return ""


def _reason_text(prefix: str, text: str, login: str) -> str:
    reason = f"{prefix}: {text}" if prefix else text or "refused without a reason"
    return f"{reason} (login refused: {login})" if login else reason

"""Client frames to messages, and relay messages to frames. NIP-01, 42, 45, 77.

Invariants: only this module splices stored event bytes into a frame; everything else is encoded.
`parse` never raises for client input: a malformed message is a `Bad…` value that determines the
reply.
"""

from __future__ import annotations

import binascii
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from relay.errors import Invalid, Prefix, Refused, TooManyRecords, Unsupported
from relay.nostr.event import (
    MAX_ARRAYS,
    Event,
    event_from,
    has_too_many_arrays,
    is_hex64,
    submitted_event,
)
from relay.nostr.filters import Filter, FilterTerms, filter_from
from relay.nostr.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_VALUES: Final = 10_000
"""Ids, authors, kinds and tag values in a REQ, COUNT or NEG-OPEN: each takes the loop up to 5 us. A
frame of 512 KiB has 7,800 keys."""
MAX_SUBSCRIPTION_ID: Final = 64
"""Characters (N01-52)."""
STOPPING: Final = Refused(Prefix.ERROR, "the relay is stopping")
RESTARTING: Final = Refused(Prefix.ERROR, "the relay is restarting")
"""Of open subscriptions, before the relay closes the connection."""


class _Message(msgspec.Struct, frozen=True):
    """A Struct because each frame makes one: a frozen dataclass takes four times as long."""


class Publish(_Message, frozen=True):
    event: Event


class Login(_Message, frozen=True):
    event: Event


class Subscribe(_Message, frozen=True):
    sub: str
    filters: tuple[Filter, ...]


class Count(_Message, frozen=True):
    sub: str
    filters: tuple[Filter, ...]


class Close(_Message, frozen=True):
    sub: str


class NegOpen(_Message, frozen=True):
    """Opens a negentropy session; its ids are separate from those of subscriptions."""

    sub: str
    filter: Filter
    message: bytes


class NegMessage(_Message, frozen=True):
    sub: str
    message: bytes


class NegClose(_Message, frozen=True):
    sub: str


class BadNeg(_Message, frozen=True):
    """A malformed NEG-OPEN or NEG-MSG: NEG-ERR."""

    sub: str
    refused: Refused


class BadEvent(_Message, frozen=True):
    """An EVENT or AUTH with an invalid event whose id is readable: OK false."""

    id: str
    refused: Refused


class BadQuery(_Message, frozen=True):
    """A malformed REQ: CLOSED."""

    sub: str
    refused: Refused


class BadCount(BadQuery, frozen=True):
    """A malformed COUNT: CLOSED, but its id names no subscription (N45-05)."""


class KeepAlive(_Message, frozen=True):
    """`["PING"]` or `["PONG"]`, which clients send through an idle connection: no answer."""


class BadFrame(_Message, frozen=True):
    """Not a Nostr message, and no id in it to answer to: NOTICE."""

    refused: Refused


ClientMessage = (
    Publish
    | Login
    | Subscribe
    | Count
    | Close
    | NegOpen
    | NegMessage
    | NegClose
    | BadEvent
    | BadQuery
    | BadNeg
    | KeepAlive
    | BadFrame
)

EVENT_END: Final = b"]"
"""The end of an EVENT frame, after the event."""
_SUBMISSION: Final = b'["EVENT",{'
"""The beginning of EVENT frames of nearly all clients."""
_REQUEST: Final = b'["REQ","'
"""The beginning of REQ frames of nearly all clients."""
_MAX_REPEATED: Final = 256
"""Bytes of a REQ whose filters are kept parsed when they come for the second time: the next client
that opens the same page of an app, or comes back to it, sends the same ones."""
_REPEATED: Final = 2048
_came_once: Final = Recent(_REPEATED)
"""Of filters that came once."""
_MAX_REPEATED_VALUES: Final = 8
_NOT_JSON: Final = Invalid("message is not JSON")
_OVER_ARRAYS: Final = Invalid(f"message has over {MAX_ARRAYS:,} arrays and objects")
_KEEP_ALIVE: Final = KeepAlive()
_FRAME_START: Final = re.compile(
    r'\s*\[\s*"(EVENT|REQ|COUNT)"\s*,\s*(?:"([^"\\\ufffd\ud800-\udfff]{1,64})"\s*,)?'
)
"""An id with an unreadable character does not match."""
_EVENT_ID: Final = re.compile(r'"id"\s*:\s*"([0-9a-f]{64})"')
"""Not in a text of the event: there the quotes are escaped."""
_NOT_ARRAY: Final = BadFrame(
    Invalid("message must be a JSON array that starts with a message type")
)


def parse(text: str | bytes, terms: FilterTerms, max_filters: int) -> ClientMessage:
    """One client frame; its size was checked before."""
    if len(text) > 2 * MAX_ARRAYS and has_too_many_arrays(text):
        return _unread(text, _OVER_ARRAYS)
    if isinstance(text, bytes) and text.startswith(_SUBMISSION):
        event = submitted_event(text)
        if event is not None:
            return Publish(event)
    elif len(text) <= _MAX_REPEATED and isinstance(text, bytes) and text.startswith(_REQUEST):
        repeated = _repeated(text, terms, max_filters)
        if repeated is not None:
            return repeated
    try:
        frame = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError):
        return _unread(text, _NOT_JSON)
    if type(frame) is not list or not frame:
        return _NOT_ARRAY
    verb = frame[0]
    if verb == "EVENT" or verb == "AUTH":
        return _with_event(verb, frame)
    if verb == "REQ" or verb == "COUNT":
        return _query(verb, frame, terms, max_filters)
    if verb == "CLOSE":
        if len(frame) < 2 or type(frame[1]) is not str:
            return BadFrame(Invalid("CLOSE: needs a subscription id"))
        return Close(frame[1])
    if verb == "NEG-OPEN" or verb == "NEG-MSG" or verb == "NEG-CLOSE":
        return _negentropy(verb, frame, terms)
    if verb == "PING" or verb == "PONG":
        return _KEEP_ALIVE
    if type(verb) is str:
        return BadFrame(Invalid(f"unknown message {verb[:32]!r}"))
    return _NOT_ARRAY


def _repeated(text: bytes, terms: FilterTerms, max_filters: int) -> Subscribe | None:
    """A REQ whose filters may have been parsed before; None: it has to be parsed as a whole."""
    end = text.find(b'"', len(_REQUEST))
    sub = text[len(_REQUEST) : end].decode("latin-1")
    if not (sub.isascii() and sub.isprintable()) or "\\" in sub:
        return None
    if not 0 < len(sub) <= MAX_SUBSCRIPTION_ID or end < 0:
        return None
    tail = text[end:]
    if _came_once.is_new(hash(tail)):
        return None
    filters = _filters_after(tail, terms)
    return None if filters is None or len(filters) > max_filters else Subscribe(sub, filters)


@lru_cache(maxsize=_REPEATED)
def _filters_after(text: bytes, terms: FilterTerms) -> tuple[Filter, ...] | None:
    """The filters of a REQ; `text`: from the quote behind its id to the end. None: malformed, or
    not to be kept. At most 3 kB of memory each."""
    try:
        _, *given = orjson.loads(b'["' + text)
        filters = tuple([filter_from(value, terms) for value in given])
    except (orjson.JSONDecodeError, Refused):
        return None
    is_small = sum([filter_.values for filter_ in filters]) <= _MAX_REPEATED_VALUES
    return filters if filters and is_small else None


def _unread(text: str | bytes, why: Invalid) -> BadEvent | BadQuery | BadFrame:
    """A frame that is not JSON, as by half of a surrogate pair, or takes too long. Answered by its
    id where that can be read: a client may take a NOTICE for the failure of everything that it
    waits for."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    start = _FRAME_START.match(text)
    if start is not None:
        verb, sub = start.groups()
        if verb == "EVENT":
            event_id = _EVENT_ID.search(text, start.end())
            if event_id is not None:
                return BadEvent(event_id[1], why)
        elif sub is not None:
            return (BadQuery if verb == "REQ" else BadCount)(sub, why)
    return BadFrame(why)


def _with_event(verb: str, frame: list[object]) -> ClientMessage:
    if len(frame) < 2:
        return BadFrame(Invalid(f"{verb}: needs an event"))
    try:
        event = event_from(frame[1])
    except Refused as refused:
        fields = frame[1]
        if type(fields) is dict and is_hex64(fields.get("id")):
            return BadEvent(fields["id"], _told(refused))
        return BadFrame(_told(refused))
    return Publish(event) if verb == "EVENT" else Login(event)


def _query(verb: str, frame: list[object], terms: FilterTerms, max_filters: int) -> ClientMessage:
    sub = frame[1] if len(frame) > 1 else None
    if type(sub) is not str:
        return BadFrame(Invalid(f"{verb}: needs a subscription id"))
    bad = BadQuery if verb == "REQ" else BadCount
    if not 0 < len(sub) <= MAX_SUBSCRIPTION_ID:
        return bad(
            sub, Invalid(f"subscription id: must have 1 to {MAX_SUBSCRIPTION_ID} characters")
        )
    if len(frame) < 3:
        return bad(sub, Invalid(f"{verb}: needs at least one filter"))
    if len(frame) - 2 > max_filters:
        return bad(
            sub, Refused(Prefix.RATE_LIMITED, f"at most {max_filters} filters in one {verb}")
        )
    try:
        _check_values(verb, frame[2:])
        filters = tuple([filter_from(value, terms) for value in frame[2:]])
    except Refused as refused:
        return bad(sub, _told(refused))
    return Subscribe(sub, filters) if verb == "REQ" else Count(sub, filters)


def _check_values(verb: str, filters: Sequence[object]) -> None:
    """Before they are looked at one by one: a frame may have 260,000. Equal ones count."""
    number = 0
    for filter_ in filters:
        if type(filter_) is dict:
            number += sum([len(given) for given in filter_.values() if type(given) is list])
    if number > MAX_VALUES:
        raise Refused(Prefix.RATE_LIMITED, f"at most {MAX_VALUES} values in one {verb}")


def _negentropy(verb: str, frame: list[object], terms: FilterTerms) -> ClientMessage:
    sub = frame[1] if len(frame) > 1 else None
    if type(sub) is not str:
        return BadFrame(Invalid(f"{verb}: needs a subscription id"))
    if verb == "NEG-CLOSE":
        return NegClose(sub)
    if not 0 < len(sub) <= MAX_SUBSCRIPTION_ID:
        return BadNeg(
            sub, Invalid(f"subscription id: must have 1 to {MAX_SUBSCRIPTION_ID} characters")
        )
    try:
        if verb == "NEG-MSG":
            return NegMessage(sub, _hex_field(verb, frame, 2))
        if len(frame) < 3:
            raise Invalid("NEG-OPEN: needs a filter")
        _check_values(verb, frame[2:3])
        filter_ = filter_from(frame[2], terms)
        if filter_.search is not None:
            raise Unsupported("search is not supported in negentropy")
        return NegOpen(sub, filter_, _hex_field(verb, frame, 3))
    except Refused as refused:
        return BadNeg(sub, _told(refused))


def _told(refused: Refused) -> Refused:
    """A copy without traceback. A raised exception refers to the stack frames and all their values:
    if a caller keeps it, this is a cycle, which is freed only by the garbage collector."""
    return Refused(refused.prefix, refused.text)


def _hex_field(verb: str, frame: list[object], index: int) -> bytes:
    """The negentropy message of a frame; hex of either case (N77-09, N77-11)."""
    text = frame[index] if len(frame) > index else None
    if type(text) is not str or not text:
        raise Invalid(f"{verb}: needs a negentropy message in hex")
    try:
        return binascii.unhexlify(text)
    except ValueError:
        raise Invalid(f"{verb}: the negentropy message is not hex") from None


def ok(event_id: str, refused: Refused | None) -> bytes:
    """None: `OK true ""`."""
    if refused is None:
        return b'["OK","' + event_id.encode() + b'",true,""]'
    return ok_text(event_id, f"{refused.prefix}: {refused.text}", accepted=False)


def ok_text(event_id: str, text: str, *, accepted: bool) -> bytes:
    return orjson.dumps(["OK", event_id, accepted, text])


def closed(sub: str, refused: Refused) -> bytes:
    return orjson.dumps(["CLOSED", sub, f"{refused.prefix}: {refused.text}"])


def eose(sub: str) -> bytes:
    return orjson.dumps(["EOSE", sub])


def notice(refused: Refused) -> bytes:
    return orjson.dumps(["NOTICE", f"{refused.prefix}: {refused.text}"])


def auth_challenge(challenge: str) -> bytes:
    return orjson.dumps(["AUTH", challenge])


def count(sub: str, number: int, registers: str | None = None) -> bytes:
    """`registers`: HyperLogLog as 512 hex (N45-10)."""
    result: dict[str, object] = {"count": number}
    if registers is not None:
        result["hll"] = registers
    return orjson.dumps(["COUNT", sub, result])


def neg_message(sub: str, message: bytes) -> bytes:
    return orjson.dumps(["NEG-MSG", sub, message.hex()])


def neg_error(sub: str, refused: Refused) -> bytes:
    frame: list[object] = ["NEG-ERR", sub, f"{refused.prefix}: {refused.text}"]
    if isinstance(refused, TooManyRecords):
        frame.append(refused.limit)
    return orjson.dumps(frame)


def neg_ended(sub: str, text: str) -> bytes:
    """The relay ended the session; the prefix `closed` exists in NEG-ERR only (N77-04)."""
    return orjson.dumps(["NEG-ERR", sub, f"closed: {text}"])


def event_head(sub: str) -> bytes:
    """The start of an EVENT frame of this subscription, before the event."""
    return b'["EVENT",' + orjson.dumps(sub) + b","


def event_frame(head: bytes, raw: bytes) -> bytes:
    """`raw` must be `Event.raw`: the canonical bytes of a validated event."""
    return head + raw + EVENT_END

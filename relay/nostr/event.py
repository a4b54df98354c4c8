"""Event: a NIP-01 event with validated shape and id, and its serialized bytes.

Invariants: an Event has valid fields and a correct id; the signature is checked separately, by
`relay.nostr.keys`. `tags` are lists for speed and are never modified. `raw` is the canonical
serialization, made once; it is what is stored and sent (N01-04).
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from itertools import chain, filterfalse
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
import orjson

from relay.errors import Invalid
from relay.nostr.kinds import MAX_KIND, KindClass, class_of, is_kind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_HEX64: Final = re.compile(r"[0-9a-f]{64}").fullmatch
_HEX128: Final = re.compile(r"[0-9a-f]{128}").fullmatch
MAX_CREATED_AT: Final = 2**63 - 1
MAX_ARRAYS: Final = 16_384
"""Arrays and objects in one text of somebody else; 174,000 empty ones, which fit into half a
megabyte, take 27 to 130 ms to parse."""
_NO_MARKS: Final = bytes(set(range(256)) - set(b'"[{'))
MADE_FROM: Final = "made-from"
"""Tag: the version that this one was made from. This relay's own; docs/interop.md describes it."""
_OWN_WEIGHT: Final = 1000
_PARSED_TAG: Final = 100
"""A tag takes as long to parse as so many bytes."""
_TAG_WEIGHT: Final = 200
_VALUE_WEIGHT: Final = 60
"""Of each value of a tag after the first two."""
_WIDE_WEIGHT: Final = 6
"""Of each character of a text that is not ASCII: all take as many bytes as the widest, up to 4, and
the UTF-8 is stored too."""
_FEW_VALUES: Final = 1000
"""Up to this number values are measured one by one."""
_FEW_TAGS: Final = 32
"""Up to this number scanning tags is as fast as building an index."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """NIP-01."""

    id: str
    pubkey: str
    created_at: int
    kind: int
    tags: list[list[str]]
    content: str
    sig: str
    raw: bytes

    def tag(self, name: str) -> str | None:
        """Value of the first tag with this name, `""` if it has no value; None without the tag."""
        for tag in self.tags:
            if tag and tag[0] == name:
                return tag[1] if len(tag) > 1 else ""
        return None

    def tag_values(self, name: str) -> list[str]:
        """Values of all tags with this name."""
        return [tag[1] for tag in self.tags if len(tag) > 1 and tag[0] == name]

    def has_tag(self, name: str) -> bool:
        for tag in self.tags:  # noqa: SIM110  # a generator takes three times as long
            if tag and tag[0] == name:
                return True
        return False

    def has_value(self, name: str, values: Collection[str]) -> bool:
        """Whether a tag with this name has one of these values."""
        for tag in self.tags:  # noqa: SIM110  # as above
            if len(tag) > 1 and tag[0] == name and tag[1] in values:
                return True
        return False

    @property
    def d(self) -> str:
        """Value of the first `d` tag, `""` without one (N01-43)."""
        return self.tag("d") or ""


class IndexedEvent(Event, frozen=True, gc=False):
    """An Event with an index of its tags, for comparison with thousands of filters and readers."""

    firsts: dict[str, str]
    values: dict[str, set[str]]

    def tag(self, name: str) -> str | None:
        return self.firsts.get(name)

    def has_tag(self, name: str) -> bool:
        return name in self.firsts

    def has_value(self, name: str, values: Collection[str]) -> bool:
        found = self.values.get(name)
        return found is not None and not found.isdisjoint(values)


def indexed(event: Event) -> Event:
    """With an index of its tags; the event itself if it has few, or has one."""
    if len(event.tags) <= _FEW_TAGS or isinstance(event, IndexedEvent):
        return event
    firsts: dict[str, str] = {}
    values: dict[str, set[str]] = {}
    for tag in event.tags:
        if len(tag) > 1:
            firsts.setdefault(tag[0], tag[1])
            values.setdefault(tag[0], set()).add(tag[1])
        elif tag:
            firsts.setdefault(tag[0], "")
    return IndexedEvent(
        event.id,
        event.pubkey,
        event.created_at,
        event.kind,
        event.tags,
        event.content,
        event.sig,
        event.raw,
        firsts,
        values,
    )


class Base(NamedTuple):
    """The version that another one was made from."""

    id: str
    """Empty: none was stored."""
    at: int
    """Its created_at, or its `ts` where versions are compared by that."""


def made_from(version: Event | None) -> list[str]:
    """The tag of an event that was made from this version; None: none was stored."""
    return [MADE_FROM, ""] if version is None else [MADE_FROM, version.id, str(version.created_at)]


def base_of(event: Event) -> Base | None:
    """The version that its first tag `made-from` names; None: it has no such tag. Raises
    Invalid."""
    tag = next((tag for tag in event.tags if tag and tag[0] == MADE_FROM), None)
    if tag is None:
        return None
    match tag[1:]:
        case [""]:
            return Base("", 0)
        case [id_, at] if is_hex64(id_) and at.isascii() and at.isdigit() and len(at) < 19:
            return Base(id_, int(at))
        case _:
            raise Invalid(
                f"{MADE_FROM}: must be the id and the created_at of the version, or one empty text"
            )


def is_hex64(value: object) -> bool:
    return isinstance(value, str) and _HEX64(value) is not None


def id_bytes(
    pubkey: str, created_at: int, kind: int, tags: Sequence[Sequence[str]], content: str
) -> bytes:
    """The serialization whose SHA-256 is the id (N01-20…25)."""
    return orjson.dumps([0, pubkey, created_at, kind, tags, content])


def event_from(fields: object) -> Event:
    """Validates shape and id of a decoded JSON value. Raises Invalid naming the field."""
    if type(fields) is not dict:
        raise Invalid("event: must be a JSON object")
    try:
        id_, pubkey, created_at = fields["id"], fields["pubkey"], fields["created_at"]
        kind, tags, content = fields["kind"], fields["tags"], fields["content"]
        sig = fields["sig"]
    except KeyError as missing:
        raise Invalid(f"{missing.args[0]}: missing") from None
    if type(id_) is not str or not _HEX64(id_):
        raise Invalid("id: must be 64 lowercase hex characters")
    if type(pubkey) is not str or not _HEX64(pubkey):
        raise Invalid("pubkey: must be 64 lowercase hex characters")
    if type(sig) is not str or not _HEX128(sig):
        raise Invalid("sig: must be 128 lowercase hex characters")
    # `type() is`, not isinstance(): True is an int in Python but no integer in JSON (N01-07).
    if type(created_at) is not int or not 0 <= created_at <= MAX_CREATED_AT:
        raise Invalid("created_at: must be an integer of seconds from 0 to 2^63 - 1")
    if type(kind) is not int or not 0 <= kind <= MAX_KIND:
        raise Invalid("kind: must be an integer from 0 to 65535")
    if type(content) is not str:
        raise Invalid("content: must be a string")
    if type(tags) is not list:
        raise Invalid("tags: must be an array of arrays of strings")
    for tag in tags:
        if type(tag) is not list:
            raise Invalid("tags: must be an array of arrays of strings")
        for value in tag:
            if type(value) is not str:
                raise Invalid("tags: must be an array of arrays of strings")
    return _with_checked_id(id_, pubkey, created_at, kind, tags, content, sig)


class _Fields(msgspec.Struct, gc=False):
    id: str
    pubkey: str
    created_at: int
    kind: int
    tags: list[list[str]]
    content: str
    sig: str


class _Frame(msgspec.Struct, array_like=True, gc=False):
    verb: str
    sub: str
    event: _Fields


class _SevenFields(_Fields, gc=False, forbid_unknown_fields=True):
    pass


class _Submission(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    verb: Literal["EVENT"]
    event: _SevenFields


_decode_frame: Final = msgspec.json.Decoder(_Frame).decode
_decode_submission: Final = msgspec.json.Decoder(_Submission).decode


def event_in_frame(text: str) -> Event:
    """The event of a relay's EVENT frame, validated like `event_from` but faster. Raises
    Invalid."""
    try:
        event = _decode_frame(text).event
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(f"event: {error}") from None
    return _checked(event)


def submitted_event(frame: bytes) -> Event | None:
    """The event of a client's EVENT frame that `event_from` would take, at three quarters of its
    cost. None: it would not, or there is more in the frame than an event of seven fields."""
    try:
        return _checked(_decode_submission(frame).event)
    except (msgspec.DecodeError, UnicodeDecodeError, Invalid):
        return None


def _checked(fields: _Fields) -> Event:
    """Of types that are checked. Raises Invalid."""
    if not (_HEX64(fields.pubkey) and _HEX128(fields.sig)):
        raise Invalid("pubkey, sig: must be 64 and 128 lowercase hex characters")
    if not (0 <= fields.created_at <= MAX_CREATED_AT and 0 <= fields.kind <= MAX_KIND):
        raise Invalid("created_at, kind: out of range")
    return _with_checked_id(
        fields.id,
        fields.pubkey,
        fields.created_at,
        fields.kind,
        fields.tags,
        fields.content,
        fields.sig,
    )


def _with_checked_id(
    id_: str, pubkey: str, created_at: int, kind: int, tags: list[list[str]], content: str, sig: str
) -> Event:
    if sha256(id_bytes(pubkey, created_at, kind, tags, content)).hexdigest() != id_:
        raise Invalid("id: is not the hash of this event")
    return Event(
        id_,
        pubkey,
        created_at,
        kind,
        tags,
        content,
        sig,
        _raw(id_, pubkey, created_at, kind, tags, content, sig),
    )


def signed(
    pubkey: str, created_at: int, kind: int, tags: list[list[str]], content: str, sign: Signer
) -> Event:
    """A new event; `sign` returns the signature as 128 hex for the 32 bytes of the id."""
    digest = sha256(id_bytes(pubkey, created_at, kind, tags, content))
    id_ = digest.hexdigest()
    sig = sign(digest.digest())
    return Event(
        id_,
        pubkey,
        created_at,
        kind,
        tags,
        content,
        sig,
        _raw(id_, pubkey, created_at, kind, tags, content, sig),
    )


def parsing_weight(raw: bytes) -> int:
    """The time that parsing takes, in bytes of content: 1 MiB takes 2 ms."""
    return len(raw) + _PARSED_TAG * most_tags(raw)


def most_tags(raw: bytes) -> int:
    """Of `Event.raw`: no fewer than its tags. Brackets in the content count as none, but for one at
    the end of a text."""
    return raw.count(b'["') + raw.count(b"[]")


def weight_of(event: Event) -> int:
    """Estimated bytes in memory, which may be many more than of its JSON: tags are lists of texts,
    perhaps very short ones."""
    tags, content, size = event.tags, event.content, len(event.raw)
    values = sum(map(len, tags))
    if event.raw.isascii():
        texts = size
    elif values > _FEW_VALUES:
        texts = _WIDE_WEIGHT * size
    else:
        all_ = (content, *chain.from_iterable(tags))
        wide = filterfalse(str.isascii, all_)
        texts = sum(map(len, all_)) + (_WIDE_WEIGHT - 1) * sum(map(len, wide))
    further = max(0, values - 2 * len(tags))
    return _OWN_WEIGHT + size + texts + _TAG_WEIGHT * len(tags) + _VALUE_WEIGHT * further


def event_from_raw(raw: bytes) -> Event:
    """Parse `Event.raw`; not validated again."""
    fields = orjson.loads(raw)
    return Event(
        fields["id"],
        fields["pubkey"],
        fields["created_at"],
        fields["kind"],
        fields["tags"],
        fields["content"],
        fields["sig"],
        raw,
    )


def _raw(
    id_: str, pubkey: str, created_at: int, kind: int, tags: list[list[str]], content: str, sig: str
) -> bytes:
    dumped = orjson.dumps(
        {
            "id": id_,
            "pubkey": pubkey,
            "created_at": created_at,
            "kind": kind,
            "tags": tags,
            "content": content,
            "sig": sig,
        }
    )
    # Copied: the bytes that orjson returns keep their whole buffer, up to ten times as large.
    return b"".join((b"", dumped))


if TYPE_CHECKING:
    from collections.abc import Callable

    Signer = Callable[[bytes], str]


class Address(NamedTuple):
    """Names an event of which there are versions, whichever is current."""

    pubkey: str
    kind: int
    d: str

    def __str__(self) -> str:
        """The value of a tag `a`."""
        return f"{self.kind}:{self.pubkey}:{self.d}"


def address_of(value: str) -> Address | None:
    """The address in an `a` value `kind:pubkey:d`; None when malformed (N09-05, N09-15)."""
    kind, _, rest = value.partition(":")
    pubkey, colon, d = rest.partition(":")
    if not (colon and is_kind(kind) and is_hex64(pubkey)):
        return None
    number = int(kind)
    if class_of(number) is KindClass.REPLACEABLE:
        d = ""
    return Address(pubkey, number, d)


def has_too_many_arrays(text: str | bytes) -> bool:
    """Whether a JSON text has over `MAX_ARRAYS` arrays and objects, brackets in its texts aside.
    Takes 4 ms at most for 400,000 characters."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    if data.count(b"[") + data.count(b"{") <= MAX_ARRAYS:
        return False
    # Escaped quotes end no text, and two in a row change nothing: what is left between texts has at
    # least one bracket.
    data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = data.translate(None, _NO_MARKS).replace(b'""', b"")
    between_texts = marks.split(b'"', 2 * MAX_ARRAYS + 2)[::2]
    return sum(map(len, between_texts)) > MAX_ARRAYS


def json_in(text: str) -> object:
    """The value of a JSON text of somebody else. Raises ValueError for any other text, and for
    too many arrays."""
    if has_too_many_arrays(text):
        raise ValueError(f"over {MAX_ARRAYS:,} arrays and objects")
    return orjson.loads(text)


def object_in(content: str) -> dict[str, object] | None:
    """The fields of a JSON object of somebody else; None for any other text, and for too many
    arrays."""
    return None if has_too_many_arrays(content) else object_of_any_size(content)


def object_of_any_size(content: str) -> dict[str, object] | None:
    """`object_in` without a limit: of the user's own files, and of what must be written back as it
    was. Takes up to 0.1 s for 400,000 characters."""
    if not content.lstrip(" \t\r\n").startswith("{"):
        return None
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        # orjson rejects lone surrogates and nesting over 1024 levels.
        try:
            value = json.loads(content, parse_constant=_no_json)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _no_json(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are no JSON

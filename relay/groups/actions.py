"""Event → Action: what a 9000–9022 asks for, its form checked once, at the edge.

Invariants: whatever is wrong here is `invalid:` and can be seen in the event alone. Who may do it,
and what it does, is `relay.groups.rules`'s question.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.groups.group import FLAGS, PIN_TAGS, SINGLE_VALUED, number_in
from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from relay.groups.group import Flag
    from relay.nostr.event import Event

MAX_ID_CHARS: Final = 64
MAX_ROLES: Final = 8
MAX_ROLE_CHARS: Final = 64
MIN_CODE_CHARS: Final = 8
MAX_PINS: Final = 64
MAX_COPIED_TAGS: Final = 64
"""Tags of a 9002 unknown to NIP-29 that 39000 repeats (N29-49)."""

CONFIRMING: Final = frozenset({"public", "visible", "open"})
"""Tags by which a 9002 says that it means to drop a flag (Z-03)."""
_SAID_OTHERWISE: Final = CONFIRMING | {
    "h",
    "d",
    "previous",
    "-",
    "expiration",
    "nonce",
    "unrestricted",
    "parent",
    "child",
}
"""Tags of a 9002 that 39000 does not repeat as they are."""

_NEVER_EXPIRING: Final = frozenset(
    {kinds.PUT_USER, kinds.REMOVE_USER, kinds.CREATE_GROUP, kinds.DELETE_GROUP, kinds.JOIN_REQUEST}
)
"""Kinds that the state is rebuilt from: one that went by itself would take members along."""


@dataclass(frozen=True, slots=True)
class Description:
    """What 39000 is to say; what is absent is unset (N29-48)."""

    metadata: tuple[tuple[str, ...], ...] = ()
    flags: frozenset[Flag] = frozenset()
    supported_kinds: frozenset[int] | None = None
    parent: str | None = None
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """9007. Without flags it is a bare one, whose flags are the policy's (Z-03)."""

    group: str
    description: Description


@dataclass(frozen=True, slots=True)
class EditMetadata:
    """9002."""

    group: str
    description: Description
    confirmed: frozenset[str]
    """Those of CONFIRMING that it has."""


@dataclass(frozen=True, slots=True)
class PutUsers:
    """9000: pubkey → exactly these roles."""

    group: str
    users: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class RemoveUsers:
    """9001."""

    group: str
    pubkeys: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeleteEvents:
    """9005: ids in the order of the event."""

    group: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """9008."""

    group: str


@dataclass(frozen=True, slots=True)
class CreateInvites:
    """9009."""

    group: str
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UpdatePins:
    """9010: the whole new list, as `e` and `a` tags; of two that name the same the first."""

    group: str
    pins: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """9021."""

    group: str
    code: str | None


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """9022."""

    group: str


Moderation = (
    EditMetadata | PutUsers | RemoveUsers | DeleteEvents | DeleteGroup | CreateInvites | UpdatePins
)
Action = CreateGroup | Moderation | JoinRequest | LeaveRequest


def group_of(event: Event) -> str | None:
    """The group that a row belongs to: its `h`; the `d` of 39000–39005.

    Raises Invalid for two `h`, even equal ones, and for one that names nothing (N29-04, N29-05).
    """
    if event.kind in kinds.GROUP_STATE:
        return event.tag("d")
    found: list[str] | None = None
    for tag in event.tags:
        if tag and tag[0] == "h":
            if found is not None:
                raise Invalid("one h tag only")
            found = tag
    if found is None:
        return None
    if len(found) < 2 or not found[1]:
        raise Invalid("h: must name a group")
    return found[1]


def action_of(event: Event) -> Action | None:
    """What a 9000–9022 asks for; None for other kinds. Raises Invalid naming the tag."""
    if event.kind not in kinds.GROUP_RECORDS:
        return None
    reader = _READERS.get(event.kind)
    if reader is None:
        raise Invalid("unknown moderation kind")
    group_id = group_of(event)
    if group_id is None:
        raise Invalid("h: missing")
    if event.has_tag("expiration"):
        if event.kind in _NEVER_EXPIRING:
            raise Invalid(f"expiration: kind {event.kind} is kept as long as its group")
        if number_in(event.tag("expiration")) is None:
            raise Invalid("bad expiration")
    return reader(event, group_id)


def _created(event: Event, group_id: str) -> CreateGroup:
    _check_id(group_id)
    return CreateGroup(group_id, _described(event))


def _edited(event: Event, group_id: str) -> EditMetadata:
    confirmed = frozenset(tag[0] for tag in event.tags if tag and tag[0] in CONFIRMING)
    return EditMetadata(group_id, _described(event), confirmed)


def _put(event: Event, group_id: str) -> PutUsers:
    users: dict[str, tuple[str, ...]] = {}
    for pubkey, roles in _people(event):
        if len(roles) > MAX_ROLES:
            raise Invalid(f"p: {len(roles)} roles, at most {MAX_ROLES} allowed")
        if not all(1 <= len(role) <= MAX_ROLE_CHARS for role in roles):
            raise Invalid(f"p: a role has 1 to {MAX_ROLE_CHARS} characters")
        if users.setdefault(pubkey, roles) != roles:
            raise Invalid("p: one key with two sets of roles")
    return PutUsers(group_id, users)


def _removed(event: Event, group_id: str) -> RemoveUsers:
    return RemoveUsers(group_id, frozenset(pubkey for pubkey, _ in _people(event)))


def _deleted(event: Event, group_id: str) -> DeleteEvents:
    ids = tuple(dict.fromkeys(_values(event, "e")))
    if not all(map(is_hex64, ids)):
        raise Invalid("e: must be 64 lowercase hex characters")
    return DeleteEvents(group_id, ids)


def _ended(_event: Event, group_id: str) -> DeleteGroup:
    return DeleteGroup(group_id)


def _invited(event: Event, group_id: str) -> CreateInvites:
    codes = _values(event, "code")
    if any(len(code) < MIN_CODE_CHARS for code in codes):
        raise Invalid(f"code: must have at least {MIN_CODE_CHARS} characters")
    if len(set(codes)) < len(codes):
        raise Invalid("code: the same twice")
    return CreateInvites(group_id, tuple(codes))


def _pinned(event: Event, group_id: str) -> UpdatePins:
    pins: dict[tuple[str, str], tuple[str, ...]] = {}
    for tag in event.tags:
        if tag and tag[0] in PIN_TAGS:
            pins.setdefault((tag[0], tag[1] if len(tag) > 1 else ""), tuple(tag))
    if len(pins) > MAX_PINS:
        raise Invalid(f"e, a: {len(pins)} pins, at most {MAX_PINS} allowed")
    return UpdatePins(group_id, tuple(pins.values()))


def _joining(event: Event, group_id: str) -> JoinRequest:
    return JoinRequest(group_id, event.tag("code") or None)


def _leaving(_event: Event, group_id: str) -> LeaveRequest:
    return LeaveRequest(group_id)


_READERS: Final[Mapping[int, Callable[[Event, str], Action]]] = {
    kinds.PUT_USER: _put,
    kinds.REMOVE_USER: _removed,
    kinds.EDIT_METADATA: _edited,
    kinds.DELETE_EVENT: _deleted,
    kinds.CREATE_GROUP: _created,
    kinds.DELETE_GROUP: _ended,
    kinds.CREATE_INVITE: _invited,
    kinds.UPDATE_PINS: _pinned,
    kinds.JOIN_REQUEST: _joining,
    kinds.LEAVE_REQUEST: _leaving,
}


def _check_id(group_id: str) -> None:
    """What a new group may be called (N29-02); an id in use is compared byte for byte."""
    if len(group_id) > MAX_ID_CHARS:
        raise Invalid(f"h: {len(group_id)} characters, at most {MAX_ID_CHARS} allowed")
    if any(char in "'/?#" or unicodedata.category(char) == "Cc" for char in group_id):
        raise Invalid("h: must not contain ' / ? # or control characters")
    if group_id != group_id.strip():
        raise Invalid("h: must not begin or end with a space")
    if group_id in (".", ".."):
        raise Invalid("h: must not be a relative path")


def _values(event: Event, name: str) -> list[str]:
    """Element 1 of each tag of this name; at least one, and none without it."""
    values = [tag[1] if len(tag) > 1 else "" for tag in event.tags if tag and tag[0] == name]
    if not values:
        raise Invalid(f"{name}: missing")
    return values


def _people(event: Event) -> list[tuple[str, tuple[str, ...]]]:
    """(pubkey, further elements without repetition) of the `p` tags."""
    if not all(map(is_hex64, _values(event, "p"))):
        raise Invalid("p: must be 64 lowercase hex characters")
    return [(tag[1], tuple(dict.fromkeys(tag[2:]))) for tag in event.tags if tag and tag[0] == "p"]


def _described(event: Event) -> Description:
    """What a 9002 or 9007 says of its group (N29-48, N29-49)."""
    single: dict[str, tuple[str, ...]] = {}
    copied: list[tuple[str, ...]] = []
    flags: set[Flag] = set()
    supported: frozenset[int] | None = None
    for tag in event.tags:
        name = tag[0] if tag else ""
        if name in FLAGS:
            flags.add(FLAGS[name])
        elif name == "supported_kinds":
            supported = _kinds_in(tag) if supported is None else supported
        elif name in SINGLE_VALUED:
            single.setdefault(name, tuple(tag))
        elif name and name not in _SAID_OTHERWISE and len(copied) < MAX_COPIED_TAGS:
            copied.append(tuple(tag))
    ordered = [single[name] for name in SINGLE_VALUED if name in single]
    return Description(
        (*ordered, *copied), frozenset(flags), supported, _parent_in(event), _children_in(event)
    )


def _parent_in(event: Event) -> str | None:
    parents = _named(event, "parent")
    if len(parents) > 1:
        raise Invalid("parent: one tag only")
    return parents[0] if parents else None


def _children_in(event: Event) -> tuple[str, ...]:
    return tuple(_named(event, "child"))


def _named(event: Event, name: str) -> list[str]:
    """The groups that the tags of this name name."""
    values = [tag[1] if len(tag) > 1 else "" for tag in event.tags if tag and tag[0] == name]
    if not all(values):
        raise Invalid(f"{name}: must name a group")
    return values


def _kinds_in(tag: list[str]) -> frozenset[int]:
    numbers = [number_in(value) for value in tag[1:]]
    if not all(number is not None and number <= kinds.MAX_KIND for number in numbers):
        raise Invalid(f"supported_kinds: must be kind numbers from 0 to {kinds.MAX_KIND}")
    return frozenset(number for number in numbers if number is not None)

"""Event → Action: what a 9000–9022 asks for, its tags parsed once.

Invariants: rules and fold read Actions, never tags. `action_of` parses an event to be written and
raises Invalid if it is malformed. `logged_action` parses a row of the log with the same parsers,
but never raises: an older version may have accepted what is malformed or too long now. For an event
that `action_of` accepts, both return the same Action.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypedDict

import msgspec
import orjson

from relay.errors import Invalid
from relay.nostr import kinds
from relay.nostr.event import MADE_FROM, is_hex64
from relay.nostr.nip29 import uuid_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence, Set

    from relay.nostr.event import Event

    Fault = Callable[[str], None]
    """Called with a description of what is malformed."""

MAX_ID_CHARS: Final = 64
MAX_ROLES: Final = 8
MAX_ROLE_CHARS: Final = 64
MIN_CODE_CHARS: Final = 8
MAX_CODE_CHARS: Final = 256
MAX_PINS: Final = 64
MAX_STATE_BYTES: Final = 65_536
"""Of the description in an action, as JSON: the relay repeats all of it in each 39000."""
MAX_PINS_BYTES: Final = 16_384
"""The same of the pins: when a message is deleted, the 39005s of all groups that pin it change."""
MAX_COPIED_TAGS: Final = 64
"""Tags of a 9002 unknown to NIP-29 that 39000 repeats (N29-49)."""


class Flag(StrEnum):
    """The flags of 39000, independent of each other."""

    PRIVATE = "private"
    RESTRICTED = "restricted"
    HIDDEN = "hidden"
    CLOSED = "closed"
    LIVEKIT = "livekit"


PRIVATE_FLAGS: Final = frozenset({Flag.PRIVATE, Flag.RESTRICTED, Flag.CLOSED})
"""Of a private group."""
UNTOLD_FLAGS: Final = PRIVATE_FLAGS | {Flag.HIDDEN}
"""Of a group whose 39000 has not been replayed: a gap in the log makes nothing public."""
FLAGS: Final[Mapping[str, Flag]] = {flag.value: flag for flag in Flag}
SINGLE_VALUED: Final = ("name", "picture", "banner", "about")
"""Tags that 39000 has at most once, before all others (N29-62)."""
PIN_TAGS: Final = ("e", "a")
OPPOSITE: Final = {
    "private": "public",
    "restricted": "unrestricted",
    "closed": "open",
    "hidden": "visible",
}
"""Flag → the tag of a 9002 that confirms that it is dropped on purpose (Z-03)."""
CONFIRMING: Final = frozenset({"public", "visible", "open"})
"""Tags of a 9002 that confirm that a flag is dropped on purpose (Z-03)."""
_NOT_METADATA: Final = frozenset({"d", "supported_kinds", "parent", "child", *FLAGS})
_NOT_DESCRIBING: Final = _NOT_METADATA | CONFIRMING
"""Tags of a 39000 that follow from its flags or are not metadata."""
_NOT_COPIED: Final = (
    _NOT_METADATA
    | CONFIRMING
    | {"h", "previous", "-", "expiration", "nonce", "unrestricted", MADE_FROM}
)
"""Tags of a 9002 that 39000 does not repeat as they are."""
_NO_PREFIXES: Final[frozenset[str]] = frozenset()
_NO_KINDS: Final[frozenset[int]] = frozenset()
_NEVER_EXPIRING: Final = frozenset(
    {*kinds.GROUP_RECORDS} - {kinds.DELETE_EVENT, kinds.CREATE_INVITE, kinds.LEAVE_REQUEST}
)
"""The state is replayed or imported from these; without one of them members would be lost, or a
private group would be public."""


@dataclass(frozen=True, slots=True)
class Description:
    """The metadata of a group: 39000 without `d`. What is absent is unset (N29-48)."""

    metadata: tuple[tuple[str, ...], ...] = ()
    """The tags that no other field holds, in order."""
    flags: frozenset[Flag] = frozenset()
    supported_kinds: frozenset[int] | None = None
    parent: str | None = None
    children: tuple[str, ...] = ()


class InviteUse(NamedTuple):
    """An `invite` tag of a 9000: the code by which its user joined."""

    event_id: str
    """The 9009."""
    code_index: int
    """Index among its `code` tags."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of all Actions. A Struct: a replay makes one for each 9000–9022 in the log."""

    kind: ClassVar[int]
    group: str
    pubkey: str
    created_at: int
    id: str = ""
    """Empty before the relay has signed it."""
    previous: frozenset[str] = frozenset()
    """Prefixes of ids that `previous` tags name."""


class CreateGroup(Record, frozen=True, kw_only=True):
    kind: ClassVar[int] = kinds.CREATE_GROUP
    description: Description
    """Without flags the group gets those of the policy (Z-03)."""


class EditMetadata(Record, frozen=True, kw_only=True):
    kind: ClassVar[int] = kinds.EDIT_METADATA
    description: Description
    confirmed: frozenset[str] = frozenset()
    """The tags in CONFIRMING that the event has."""


class PutUsers(Record, frozen=True, kw_only=True):
    kind: ClassVar[int] = kinds.PUT_USER
    users: Mapping[str, tuple[str, ...]]
    """pubkey → exactly these roles."""
    invite_uses: tuple[InviteUse, ...] = ()


class RemoveUsers(Record, frozen=True, kw_only=True):
    kind: ClassVar[int] = kinds.REMOVE_USER
    pubkeys: frozenset[str]
    is_own_wish: bool = False
    """Tag `self-removal`: the users left of their own accord."""


class DeleteEvents(Record, frozen=True, kw_only=True):
    kind: ClassVar[int] = kinds.DELETE_EVENT
    ids: tuple[str, ...]
    """In the order of the event, without repetition."""


class DeleteGroup(Record, frozen=True, kw_only=True):
    kind: ClassVar[int] = kinds.DELETE_GROUP


class CreateInvites(Record, frozen=True, kw_only=True):
    kind: ClassVar[int] = kinds.CREATE_INVITE
    codes: tuple[str, ...]
    reusable: bool = False
    expires_at: int | None = None


class UpdatePins(Record, frozen=True, kw_only=True):
    kind: ClassVar[int] = kinds.UPDATE_PINS
    pins: tuple[tuple[str, ...], ...] = ()
    """The complete new list of `e` and `a` tags; of equal values only the first is kept."""


class JoinRequest(Record, frozen=True, kw_only=True):
    kind: ClassVar[int] = kinds.JOIN_REQUEST
    code: str | None = None


class LeaveRequest(Record, frozen=True, kw_only=True):
    kind: ClassVar[int] = kinds.LEAVE_REQUEST


Moderation = (
    EditMetadata | PutUsers | RemoveUsers | DeleteEvents | DeleteGroup | CreateInvites | UpdatePins
)
Action = CreateGroup | Moderation | JoinRequest | LeaveRequest


def users_in(action: Action) -> Set[str] | None:
    """All keys whose membership the action may change; None: unknown."""
    match action:
        case PutUsers(users=users):
            return users.keys()
        case RemoveUsers(pubkeys=pubkeys):
            return pubkeys
        case JoinRequest(pubkey=pubkey) | LeaveRequest(pubkey=pubkey):
            return {pubkey}
        case _:
            return None


class Notice(msgspec.Struct, frozen=True):
    """A 39000–39005 that the relay signed: the effect of an Action under the policy in force
    then."""

    kind: int
    group: str
    created_at: int
    description: Description | None = None
    """Set for a 39000."""
    pins: tuple[tuple[str, ...], ...] | None = None
    """Set for a 39005."""


def group_of(event: Event, foreign_h: Set[int] = _NO_KINDS) -> str | None:
    """The group that a row belongs to: its `h`; the `d` of 39000–39005.

    `foreign_h`: kinds whose `h` names no group of NIP-29. Raises Invalid for two `h`, even equal
    ones, and for an empty one (N29-04, N29-05).
    """
    if event.kind in kinds.GROUP_STATE:
        return event.tag("d")
    if event.kind in foreign_h or event.kind in kinds.GROUP_MEMBER_NOTICES:
        return None
    found: list[str] | None = None
    for tag in event.tags:
        if tag and tag[0] == "h":
            if found is not None:
                raise Invalid("one h tag only")
            found = tag
    if found is None:
        return uuid_from(event.id) if event.kind == kinds.CREATE_GROUP else None
    if len(found) < 2 or not found[1]:
        raise Invalid("h: must name a group")
    return found[1]


def action_of(event: Event) -> Action | None:
    """What a 9000–9022 asks for; None for other kinds. Raises Invalid naming the tag."""
    if event.kind not in kinds.GROUP_RECORDS:
        return None
    parse = _PARSERS.get(event.kind)
    if parse is None:
        raise Invalid("unknown moderation kind")
    group_id = group_of(event)
    if group_id is None:
        raise Invalid("h: missing")
    if event.has_tag("expiration"):
        if event.kind in _NEVER_EXPIRING:
            raise Invalid(f"expiration: kind {event.kind} is kept as long as its group")
        if number_in(event.tag("expiration")) is None:
            raise Invalid("bad expiration")
    return parse(event, group_id, _raise)


def logged_action(event: Event, relay_pubkey: str) -> Action | Notice | None:
    """What a row of the log changes in a group; None: nothing. Never raises."""
    if event.kind in kinds.GROUP_RECORDS:
        parse, group_id = _PARSERS.get(event.kind), event.tag("h")
        if event.kind == kinds.CREATE_GROUP and not event.has_tag("h"):
            group_id = uuid_from(event.id)
        return parse(event, group_id, _ignore) if parse is not None and group_id else None
    if event.kind in kinds.GROUP_STATE and event.pubkey == relay_pubkey:
        return _notice(event)
    return None


def previous_in(event: Event) -> frozenset[str]:
    """Prefixes of ids that the event's `previous` tags name (N29-20)."""
    tags = [tag[1:] for tag in event.tags if tag and tag[0] == "previous"]
    return frozenset(chain.from_iterable(tags)) if tags else _NO_PREFIXES


def number_in(text: str | None) -> int | None:
    """A decimal integer from 0 to below 10^18; None for anything else."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 19):
        return None
    return int(text)


def _raise(text: str) -> None:
    raise Invalid(text)


def _ignore(text: str) -> None:
    pass


# -- one parser per kind --------------------------------------------------------------------------


def _create_group(event: Event, group_id: str, fault: Fault) -> CreateGroup:
    _check_id(group_id, fault)
    description = _with_tags_of_buzz(_description(event, fault), event)
    return CreateGroup(**_header(event, group_id), description=description)


def _with_tags_of_buzz(description: Description, event: Event) -> Description:
    """Buzz: `visibility` private means the flags of a private group; 39000 has the type as first
    `t`."""
    if event.tag("visibility") == "private":
        description = replace(description, flags=description.flags | PRIVATE_FLAGS)
    channel_type = event.tag("channel_type")
    if channel_type:
        known = tuple(tag for tag in description.metadata if tag[0] in SINGLE_VALUED)
        others = tuple(tag for tag in description.metadata if tag[0] not in SINGLE_VALUED)
        description = replace(description, metadata=(*known, ("t", channel_type), *others))
    return description


def _edit_metadata(event: Event, group_id: str, fault: Fault) -> EditMetadata:
    return EditMetadata(
        **_header(event, group_id),
        description=_description(event, fault),
        confirmed=frozenset(tag[0] for tag in event.tags if tag and tag[0] in CONFIRMING),
    )


def _put_users(event: Event, group_id: str, fault: Fault) -> PutUsers:
    users: dict[str, tuple[str, ...]] = {}
    for tag in _users(event, fault):
        pubkey, roles = tag[1], tuple(dict.fromkeys(tag[2:]))
        if len(roles) > MAX_ROLES:
            fault(f"p: {len(roles)} roles, at most {MAX_ROLES} allowed")
        elif not all(1 <= len(role) <= MAX_ROLE_CHARS for role in roles):
            fault(f"p: a role has 1 to {MAX_ROLE_CHARS} characters")
        else:
            roles = _shared_roles(roles)
        if users.get(pubkey, roles) != roles:
            fault("p: one key with two sets of roles")
        users[pubkey] = roles
    uses = [
        InviteUse(tag[1], index)
        for tag in event.tags
        if len(tag) > 2 and tag[0] == "invite" and (index := number_in(tag[2])) is not None
    ]
    return PutUsers(**_header(event, group_id), users=users, invite_uses=tuple(uses))


def _remove_users(event: Event, group_id: str, fault: Fault) -> RemoveUsers:
    return RemoveUsers(
        **_header(event, group_id),
        pubkeys=frozenset(tag[1] for tag in _users(event, fault)),
        is_own_wish=event.has_tag("self-removal"),
    )


def _delete_events(event: Event, group_id: str, fault: Fault) -> DeleteEvents:
    ids = _values(event, "e", fault)
    if not all(map(is_hex64, ids)):
        fault("e: must be 64 lowercase hex characters")
    return DeleteEvents(**_header(event, group_id), ids=tuple(dict.fromkeys(ids)))


def _delete_group(event: Event, group_id: str, _fault: Fault) -> DeleteGroup:
    return DeleteGroup(**_header(event, group_id))


def _create_invites(event: Event, group_id: str, fault: Fault) -> CreateInvites:
    codes = _values(event, "code", fault)
    if any(len(code) < MIN_CODE_CHARS for code in codes):
        fault(f"code: must have at least {MIN_CODE_CHARS} characters")
    if any(len(code) > MAX_CODE_CHARS for code in codes):
        fault(f"code: must have at most {MAX_CODE_CHARS} characters")
    if len(set(codes)) < len(codes):
        fault("code: the same twice")
    return CreateInvites(
        **_header(event, group_id),
        codes=tuple(codes),
        reusable=event.has_tag("reusable"),
        expires_at=number_in(event.tag("expiration")),
    )


def _update_pins(event: Event, group_id: str, fault: Fault) -> UpdatePins:
    pins: dict[tuple[str, str], tuple[str, ...]] = {}
    for tag in event.tags:
        if tag and tag[0] in PIN_TAGS:
            pins.setdefault((tag[0], tag[1] if len(tag) > 1 else ""), tuple(tag))
    if len(pins) > MAX_PINS:
        fault(f"e, a: {len(pins)} pins, at most {MAX_PINS} allowed")
    _check_size("e, a", [*pins.values()], fault, MAX_PINS_BYTES)
    return UpdatePins(**_header(event, group_id), pins=tuple(pins.values()))


def _join_request(event: Event, group_id: str, _fault: Fault) -> JoinRequest:
    return JoinRequest(**_header(event, group_id), code=event.tag("code") or None)


def _leave_request(event: Event, group_id: str, _fault: Fault) -> LeaveRequest:
    return LeaveRequest(**_header(event, group_id))


_PARSERS: Final[Mapping[int, Callable[[Event, str, Fault], Action]]] = {
    kinds.PUT_USER: _put_users,
    kinds.REMOVE_USER: _remove_users,
    kinds.EDIT_METADATA: _edit_metadata,
    kinds.DELETE_EVENT: _delete_events,
    kinds.CREATE_GROUP: _create_group,
    kinds.DELETE_GROUP: _delete_group,
    kinds.CREATE_INVITE: _create_invites,
    kinds.UPDATE_PINS: _update_pins,
    kinds.JOIN_REQUEST: _join_request,
    kinds.LEAVE_REQUEST: _leave_request,
}


def _notice(event: Event) -> Notice | None:
    group_id, description, pins = event.tag("d"), None, None
    if not group_id:
        return None
    if event.kind == kinds.GROUP_METADATA:
        description = Description(
            tuple(tuple(tag) for tag in event.tags if tag and tag[0] not in _NOT_DESCRIBING),
            _shared_flags(
                frozenset(FLAGS[tag[0]] for tag in event.tags if tag and tag[0] in FLAGS)
            ),
            _supported_kinds(event, _ignore),
            event.tag("parent"),
            tuple(event.tag_values("child")),
        )
    elif event.kind == kinds.GROUP_PINS:
        pins = tuple(tuple(tag) for tag in event.tags if len(tag) > 1 and tag[0] in PIN_TAGS)
    return Notice(event.kind, group_id, event.created_at, description, pins)


# A group keeps the sets of flags and roles, and there may be 100,000 groups: equal ones of late are
# one object.


@lru_cache
def _shared_flags(flags: frozenset[Flag]) -> frozenset[Flag]:
    return flags


@lru_cache
def _shared_roles(roles: tuple[str, ...]) -> tuple[str, ...]:
    return roles


def edit_tags(
    metadata: Iterable[Sequence[str]],
    group_id: str,
    texts: Mapping[str, str],
    flags: Mapping[str, bool],
) -> list[list[str]]:
    """Tags of a 9002. It replaces all of the 39000, so what is not changed is repeated.

    `metadata`: tags of the 39000. An empty text removes the one that was there.
    """
    tags = [list(tag) for tag in metadata if tag]
    before = {tag[0] for tag in tags}
    changed = {"d", MADE_FROM, *OPPOSITE, *OPPOSITE.values(), *texts}
    said = [[name, text] for name, text in texts.items() if text]
    kept = [tag for tag in tags if tag[0] not in changed]
    on = [[flag] for flag in OPPOSITE if flags.get(flag, flag in before)]
    off = [[OPPOSITE[flag]] for flag, is_on in flags.items() if not is_on]
    return [["h", group_id], *said, *kept, *on, *off]


# -- parts of events ------------------------------------------------------------------------------


class _Header(TypedDict):
    group: str
    pubkey: str
    created_at: int
    id: str
    previous: frozenset[str]


def _header(event: Event, group_id: str) -> _Header:
    return {
        "group": group_id,
        "pubkey": event.pubkey,
        "created_at": event.created_at,
        "id": event.id,
        "previous": previous_in(event),
    }


def _check_id(group_id: str, fault: Fault) -> None:
    """The id of a new group (N29-02); afterwards ids are compared byte for byte."""
    if len(group_id) > MAX_ID_CHARS:
        fault(f"h: {len(group_id)} characters, at most {MAX_ID_CHARS} allowed")
    if any(char in "'/?#" or unicodedata.category(char) == "Cc" for char in group_id):
        fault("h: must not contain ' / ? # or control characters")
    if group_id != group_id.strip():
        fault("h: must not begin or end with a space")
    if group_id in (".", ".."):
        fault("h: must not be a relative path")


def _values(event: Event, name: str, fault: Fault) -> Sequence[str]:
    """Element 1 of each tag of this name, "" where there is none; at least one tag is required."""
    values = [tag[1] if len(tag) > 1 else "" for tag in event.tags if tag and tag[0] == name]
    if not values:
        fault(f"{name}: missing")
    return values


def _users(event: Event, fault: Fault) -> Sequence[Sequence[str]]:
    """The `p` tags that name a key."""
    tags = [tag for tag in event.tags if tag and tag[0] == "p"]
    if not tags:
        fault("p: missing")
    users = [tag for tag in tags if len(tag) > 1 and is_hex64(tag[1])]
    if len(users) < len(tags):
        fault("p: must be 64 lowercase hex characters")
    return users


def _description(event: Event, fault: Fault) -> Description:
    """What a 9002 or 9007 says of its group (N29-48, N29-49)."""
    single: dict[str, tuple[str, ...]] = {}
    copied: list[tuple[str, ...]] = []
    for tag in event.tags:
        name = tag[0] if tag else ""
        if name in SINGLE_VALUED:
            single.setdefault(name, tuple(tag))
        elif name and name not in _NOT_COPIED and len(copied) < MAX_COPIED_TAGS:
            copied.append(tuple(tag))
    ordered = [single[name] for name in SINGLE_VALUED if name in single]
    repeated = [tag for tag in event.tags if tag and tag[0] in _NOT_METADATA]
    _check_size("tags", (*ordered, *copied, *repeated), fault)
    supported = _supported_kinds(event, fault)
    parents = _group_ids(event, "parent", fault)
    if len(parents) > 1:
        fault("parent: one tag only")
    return Description(
        (*ordered, *copied),
        frozenset(FLAGS[tag[0]] for tag in event.tags if tag and tag[0] in FLAGS),
        supported,
        parents[0] if parents else None,
        tuple(_group_ids(event, "child", fault)),
    )


def _check_size(
    name: str, tags: Sequence[Sequence[str]], fault: Fault, most: int = MAX_STATE_BYTES
) -> None:
    size = size_of_tags(tags)
    if size > most:
        fault(f"{name}: {size} bytes, at most {most} allowed")


def size_of_tags(tags: Sequence[Sequence[str]]) -> int:
    """Bytes as JSON."""
    return len(orjson.dumps(tags))


def _group_ids(event: Event, name: str, fault: Fault) -> Sequence[str]:
    """The values of the tags of this name."""
    values = [tag[1] if len(tag) > 1 else "" for tag in event.tags if tag and tag[0] == name]
    if not all(values):
        fault(f"{name}: must name a group")
    return values


def _supported_kinds(event: Event, fault: Fault) -> frozenset[int] | None:
    """The kinds in the first `supported_kinds` tag; None: there is none."""
    tag = next((tag for tag in event.tags if tag and tag[0] == "supported_kinds"), None)
    if tag is None:
        return None
    numbers = [number_in(value) for value in tag[1:]]
    if not all(number is not None and number <= kinds.MAX_KIND for number in numbers):
        fault(f"supported_kinds: must be kind numbers from 0 to {kinds.MAX_KIND}")
    return frozenset(number for number in numbers if number is not None)

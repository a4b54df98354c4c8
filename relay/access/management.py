"""NIP-86 management: the lists and texts that calls change, as a value. They precede policy files.

Invariants: a call is one or two ListChanges, stored as they are and folded here; only the lane
makes them. The effect of a ban on reads is in `relay.access.visibility`, on rows in
`relay.lifecycle.deletion`, on open connections in `relay.server`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

import orjson

from relay.errors import EVENT_BANNED, Invalid, Prefix, Reject, Unsupported
from relay.groups.key_map import KeyMap
from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from ipaddress import IPv4Address, IPv6Address

    from relay.access.actors import Actors
    from relay.nostr.event import Event

MAX_ENTRIES: Final = 10_000
"""Most entries of one list. Every query has all banned keys as a condition: 2 ms at this number."""
MAX_EVENTS: Final = 100_000
"""Most entries of a list of event ids."""
MAX_CLAIMS: Final = 1000
"""Most invite codes of the relay; each code that is tried is compared with all of them."""
_MAX_REASON: Final = 1000
_MAX_ROLES: Final = 100
_MAX_LABEL: Final = 100
_MAX_NAME: Final = 30
"""Characters; the same limit as in rookery.toml (N11-04)."""
_MAX_DESCRIPTION: Final = 5000
_MAX_URL: Final = 2048
_LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_ALWAYS_ALLOWED: Final = frozenset(
    {kinds.DELETION, kinds.VANISH, *kinds.GROUP_RECORDS, *kinds.GROUP_STATE}
)
"""Disallowing these would make deletion and group moderation impossible."""


class BannedAuthorRows(Enum):
    """`[bans] stored`: what happens to the stored rows of a banned key."""

    HIDE = "hide"
    DELETE = "delete"


class ListName(StrEnum):
    """The lists that calls change; the values are stored."""

    BANNED_KEYS = "banned keys"
    ALLOWED_KEYS = "allowed keys"
    BANNED_EVENTS = "banned events"
    ALLOWED_EVENTS = "allowed events"
    REFUSED_KINDS = "refused kinds"
    BLOCKED_ADDRESSES = "blocked addresses"
    TEXTS = "texts"
    CLAIMS = "claims"
    """Code → `relay.access.membership.Claim`, as JSON."""
    MEMBERS_SINCE = "members since"
    """Allowed key → unix seconds; key that a call removed → the same, with a minus sign before."""
    ROLES = "roles"
    """Id → the tags of its 33534 beside `-` and `d`, as JSON."""
    ROLE_HOLDERS = "role holders"
    """Key and id of a role, with a space between."""


_MAX_OF: Final = {
    ListName.BANNED_EVENTS: MAX_EVENTS,
    ListName.ALLOWED_EVENTS: MAX_EVENTS,
    ListName.CLAIMS: MAX_CLAIMS,
    ListName.ROLES: _MAX_ROLES,
}


_REGISTER: Final = frozenset({ListName.ALLOWED_KEYS, ListName.MEMBERS_SINCE})
"""Held as KeyMap: with `[members] join = "anyone"` anybody adds keys, thousands of them."""


@dataclass(frozen=True, slots=True)
class ListChange:
    """One item of one list is added, changed or removed."""

    list_name: ListName
    item: str
    note: str | None
    """The reason (in TEXTS, the text); None: the item is removed."""
    must_exist: bool | None = None
    """True: refused unless the item is listed; False: refused when it is."""
    by_member: bool = False
    """A member ends its own membership: unlike who is removed, it may join by the same code."""

    @property
    def bans_event(self) -> bool:
        return self.list_name is ListName.BANNED_EVENTS and self.note is not None

    @property
    def bans_key(self) -> bool:
        return self.list_name is ListName.BANNED_KEYS and self.note is not None


@dataclass(frozen=True, slots=True)
class Management:
    """The lists after all calls so far."""

    entries: Mapping[ListName, Mapping[str, str]] = field(default_factory=dict)
    """list → item → note."""

    def of(self, list_name: ListName) -> Mapping[str, str]:
        return self.entries.get(list_name, _EMPTY)

    def text(self, name: str, otherwise: str) -> str:
        """A text of NIP-11: the one set by a call, else `otherwise`, the one of rookery.toml."""
        return self.of(ListName.TEXTS).get(name, otherwise)

    def after(self, change: ListChange) -> Management:
        """The lists after this change; the same object if it has no effect."""
        items = self.of(change.list_name)
        if items.get(change.item) == change.note:
            return self
        added = {} if change.note is None else {change.item: change.note}
        left: Mapping[str, str]
        if isinstance(items, KeyMap):
            left = items.without([change.item]) if change.note is None else items.changed(added)
        else:
            left = {item: note for item, note in items.items() if item != change.item} | added
        return self.with_lists({change.list_name: left})

    def with_lists(self, lists: Mapping[ListName, Mapping[str, str]]) -> Management:
        if not lists:
            return self
        held = {
            name: KeyMap(items) if name in _REGISTER and not isinstance(items, KeyMap) else items
            for name, items in lists.items()
        }
        return Management({**self.entries, **held})

    def applied_to(self, actors: Actors) -> Actors:
        """The actors of the policy files, with the keys that calls allowed and banned.

        Owners and the relay are never banned, nor is a key that became an owner after its ban.
        """
        operators = actors.owners | {actors.relay}
        return replace(
            actors,
            registered=self.of(ListName.ALLOWED_KEYS),
            banned=(actors.banned | self.of(ListName.BANNED_KEYS).keys()) - operators,
        )

    def blocked(self) -> Blocklist:
        return blocklist_of(self.of(ListName.BLOCKED_ADDRESSES))


_EMPTY: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Blocklist:
    """Addresses and ranges, indexed by prefix length, so that a look-up does not depend on their
    number."""

    by_length: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    """(IP version, prefix length) → prefixes."""

    def has(self, address: IPv4Address | IPv6Address) -> bool:
        address = getattr(address, "ipv4_mapped", None) or address
        bits, width = int(address), address.max_prefixlen
        return any(
            version == address.version and bits >> (width - length) in prefixes
            for (version, length), prefixes in self.by_length.items()
        )


def blocklist_of(texts: Iterable[str]) -> Blocklist:
    found: dict[tuple[int, int], set[int]] = {}
    for network in map(ip_network, texts):
        prefix = int(network.network_address) >> (network.max_prefixlen - network.prefixlen)
        found.setdefault((network.version, network.prefixlen), set()).add(prefix)
    return Blocklist({key: frozenset(prefixes) for key, prefixes in found.items()})


def management_of(entries: Iterable[ListChange]) -> Management:
    """The stored entries as a value."""
    found: dict[ListName, dict[str, str]] = {}
    for entry in entries:
        if entry.note is not None:
            found.setdefault(entry.list_name, {})[entry.item] = entry.note
    return Management().with_lists(found)


# -- checks of an event ---------------------------------------------------------------------------

_BANNED_KEY: Final = Reject(Prefix.BLOCKED, "this key is banned here", "bans")
_BANNED_EVENT: Final = Reject(Prefix.BLOCKED, EVENT_BANNED, "bans")
_REFUSED_KIND: Final = Reject(Prefix.BLOCKED, "events of this kind are not accepted here", "kinds")


def check_kind_allowed(kind: int, management: Management) -> Reject | None:
    if not management.entries:
        return None
    refused = management.of(ListName.REFUSED_KINDS)
    return _REFUSED_KIND if refused and str(kind) in refused else None


def check_event_not_banned(event: Event, management: Management) -> Reject | None:
    """Why an event is refused whoever sends it."""
    if not management.entries:  # the usual case, checked for every event
        return None
    return _BANNED_EVENT if event.id in management.of(ListName.BANNED_EVENTS) else None


def check_author_not_banned(event: Event, actors: Actors) -> Reject | None:
    """Members of groups too (N29-19)."""
    return _BANNED_KEY if event.pubkey in actors.banned else None


# -- calls ----------------------------------------------------------------------------------------


def check_change(change: ListChange, management: Management, actors: Actors) -> Reject | None:
    """Why a change is refused; `actors`: `Management.applied_to` those of the policy files."""
    items = management.of(change.list_name)
    if change.must_exist is not None and change.must_exist is not (change.item in items):
        return _NO_ROLE if change.must_exist else _ROLE_EXISTS
    if change.note is None:
        listed = change.list_name is ListName.BANNED_KEYS and change.item not in items
        return _BANNED_BY_FILE if listed and change.item in actors.banned else None
    most = _MAX_OF.get(change.list_name, MAX_ENTRIES)
    if change.item not in items and len(items) >= most:
        return _refused(f"the list of {change.list_name} is full: it has {most} entries")
    match change.list_name:
        case ListName.BANNED_KEYS if change.item in actors.owners | {actors.relay}:
            return _refused("an owner and the relay itself cannot be banned")
        case ListName.ALLOWED_KEYS if change.item in management.of(ListName.BANNED_KEYS):
            return _refused("this key is banned: call unbanpubkey first")
        case ListName.ALLOWED_KEYS if change.item in actors.banned:
            return _BANNED_BY_FILE
        case ListName.ROLE_HOLDERS:
            pubkey, role = change.item.split(" ")
            if role not in management.of(ListName.ROLES):
                return _NO_ROLE
            in_files = pubkey in actors.owners or pubkey in actors.agents
            if not in_files and pubkey not in management.of(ListName.ALLOWED_KEYS):
                return _refused("this key is not a member of this relay: call allowpubkey first")
            return None
        case _:
            return None


def _refused(text: str) -> Reject:
    return Reject(Prefix.RESTRICTED, text, "NIP-86")


_NO_ROLE: Final = _refused("there is no role with this id")
_ROLE_EXISTS: Final = _refused("there is a role with this id: call editrole")
_BANNED_BY_FILE: Final = _refused("this key is banned by a policy file: change it there")


@dataclass(frozen=True, slots=True)
class _Method:
    """A call that adds its first parameter to one list, or removes it from another, or both."""

    item: Callable[[object], str]
    adds_to: ListName | None = None
    removes_from: ListName | None = None
    has_reason: bool = True

    def changes(self, params: Sequence[object]) -> tuple[ListChange, ...]:
        expected = "1 or 2" if self.has_reason else "1"
        if not 1 <= len(params) <= (2 if self.has_reason else 1):
            raise Invalid(f"params: {expected} expected, {len(params)} given")
        item = self.item(params[0])
        note = _text("reason", params[1], _MAX_REASON) if len(params) > 1 else ""
        found = []
        if self.removes_from is not None:
            found.append(ListChange(self.removes_from, item, None))
        if self.adds_to is not None:
            found.append(ListChange(self.adds_to, item, note))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _TextMethod:
    """A call that sets a text of NIP-11; an empty text restores the one of rookery.toml."""

    name: str
    check: Callable[[object], str]

    def changes(self, params: Sequence[object]) -> tuple[ListChange, ...]:
        if len(params) != 1:
            raise Invalid(f"params: 1 expected, {len(params)} given")
        text = self.check(params[0])
        return (ListChange(ListName.TEXTS, self.name, text or None),)


@dataclass(frozen=True, slots=True)
class _RoleMethod:
    """`createrole`, `editrole`: [id, label, description, color, order]; all but the id may be
    missing, empty or null (N86-17, N43-01)."""

    must_exist: bool

    def changes(self, params: Sequence[object]) -> tuple[ListChange, ...]:
        if not 1 <= len(params) <= 5:
            raise Invalid(f"params: 1 to 5 expected, {len(params)} given")
        given: list[object] = [*params, None, None, None, None]
        role, label, description, color, order, *_ = given
        tags = [
            ("label", _text("label", label or "", _MAX_LABEL)),
            ("description", _text("description", description or "", _MAX_REASON)),
            ("color", _number("color", color, 0, 360)),
            ("order", _number("order", order, -(2**31), 2**31)),
        ]
        note = orjson.dumps([tag for tag in tags if tag[1]]).decode()
        return (ListChange(ListName.ROLES, _role(role), note, self.must_exist),)


@dataclass(frozen=True, slots=True)
class _DeleteRole:
    def changes(self, params: Sequence[object]) -> tuple[ListChange, ...]:
        if len(params) != 1:
            raise Invalid(f"params: 1 expected, {len(params)} given")
        return (ListChange(ListName.ROLES, _role(params[0]), None, must_exist=True),)


@dataclass(frozen=True, slots=True)
class _HolderMethod:
    """`assignrole`, `unassignrole`: [pubkey, id]."""

    note: str | None

    def changes(self, params: Sequence[object]) -> tuple[ListChange, ...]:
        if len(params) != 2:
            raise Invalid(f"params: 2 expected, {len(params)} given")
        item = f"{_key(params[0])} {_role(params[1])}"
        return (ListChange(ListName.ROLE_HOLDERS, item, self.note),)


def _role(value: object) -> str:
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value) is None:
        raise Invalid("id: must be 1 to 64 of a-z, A-Z, 0-9, _, . and -")
    return value


def _number(name: str, value: object, low: int, high: int) -> str:
    """An integer in range as text; empty for null and "". Clients send it as a number or as
    text."""
    if value is None or value == "":
        return ""
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or re.fullmatch(r"-?[0-9]{1,10}", text) is None:
        raise Invalid(f"{name}: must be an integer from {low} to {high}")
    if not low <= int(text) <= high:
        raise Invalid(f"{name}: must be an integer from {low} to {high}")
    return str(int(text))


def _key(value: object) -> str:
    return _hex("pubkey", value)


def _event_id(value: object) -> str:
    return _hex("id", value)


def _hex(name: str, value: object) -> str:
    if not isinstance(value, str) or not is_hex64(value):
        raise Invalid(f"{name}: must be 64 lowercase hex characters")
    return value


def _any_kind(value: object) -> str:
    if type(value) is not int or not 0 <= value <= kinds.MAX_KIND:
        raise Invalid(f"kind: must be an integer from 0 to {kinds.MAX_KIND}")
    return str(value)


def _disallowable_kind(value: object) -> str:
    text = _any_kind(value)
    if value in _ALWAYS_ALLOWED:
        raise Invalid("kind: deletion, vanish and group event kinds cannot be disallowed")
    return text


def _address(value: object) -> str:
    """An address or a range in canonical form."""
    try:
        network = ip_network(value if isinstance(value, str) else "", strict=False)
    except ValueError:
        raise Invalid("ip: must be an address or a range like 192.0.2.0/24") from None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= 96:
        network = ip_network((mapped, network.prefixlen - 96))
    return str(network).removesuffix(f"/{network.max_prefixlen}")


def _foreign_address(value: object) -> str:
    text = _address(value)
    if any(ip_network(text).overlaps(loopback) for loopback in _LOOPBACK):
        raise Invalid("ip: this machine's own addresses cannot be blocked")
    return text


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]").search


def _text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{name}: must be a text")
    if len(value) > most:
        raise Invalid(f"{name}: has {len(value)} characters, at most {most} are allowed")
    if _CONTROL(value):
        raise Invalid(f"{name}: must not contain control characters")
    return value


def _name(value: object) -> str:
    text = _text("name", value, _MAX_NAME)
    if "\n" in text or "\t" in text:
        raise Invalid("name: must be a single line")
    return text


def _description(value: object) -> str:
    return _text("description", value, _MAX_DESCRIPTION)


def _icon(value: object) -> str:
    text = _text("icon", value, _MAX_URL)
    if text and not re.match(r"https?://[^\s/]+", text, re.IGNORECASE):
        raise Invalid("icon: must be a URL that begins with https:// or http://")
    return text


_AnyMethod = _Method | _TextMethod | _RoleMethod | _DeleteRole | _HolderMethod

_CHANGING: Final[Mapping[str, _AnyMethod]] = {
    "banpubkey": _Method(_key, adds_to=ListName.BANNED_KEYS),
    "unbanpubkey": _Method(_key, removes_from=ListName.BANNED_KEYS),
    "allowpubkey": _Method(_key, adds_to=ListName.ALLOWED_KEYS),
    "unallowpubkey": _Method(_key, removes_from=ListName.ALLOWED_KEYS),
    "banevent": _Method(
        _event_id, adds_to=ListName.BANNED_EVENTS, removes_from=ListName.ALLOWED_EVENTS
    ),
    "allowevent": _Method(
        _event_id, adds_to=ListName.ALLOWED_EVENTS, removes_from=ListName.BANNED_EVENTS
    ),
    "allowkind": _Method(_any_kind, removes_from=ListName.REFUSED_KINDS, has_reason=False),
    "disallowkind": _Method(_disallowable_kind, adds_to=ListName.REFUSED_KINDS, has_reason=False),
    "blockip": _Method(_foreign_address, adds_to=ListName.BLOCKED_ADDRESSES),
    "unblockip": _Method(_address, removes_from=ListName.BLOCKED_ADDRESSES, has_reason=False),
    "createrole": _RoleMethod(must_exist=False),
    "editrole": _RoleMethod(must_exist=True),
    "deleterole": _DeleteRole(),
    "assignrole": _HolderMethod(""),
    "unassignrole": _HolderMethod(None),
    "changerelayname": _TextMethod("name", _name),
    "changerelaydescription": _TextMethod("description", _description),
    "changerelayicon": _TextMethod("icon", _icon),
}

LIST_BANNED: Final = "listbannedpubkeys"
_LISTING: Final[Mapping[str, tuple[ListName, str]]] = {
    LIST_BANNED: (ListName.BANNED_KEYS, "pubkey"),
    "listallowedpubkeys": (ListName.ALLOWED_KEYS, "pubkey"),
    "listbannedevents": (ListName.BANNED_EVENTS, "id"),
    "listallowedevents": (ListName.ALLOWED_EVENTS, "id"),
    "listblockedips": (ListName.BLOCKED_ADDRESSES, "ip"),
}
_KIND_LISTS: Final = ("listallowedkinds", "listdisallowedkinds")
LISTED_REPORTS: Final = "listeventsneedingmoderation"
"""Answered by the store, not by `listed`."""
SUPPORTED_METHODS: Final = "supportedmethods"
CREATE_INVITE: Final = "createinvite"
LIST_INVITES: Final = "listinvites"
REVOKE_INVITE: Final = "revokeinvite"
INVITE_METHODS: Final = (CREATE_INVITE, LIST_INVITES, REVOKE_INVITE)
"""An extension of this relay to NIP-86. Parameters are parsed and results made by the caller."""
LIST_MEMBERS: Final = "listmembers"
"""Another extension; answered by the caller, which has the actors."""
METHODS: Final = (
    *_CHANGING,
    *_LISTING,
    *_KIND_LISTS,
    LISTED_REPORTS,
    *INVITE_METHODS,
    LIST_MEMBERS,
)
"""All but `supportedmethods` (N86-10)."""


def changes_of(method: str, params: Sequence[object]) -> tuple[ListChange, ...]:
    """What a call changes; empty for a query.

    Raises Invalid for wrong parameters, Unsupported for an unknown method.
    """
    changing = _CHANGING.get(method)
    if changing is not None:
        return changing.changes(params)
    if method not in METHODS and method != SUPPORTED_METHODS:
        raise Unsupported(f"unknown method {method[:64]!r}: see {SUPPORTED_METHODS}")
    if params:
        raise Invalid(f"params: none expected, {len(params)} given")
    return ()


def listed(method: str, management: Management) -> object:
    """The result of a query method other than LISTED_REPORTS and LIST_MEMBERS."""
    if method == SUPPORTED_METHODS:
        return list(METHODS)
    if method in _KIND_LISTS:
        refused = {int(kind) for kind in management.of(ListName.REFUSED_KINDS)}
        if method == "listdisallowedkinds":
            return sorted(refused)
        # All kinds are allowed that are not disallowed.
        return [kind for kind in range(kinds.MAX_KIND + 1) if kind not in refused]
    register, name = _LISTING[method]
    return [entry(name, item, note) for item, note in sorted(management.of(register).items())]


def entry(name: str, item: str, reason: str) -> dict[str, str]:
    """One element of a NIP-86 list."""
    return {name: item, "reason": reason} if reason else {name: item}

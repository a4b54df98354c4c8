"""Management: what NIP-86 calls have changed, as a value. It stands above the policy files.

Invariants: a call is a few changes of lists, kept as they are by the store and folded here; the
lane alone makes them. Nothing here acts: what a ban does to reads stands in
`relay.access.visibility`, to
rows in `relay.lifecycle.deletion`, to open connections in the server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid, Prefix, Unsupported
from relay.nostr import kinds
from relay.nostr.event import is_hex64
from relay.verdict import Reject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from ipaddress import IPv4Address, IPv6Address

    from relay.access.actors import Actors
    from relay.nostr.event import Event

MAX_ENTRIES: Final = 10_000
"""Of one list: each query is told of all banned keys, which are 2 ms at this number."""
MAX_EVENTS: Final = 100_000
"""Of a list of events."""
_MAX_REASON: Final = 1000
_MAX_NAME: Final = 30
"""As in rookery.toml (N11-04)."""
_MAX_DESCRIPTION: Final = 5000
_MAX_URL: Final = 2048
_LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_UNREFUSABLE: Final = frozenset(
    {kinds.DELETION, kinds.VANISH, *kinds.GROUP_RECORDS, *kinds.GROUP_STATE}
)
"""Without these nobody could take back what they said, and no group could be led."""


class BannedAuthorRows(Enum):
    """`[bans] stored`: what becomes of what a banned key wrote before."""

    HIDE = "hide"
    DELETE = "delete"


class ListName(StrEnum):
    """The lists that calls change; stores keep these words."""

    BANNED_KEYS = "banned keys"
    ALLOWED_KEYS = "allowed keys"
    BANNED_EVENTS = "banned events"
    ALLOWED_EVENTS = "allowed events"
    REFUSED_KINDS = "refused kinds"
    BLOCKED_ADDRESSES = "blocked addresses"
    TEXTS = "texts"


@dataclass(frozen=True, slots=True)
class ListChange:
    """One item of one list comes, stays with another note, or goes."""

    list_name: ListName
    item: str
    note: str | None
    """The reason (or, in TEXTS, the text); None: the item goes."""

    @property
    def bans_event(self) -> bool:
        return self.list_name is ListName.BANNED_EVENTS and self.note is not None

    @property
    def is_ban(self) -> bool:
        """Whether stored rows may go with it."""
        return self.bans_event or (self.list_name is ListName.BANNED_KEYS and self.note is not None)


@dataclass(frozen=True, slots=True)
class Management:
    """All that calls have changed so far."""

    entries: Mapping[ListName, Mapping[str, str]] = field(default_factory=dict)
    """item → note of each list."""

    def of(self, list_name: ListName) -> Mapping[str, str]:
        return self.entries.get(list_name, _EMPTY)

    def text(self, name: str, otherwise: str) -> str:
        """What NIP-11 says under `name`; `otherwise`: what rookery.toml says."""
        return self.of(ListName.TEXTS).get(name, otherwise)

    def after(self, change: ListChange) -> Management:
        """Itself when the change changes nothing."""
        items = self.of(change.list_name)
        if items.get(change.item) == change.note:
            return self
        left = {item: note for item, note in items.items() if item != change.item}
        if change.note is not None:
            left[change.item] = change.note
        return Management({**self.entries, change.list_name: left})

    def applied_to(self, actors: Actors) -> Actors:
        """The people of the policy files, and whom calls have allowed and banned.

        No ban holds against the operator, also one that was said before they were it.
        """
        operators = actors.owners | {actors.relay}
        return replace(
            actors,
            allowed=actors.allowed | self.of(ListName.ALLOWED_KEYS).keys(),
            banned=(actors.banned | self.of(ListName.BANNED_KEYS).keys()) - operators,
        )

    def blocked(self) -> Blocklist:
        return blocklist_of(self.of(ListName.BLOCKED_ADDRESSES))


_EMPTY: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Blocklist:
    """Addresses and ranges, by their length: many are looked through as quickly as one."""

    by_length: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)
    """(version, length of the prefix) → prefixes."""

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
    """What a store has kept, as a value."""
    found: dict[ListName, dict[str, str]] = {}
    for entry in entries:
        if entry.note is not None:
            found.setdefault(entry.list_name, {})[entry.item] = entry.note
    return Management(found)


# what it says of an event -----------------------------------------------------------------------

_BANNED_KEY: Final = Reject(Prefix.BLOCKED, "this key is banned here", "bans")
_BANNED_EVENT: Final = Reject(Prefix.BLOCKED, "this event is banned here", "bans")
_REFUSED_KIND: Final = Reject(Prefix.BLOCKED, "this kind of event is not taken here", "kinds")


def check_kind_allowed(kind: int, management: Management) -> Reject | None:
    if not management.entries:
        return None
    refused = management.of(ListName.REFUSED_KINDS)
    return _REFUSED_KIND if refused and str(kind) in refused else None


def check_event_not_banned(event: Event, management: Management) -> Reject | None:
    """What stands against an event whoever sends it in."""
    if not management.entries:  # every event passes here, and few relays ban anything
        return None
    if event.id in management.of(ListName.BANNED_EVENTS):
        return _BANNED_EVENT
    return check_kind_allowed(event.kind, management)


def check_author_not_banned(event: Event, actors: Actors) -> Reject | None:
    """N29-19: also against members."""
    return _BANNED_KEY if event.pubkey in actors.banned else None


# what a call changes ----------------------------------------------------------------------------


def check_change(change: ListChange, management: Management, actors: Actors) -> Reject | None:
    """Why a change cannot be made as things are now; `actors`: with those that calls name."""
    items = management.of(change.list_name)
    if change.note is None:
        listed = change.list_name is ListName.BANNED_KEYS and change.item not in items
        return _BANNED_BY_FILE if listed and change.item in actors.banned else None
    of_events = change.list_name in (ListName.BANNED_EVENTS, ListName.ALLOWED_EVENTS)
    most = MAX_EVENTS if of_events else MAX_ENTRIES
    if change.item not in items and len(items) >= most:
        return _refused(f"the list of {change.list_name} is full: it has {most} entries")
    match change.list_name:
        case ListName.BANNED_KEYS if change.item in actors.owners | {actors.relay}:
            return _refused("an owner and the relay itself cannot be banned")
        case ListName.ALLOWED_KEYS if change.item in management.of(ListName.BANNED_KEYS):
            return _refused("this key is banned: call unbanpubkey first")
        case ListName.ALLOWED_KEYS if change.item in actors.banned:
            return _BANNED_BY_FILE
        case _:
            return None


def _refused(text: str) -> Reject:
    return Reject(Prefix.RESTRICTED, text, "NIP-86")


_BANNED_BY_FILE: Final = _refused("this key is banned by a file of the policies: change it there")


@dataclass(frozen=True, slots=True)
class _Method:
    """A call that puts its first parameter on one list and takes it off another."""

    item: Callable[[object], str]
    puts: ListName | None = None
    takes: ListName | None = None
    has_reason: bool = True

    def changes(self, params: Sequence[object]) -> tuple[ListChange, ...]:
        most = 2 if self.has_reason else 1
        if not 1 <= len(params) <= most:
            raise Invalid(
                f"params: {'1 or 2' if self.has_reason else '1'} wanted, {len(params)} given"
            )
        item = self.item(params[0])
        note = _text("reason", params[1], _MAX_REASON) if len(params) > 1 else ""
        found = []
        if self.takes is not None:
            found.append(ListChange(self.takes, item, None))
        if self.puts is not None:
            found.append(ListChange(self.puts, item, note))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _TextMethod:
    """A call that sets a text of NIP-11; an empty one gives it back to rookery.toml."""

    name: str
    check: Callable[[object], str]

    def changes(self, params: Sequence[object]) -> tuple[ListChange, ...]:
        if len(params) != 1:
            raise Invalid(f"params: 1 wanted, {len(params)} given")
        text = self.check(params[0])
        return (ListChange(ListName.TEXTS, self.name, text or None),)


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


def _refusable_kind(value: object) -> str:
    text = _any_kind(value)
    if value in _UNREFUSABLE:
        raise Invalid(
            "kind: deletions, requests to vanish and what groups are made of are always taken"
        )
    return text


def _address(value: object) -> str:
    """An address or a range; one spelling for all of its spellings."""
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
    if any(ip_network(text).overlaps(home) for home in _LOOPBACK):
        raise Invalid("ip: this machine's own addresses cannot be blocked")
    return text


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]").search


def _text(name: str, value: object, most: int) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{name}: must be a text")
    if len(value) > most:
        raise Invalid(f"{name}: has {len(value)} characters, at most {most} are allowed")
    if _CONTROL(value):
        raise Invalid(f"{name}: must have no control characters")
    return value


def _name(value: object) -> str:
    text = _text("name", value, _MAX_NAME)
    if "\n" in text or "\t" in text:
        raise Invalid("name: must be one line")
    return text


def _description(value: object) -> str:
    return _text("description", value, _MAX_DESCRIPTION)


def _icon(value: object) -> str:
    text = _text("icon", value, _MAX_URL)
    if text and not re.match(r"https?://[^\s/]+", text, re.IGNORECASE):
        raise Invalid("icon: must be a URL that begins with https:// or http://")
    return text


_CHANGING: Final[Mapping[str, _Method | _TextMethod]] = {
    "banpubkey": _Method(_key, puts=ListName.BANNED_KEYS),
    "unbanpubkey": _Method(_key, takes=ListName.BANNED_KEYS),
    "allowpubkey": _Method(_key, puts=ListName.ALLOWED_KEYS),
    "unallowpubkey": _Method(_key, takes=ListName.ALLOWED_KEYS),
    "banevent": _Method(_event_id, puts=ListName.BANNED_EVENTS, takes=ListName.ALLOWED_EVENTS),
    "allowevent": _Method(_event_id, puts=ListName.ALLOWED_EVENTS, takes=ListName.BANNED_EVENTS),
    "allowkind": _Method(_any_kind, takes=ListName.REFUSED_KINDS, has_reason=False),
    "disallowkind": _Method(_refusable_kind, puts=ListName.REFUSED_KINDS, has_reason=False),
    "blockip": _Method(_foreign_address, puts=ListName.BLOCKED_ADDRESSES),
    "unblockip": _Method(_address, takes=ListName.BLOCKED_ADDRESSES, has_reason=False),
    "changerelayname": _TextMethod("name", _name),
    "changerelaydescription": _TextMethod("description", _description),
    "changerelayicon": _TextMethod("icon", _icon),
}

_LISTING: Final[Mapping[str, tuple[ListName, str]]] = {
    "listbannedpubkeys": (ListName.BANNED_KEYS, "pubkey"),
    "listallowedpubkeys": (ListName.ALLOWED_KEYS, "pubkey"),
    "listbannedevents": (ListName.BANNED_EVENTS, "id"),
    "listallowedevents": (ListName.ALLOWED_EVENTS, "id"),
    "listblockedips": (ListName.BLOCKED_ADDRESSES, "ip"),
}
_KIND_LISTS: Final = ("listallowedkinds", "listdisallowedkinds")
LISTED_REPORTS: Final = "listeventsneedingmoderation"
"""The one method whose answer lies in the store."""
SUPPORTED_METHODS: Final = "supportedmethods"
METHODS: Final = (*_CHANGING, *_LISTING, *_KIND_LISTS, LISTED_REPORTS)
"""All but `supportedmethods` (N86-10)."""
_ROLES: Final = ("createrole", "editrole", "deleterole", "assignrole", "unassignrole")


def changes_of(method: str, params: Sequence[object]) -> tuple[ListChange, ...]:
    """What a call changes; nothing when it only asks.

    Raises Invalid for wrong parameters, Unsupported for a method that is not offered.
    """
    changing = _CHANGING.get(method)
    if changing is not None:
        return changing.changes(params)
    if method in _ROLES:
        raise Unsupported(f"{method}: this relay has no roles but those of its groups")
    if method not in METHODS and method != SUPPORTED_METHODS:
        raise Unsupported(f"unknown method {method[:64]!r}: see {SUPPORTED_METHODS}")
    if params:
        raise Invalid(f"params: none wanted, {len(params)} given")
    return ()


def listed(method: str, management: Management) -> object:
    """The answer to a method that asks for a list; the store's own is not among them."""
    if method == SUPPORTED_METHODS:
        return list(METHODS)
    if method in _KIND_LISTS:
        refused = {int(kind) for kind in management.of(ListName.REFUSED_KINDS)}
        if method == "listdisallowedkinds":
            return sorted(refused)
        # No list of kinds is kept that are allowed: all are, until one is not.
        return [kind for kind in range(kinds.MAX_KIND + 1) if kind not in refused]
    register, name = _LISTING[method]
    return [entry(name, item, note) for item, note in management.of(register).items()]


def entry(name: str, item: str, reason: str) -> dict[str, str]:
    """One element of a list, as NIP-86 writes it."""
    return {name: item, "reason": reason} if reason else {name: item}

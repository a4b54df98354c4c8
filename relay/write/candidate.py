"""Candidate: an event on its way to the judge, with all that is read from the event alone.

Invariants: each field is computed once, here; lookups, judge and batch take it from the Candidate.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from relay.errors import Invalid, Refused, Reject
from relay.facts import Origin
from relay.groups.actions import Action, action_of, group_of
from relay.lifecycle.deletion import DeletionTargets, deletion_targets
from relay.lifecycle.rows import EXPIRY_WINDOW_S, Keep, Slot, slot_of
from relay.memory.registry import MemorySystems, References
from relay.nostr import kinds
from relay.nostr.agents import Attestation, check_persona
from relay.nostr.event import Base, Event, address_of, base_of, is_hex64
from relay.nostr.kinds import KindClass, class_of, is_ephemeral
from relay.nostr.nip40 import expiry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Set

_ALL_RELAYS: Final = "ALL_RELAYS"
_REPLACED: Final = frozenset({KindClass.REPLACEABLE, KindClass.ADDRESSABLE})
_NO_KEYS: Final[frozenset[str]] = frozenset()
GROUP_STATE_OF: Final = {
    kinds.EDIT_METADATA: kinds.GROUP_METADATA,
    kinds.UPDATE_PINS: kinds.GROUP_PINS,
}
"""Kinds that replace all of one of the relay's events about a group: that event's kind."""
_MAX_NAMED: Final = 16
"""Most ids and addresses, counted together, that are looked up for one event."""


class Sender(msgspec.Struct, frozen=True, gc=False):
    """Where an event came from."""

    origin: Origin = Origin.WIRE
    authenticated: frozenset[str] = _NO_KEYS
    """Keys that logged in on the connection."""
    address: IPv4Address | IPv6Address | None = None
    connection: int | None = None
    """None: not from a WebSocket."""
    attested: frozenset[Attestation] = frozenset()
    """Attestations of keys in `authenticated` (NIP-AA)."""
    is_local: bool = False
    """See `Facts.is_local`."""


class NamedEvents(NamedTuple):
    """The ids in an event's `e` and `E` tags, and the addresses in its `a` and `A` tags, in tag
    order, each once."""

    ids: tuple[str, ...]
    slots: tuple[Slot, ...]


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """An event, and the values derived from the event and the retention rules alone.

    A Struct because 20,000 a second are made: 0.3 us each, a frozen dataclass takes 3 us.
    """

    event: Event
    sender: Sender
    keep: Keep
    slot: Slot | None
    malformed: Reject | None
    """The refusal for a malformed `h`, a malformed tag of a 9000–9022, or a malformed persona."""
    group: str | None
    """The group that the event names; None outside of groups, or if it is malformed."""
    row_group: str | None
    """The group that its row will belong to: None too where `h` is a label (G-31)."""
    action: Action | None
    """The parsed action of a 9000–9022."""
    targets: DeletionTargets | None
    """The targets of a kind 5."""
    named: NamedEvents | None
    """The events that an event without `h` names, if its kind is in `[groups] derived`: see
    `derived`."""
    references: References
    """Stored events that a memory record refers to."""
    vanishes: bool
    """A kind 62 for this relay; one for other relays is an event like any other (N62-03, Z-13)."""
    objection: Reject | None
    """The refusal of the first plug-in that refused the event."""
    base: Base | None = None
    """The version that it must have been made from; of a 9002 or 9010, the relay's event about the
    group that it replaces. None: any, as for what another than its author sends, and for all that
    is not from the wire."""
    expiry_window: int | None = None
    """The window in which its row will expire, as of `Lookups.expiry_windows`; None: it will not,
    or nobody asks how many others do, as for what an operator imports."""


def candidate_of(
    event: Event,
    keep: Keep,
    systems: MemorySystems,
    sender: Sender,
    is_here: Callable[[str], bool],
    objection: Reject | None = None,
    *,
    foreign_h: Set[int] = frozenset(),
    derived: Set[int] = frozenset(),
) -> Candidate:
    """`is_here`: whether a URL is this relay's. `objection`: a plug-in's refusal. `foreign_h`,
    `derived`: the settings of `[groups]`."""
    malformed, group, action, base = None, None, None, None
    try:
        group = group_of(event, foreign_h)
        action = action_of(event)
        check_persona(event)
        if sender.origin is Origin.WIRE and class_of(event.kind) in _REPLACED:
            base = base_of(event)
            # Who brings others' events here brings them as they are (`sync`): newer ones replace.
            base = base if event.pubkey in sender.authenticated else None
        elif sender.origin is Origin.WIRE and event.kind in GROUP_STATE_OF:
            base = base_of(event)
    except Refused as refused:
        malformed, group = refused_form(refused), None
    kind, slot = event.kind, slot_of(event, keep)
    is_derived = kind in derived and group is None and malformed is None and slot is None
    return Candidate(
        event,
        sender,
        keep,
        slot,
        malformed,
        group,
        None if group is not None and systems.h_is_label(event) else group,
        action,
        deletion_targets(event) if kind == kinds.DELETION else None,
        named_events(event) if is_derived else None,
        systems.references(event),
        kind == kinds.VANISH and _is_for_here(event, is_here),
        objection,
        base,
        _expiry_window(event) if sender.origin is Origin.WIRE else None,
    )


def _expiry_window(event: Event) -> int | None:
    try:
        expires_at = None if is_ephemeral(event.kind) else expiry_of(event)
    except Invalid:  # it will be refused for that
        return None
    return None if expires_at is None else expires_at // EXPIRY_WINDOW_S


def named_events(event: Event) -> NamedEvents | None:
    """The events that this event names; None if there are none."""
    ids: dict[str, None] = {}
    slots: dict[Slot, None] = {}
    for tag in event.tags:
        if len(tag) < 2 or len(ids) + len(slots) == _MAX_NAMED:
            continue
        if tag[0] in ("e", "E"):
            if is_hex64(tag[1]):
                ids[tag[1]] = None
        elif tag[0] in ("a", "A"):
            slot = address_of(tag[1])
            if slot is not None:
                slots[slot] = None
    return NamedEvents(tuple(ids), tuple(slots)) if ids or slots else None


def refused_form(refused: Refused) -> Reject:
    return Reject(refused.prefix, refused.text, "form")


def _is_for_here(request: Event, is_here: Callable[[str], bool]) -> bool:
    return any(url == _ALL_RELAYS or is_here(url) for url in request.tag_values("relay"))

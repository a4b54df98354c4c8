"""NIP-09: what a kind 5 deletes, also in a form that can be kept when the deleted texts are not."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.nostr.event import Address, address_of, is_hex64
from relay.nostr.kinds import KindClass, class_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.nostr.event import Event

EVER: Final = 2**63 - 1
"""Date until which a deletion by id holds."""


class Target(NamedTuple):
    """What is deleted. A `d` may be a text, so of an address only the hash is kept."""

    name: str
    """Id of an event, or `address_hash`."""
    author: str
    """Author of the deletion; events of others are not deleted."""
    until: int
    """`created_at` of the newest event that is deleted."""


def targets_of(deletion: Event) -> list[Target]:
    """The ids that a kind 5 names, and the addresses of its author."""
    author = deletion.pubkey
    addresses = map(address_of, deletion.tag_values("a"))
    return [
        *(Target(id_, author, EVER) for id_ in deletion.tag_values("e") if is_hex64(id_)),
        *(
            Target(target_name(address), author, deletion.created_at)
            for address in addresses
            if address is not None and address.pubkey == author
        ),
    ]


def named_by(deletion: Event, events: Iterable[Event]) -> list[Event]:
    """Those that a kind 5 of their author names by id, or by address up to its date (NIP-09)."""
    ids, addresses = set(deletion.tag_values("e")), set(deletion.tag_values("a"))
    return [
        event
        for event in events
        if event.pubkey == deletion.pubkey
        and (
            event.id in ids
            or (
                event.created_at <= deletion.created_at
                and f"{event.kind}:{event.pubkey}:{event.d}" in addresses
            )
        )
    ]


def version_target(event: Event) -> Target:
    """This event, and if it is a version of a record, the older ones: they do not come back."""
    name = address_hash(event) if has_versions(event) else event.id
    return Target(name, event.pubkey, event.created_at)


def has_versions(event: Event) -> bool:
    return class_of(event.kind) is not KindClass.REGULAR


def address_hash(event: Event) -> str:
    return target_name(Address(event.pubkey, event.kind, event.d))


def request(events: Sequence[Event], now: int) -> tuple[list[list[str]], int]:
    """Tags and `created_at` of a kind 5 of their author that deletes these events, and every
    version of these records up to its date, which is that of a version that a clock ahead dated."""
    tags = [["e", event.id] for event in events]
    if len({event.tag("h") for event in events}) == 1:
        # Else who reads one of them would learn of the others: an id tells nothing.
        tags += address_tags(events)
    tags += [["k", str(kind)] for kind in sorted({event.kind for event in events})]
    return tags, max([now, *(event.created_at for event in events if has_versions(event))])


def request_by_id(events: Sequence[Event]) -> list[list[str]]:
    """Tags of a kind 5 that deletes these events, and nothing else of these records."""
    return [
        *(["e", event.id] for event in events),
        *(["k", str(kind)] for kind in sorted({event.kind for event in events})),
    ]


def address_tags(events: Iterable[Event]) -> list[list[str]]:
    """The tags `a` of a kind 5 that deletes every version of these records up to its date."""
    addresses = [str(Address(e.pubkey, e.kind, e.d)) for e in events if has_versions(e)]
    return [["a", address] for address in dict.fromkeys(addresses)]


def target_name(address: Address) -> str:
    """Of a `Target`: all versions of a record."""
    return sha256(str(address).encode()).hexdigest()

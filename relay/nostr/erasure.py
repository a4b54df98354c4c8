"""Erasure: what one signed request deleted, and the relay-signed receipt that says so. Pure.

A receipt has no text of events: only ids and kinds, the time, and the author of the request. It is
given to the author of the request (`relay/server/receipts.py`) and never stored as an event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.nostr.event import is_hex64
from relay.nostr.keys import is_signed

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

RECEIPT: Final = 27362
"""Its kind: ephemeral, so that no relay stores one that is sent to it."""
MAX_IDS: Final = 1000
"""Ids that a receipt lists; beyond that it has numbers by kind only."""


@dataclass(slots=True)
class Erasure:
    """Grows while the request is carried out."""

    request: str
    """id of the kind 5, 9005 or 62."""
    by: str
    """Its author."""
    kind: int
    at: int
    """Unix seconds of the deletion."""
    numbers: dict[int, int] = field(default_factory=dict)
    """kind → events deleted."""
    ids: list[tuple[str, int]] = field(default_factory=list)
    """(id, kind) of the first MAX_IDS. What is deleted together is in the order of the log, old
    versions before the rows: every store names the same."""

    def add(self, event_id: str, kind: int) -> None:
        self.numbers[kind] = self.numbers.get(kind, 0) + 1
        if len(self.ids) < MAX_IDS:
            self.ids.append((event_id, kind))

    def add_earlier(self, earlier: Erasure) -> None:
        """Add what the same request deleted before."""
        for kind, number in earlier.numbers.items():
            self.numbers[kind] = self.numbers.get(kind, 0) + number
        self.ids = [*earlier.ids, *self.ids][:MAX_IDS]

    @property
    def total(self) -> int:
        return sum(self.numbers.values())


def receipt(erasure: Erasure, erased_from: str, relay_key: SecretKey, now: int) -> Event:
    """Signed only when no byte of the events is left in what `erased_from` names."""
    tags = [
        ["e", erasure.request],
        ["k", str(erasure.kind)],
        ["p", erasure.by],
        ["deleted_at", str(erasure.at)],
        *(["number", str(kind), str(n)] for kind, n in sorted(erasure.numbers.items())),
        *(["erased", event_id, str(kind)] for event_id, kind in erasure.ids),
    ]
    number = f"{erasure.total} event{'' if erasure.total == 1 else 's'}"
    text = f"{number} deleted as the event in `e` asks, and erased from {erased_from}"
    return relay_key.sign(RECEIPT, tags, text, now)


def erasure_in(event: Event) -> Erasure:
    """The content of a receipt. Raises Invalid for a wrong signature or form; the caller compares
    its author with the relay's key."""
    if event.kind != RECEIPT:
        raise Invalid(f"kind: must be {RECEIPT}")
    if not is_signed(event):
        raise Invalid("sig: invalid signature")
    request, by = event.tag("e") or "", event.tag("p") or ""
    if not is_hex64(request):
        raise Invalid("e: must be the id of the request")
    if not is_hex64(by):
        raise Invalid("p: must be the key that asked")
    numbers = {}
    ids = []
    for tag in event.tags:
        match tag:
            case ["number", kind, number]:
                numbers[_integer("number", kind)] = _integer("number", number)
            case ["erased", event_id, kind] if is_hex64(event_id):
                ids.append((event_id, _integer("erased", kind)))
            case ["number" | "erased" as name, *_]:
                raise Invalid(f"{name}: has another form")
            case _:
                pass
    if len(ids) != min(sum(numbers.values()), MAX_IDS):
        raise Invalid("erased: the ids do not add up to the numbers")
    of_kind, at = _integer("k", event.tag("k")), _integer("deleted_at", event.tag("deleted_at"))
    return Erasure(request, by, of_kind, at, numbers, ids)


def _integer(name: str, value: str | None) -> int:
    if value is None or not value.isascii() or not value.isdigit() or len(value) > 18:
        raise Invalid(f"{name}: must be a number")
    return int(value)

"""The last refused events, for `rookery policy log` and `rookery log`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.observe.logs import request_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address, IPv6Address

    from relay.errors import Reject
    from relay.nostr.event import Event

_REFUSALS: Final = 1000
_MAX_GROUP: Final = 64
_MAX_TEXT: Final = 400


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused event, without its content."""

    number: int
    """Counted in this data folder, from 1."""
    at: int
    """Unix seconds."""
    rule: str
    prefix: str
    kind: int
    author: str
    """64 hex; not verified when the refusal came before the signature check."""
    event_id: str
    connection: int | None
    """None: an import."""
    address: str | None
    group: str | None = None
    """Its tag `h`."""
    text: str = ""
    """What its author was told."""
    request: str | None = None
    """Connection and message, see `request_id`."""


class Refusals:
    """The last refusals; metrics count all of them."""

    def __init__(self, max_kept: int = _REFUSALS) -> None:
        self._last: deque[Refusal] = deque(maxlen=max_kept)
        self._number = 0

    def note(
        self,
        reject: Reject,
        event: Event,
        at: int,
        connection: int | None,
        address: IPv4Address | IPv6Address | None,
        message: int | None = None,
    ) -> None:
        self._number += 1
        self._last.append(
            Refusal(
                self._number,
                at,
                reject.rule,
                reject.prefix.value,
                event.kind,
                event.pubkey,
                event.id,
                connection,
                None if address is None else str(address),
                next((value[:_MAX_GROUP] for value in event.tag_values("h")), None),
                reject.text[:_MAX_TEXT],
                None if connection is None or message is None else request_id(connection, message),
            )
        )

    @property
    def number(self) -> int:
        """Of the last one."""
        return self._number

    def restore(self, earlier: Sequence[Refusal]) -> None:
        """Those of an earlier run, oldest first; before any are noted."""
        self._last.extend(earlier)
        self._number = earlier[-1].number if earlier else 0

    def after(self, number: int) -> Sequence[Refusal]:
        """Kept refusals with a higher number, oldest first."""
        return [refusal for refusal in self._last if refusal.number > number]

"""The connection that gets the answers, as the read pipeline sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from relay.access.visibility import Viewer
    from relay.read.outbox import Outbox


class Reader(Protocol):
    """The viewer whose rights decide; keys may be added while a subscription is open (N42-13)."""

    @property
    def viewer(self) -> Viewer: ...


class Peer(Protocol):
    @property
    def counted_as(self) -> str | None:
        """See `Sharer.counted_as`."""

    @property
    def reader(self) -> Reader: ...
    @property
    def outbox(self) -> Outbox: ...

    @property
    def is_reading(self) -> bool:
        """Whether the outbox is empty enough to answer without a queue."""

    @property
    def has_time(self) -> bool:
        """Whether a short read may go before the other tasks that are ready."""

    async def drained(self) -> None:
        """Returns when the client has read most of what was sent."""

    async def turn(self, seconds: float) -> None:
        """Await before work that takes the loop about as long: one connection works at a time."""

    def worked(self, seconds: float) -> bool:
        """Count work for this connection on the loop; whether a `turn` is due."""

    def request_id(self) -> str:
        """Id of the message that is being handled, for the log."""

    def hold(self, size: int) -> None:
        """Count bytes that a query holds for it; negative when they are gone."""

    def closed_by_relay(self, sub: str) -> None:
        """The relay ended this subscription with CLOSED."""

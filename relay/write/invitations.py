"""Invite codes of the relay (NIP-43): made for a REQ of kind 28935 or a NIP-86 call.

Invariants: a code is committed by the lane before it is sent; no log line contains it. Its event is
signed for one connection and never stored (N43-04).
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.access.management import ListChange, ListName
from relay.access.membership import Claim, Members, claim_change, claim_id, claims_of
from relay.errors import Prefix, Refused
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from relay.access.visibility import Viewer
    from relay.errors import Reject
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.state import RelayState

    class Lane(Protocol):
        async def changed(self, *changes: ListChange) -> Reject | None: ...


_CODE_BYTES: Final = 12
"""96 random bits."""
_DAY_S: Final = 86_400
_FULL: Final = "too many invite codes are open; withdraw some or let them expire"


@dataclass(frozen=True, slots=True)
class Invitations:
    """Makes codes and withdraws them. Satisfies `relay.read.query.Invites`."""

    state: RelayState
    lane: Lane
    relay_key: SecretKey
    clock: Callable[[], int]
    _lock: asyncio.Lock

    @classmethod
    def of(
        cls, state: RelayState, lane: Lane, relay_key: SecretKey, clock: Callable[[], int]
    ) -> Invitations:
        return cls(state, lane, relay_key, clock, asyncio.Lock())

    def may_ask(self, viewer: Viewer) -> bool:
        return self._asker(viewer) is not None

    async def event_for(self, viewer: Viewer) -> Event | None:
        """The 28935 for this viewer; the same code while it is valid. None: the viewer may not
        invite. Raises Refused when no code can be stored."""
        async with self._lock:  # or two REQs at once would get two codes
            asker = self._asker(viewer)
            if asker is None:
                return None
            code = self._members().asked_claim(asker, self.clock())
            if code is None:
                settings = self.state.policy.members
                code, _ = await self.create(
                    asker, uses=settings.claim_uses, days=settings.claim_days, asked=True
                )
        if self._asker(viewer) != asker:
            return None
        tags = [["-"], ["claim", code]]
        return self.relay_key.sign(kinds.RELAY_INVITE, tags, "", self.clock())

    async def create(
        self, by: str, *, uses: int | None, days: int, asked: bool = False
    ) -> tuple[str, Claim]:
        """A new code. `uses` None: any number; `days` 0: it does not expire. Raises Refused."""
        now = self.clock()
        code = secrets.token_hex(_CODE_BYTES)
        until = now + days * _DAY_S if days else None
        expired = [
            ListChange(ListName.CLAIMS, old, None)
            for old, claim in claims_of(self.state.management)
            if not claim.is_open(now)
        ]
        if expired:
            await self.lane.changed(*expired)
        claim = Claim(by, now, until, uses, asked)
        refused = await self.lane.changed(claim_change(code, claim))
        if refused is not None:
            if refused.prefix is Prefix.RESTRICTED:
                raise Refused(Prefix.RATE_LIMITED, _FULL)
            raise refused.refused()
        return code, claim

    async def revoke(self, claim: str) -> bool:
        """Withdraw a code by the id of its claim. False: there is none. Raises Refused."""
        for code, _ in claims_of(self.state.management):
            if claim_id(code) == claim:
                refused = await self.lane.changed(ListChange(ListName.CLAIMS, code, None))
                if refused is not None:
                    raise refused.refused()
                return True
        return False

    def _members(self) -> Members:
        state = self.state
        return Members(state.management, state.actors, state.groups, state.policy.members)

    def _asker(self, viewer: Viewer) -> str | None:
        """The viewer's key that may invite; None: no key may."""
        if not viewer.keys.isdisjoint(self.state.actors.banned):
            return None
        members = self._members()
        return next((key for key in sorted(viewer.keys) if members.may_invite(key)), None)

"""What a REQ, a COUNT or a NEG-OPEN needs of a relay: a store, groups, policies, fan-out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relay.groups.actions import Flag
from relay.groups.group import Group, Groups
from relay.lifecycle.rows import Stored
from relay.read.fanout import Fanout
from relay.state import RelayState
from tests.cast import admin, alice
from tests.contract.writing import write
from tests.harness.controlled_store import ControlledStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies import PolicySet
    from relay.nostr.event import Event

DEN = Group("den", flags=frozenset({Flag.PRIVATE})).with_users(
    {admin.pubkey: ("admin",), alice.pubkey: ()}
)


@dataclass
class Limits:
    max_limit: int = 1000
    default_limit: int = 1000
    neg_records: int = 100
    neg_sessions: int = 2


class ReadSide:
    """With the private group DEN. Events are stored without being judged."""

    def __init__(self, policy: PolicySet, *, page_size: int | None = None) -> None:
        self.store = ControlledStore(page_size=page_size)
        self.state = RelayState(policy, Groups().with_group(DEN))
        self.fanout = Fanout(self.state)
        self.limits = Limits()

    async def write(self, *events: Event) -> None:
        """Store these, then deliver them."""
        rows = await write(self.store, *events)
        self.deliver([row for row in rows if isinstance(row, Stored)])

    def deliver(self, rows: Sequence[Stored]) -> int:
        """Returns the number of frames."""
        return sum(frames for frames, _ in self.fanout.deliver(rows))

    def replace_den(self, den: Group) -> None:
        self.state.adopt(self.state.groups.with_group(den))

    async def remove_alice(self) -> None:
        self.replace_den(DEN.with_removed({alice.pubkey}))

"""What the server uses of a running relay; `relay.cli.services` builds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.config import Config
    from relay.nostr.filters import FilterTerms
    from relay.observe import Metrics, Readiness
    from relay.read.fanout import Fanout
    from relay.read.negentropy import Negentropy
    from relay.read.outbox import FlushQueue
    from relay.read.query import QueryRunner
    from relay.server.history import HistoryRequests
    from relay.server.nip86 import UsedAuthorizations
    from relay.server.receipts import Receipts
    from relay.state import RelayState
    from relay.storage import Store
    from relay.write.ingest import Ingest
    from relay.write.invitations import Invitations


class ServerServices(Protocol):
    @property
    def config(self) -> Config: ...
    @property
    def relay_pubkey(self) -> str: ...
    @property
    def clock(self) -> Callable[[], int]:
        """Unix seconds."""

    @property
    def terms(self) -> FilterTerms: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def readiness(self) -> Readiness: ...
    @property
    def store(self) -> Store: ...
    @property
    def state(self) -> RelayState: ...
    @property
    def ingest(self) -> Ingest: ...
    @property
    def invitations(self) -> Invitations: ...
    @property
    def fanout(self) -> Fanout: ...
    @property
    def queries(self) -> QueryRunner: ...
    @property
    def negentropy(self) -> Negentropy: ...
    @property
    def history(self) -> HistoryRequests: ...
    @property
    def receipts(self) -> Receipts: ...
    @property
    def used_calls(self) -> UsedAuthorizations: ...
    @property
    def flush_queue(self) -> FlushQueue: ...

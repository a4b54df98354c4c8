"""BaseClient: a relay connection and a signing key; base class of every memory system's client."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from relay.client.client import Client
from relay.client.connection import Timeouts

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from relay.nostr.keys import SecretKey


class BaseClient:
    """Used as `async with`. Subclasses open their other resources in `_open`."""

    def __init__(self, relay: Client | str, signer: SecretKey, *, start_offline: bool) -> None:
        """`relay`: a URL, or an open client that outlives this object. `start_offline`: do not fail
        if the relay behind a URL is unreachable at the start."""
        self._signer = signer
        if isinstance(relay, Client):
            self._client, self._owns_client = relay, False
        else:
            self._client = Client(relay, signer, timeouts=Timeouts(), start_offline=start_offline)
            self._owns_client = True
        self._closing = AsyncExitStack()

    @property
    def url(self) -> str:
        """URL of the relay."""
        return self._client.url

    @property
    def pubkey(self) -> str:
        """Public key of the signer, 64 hex."""
        return self._signer.pubkey

    @property
    def is_online(self) -> bool:
        return self._client.is_connected

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            await self._open(opening)
            self._closing = opening.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._closing.aclose()

    async def _open(self, opening: AsyncExitStack) -> None:
        """Connects. Whatever is pushed on `opening` is closed in reverse order."""
        if self._owns_client:
            await opening.enter_async_context(self._client)

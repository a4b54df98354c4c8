"""AtRelay: a signer at a relay, which is what every client of a memory system begins with."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from relay.client.connection import Client
from relay.client.link import Pace

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from relay.nostr.keys import SecretKey


class AtRelay:
    """Used as `async with`. What a system needs beside the relay it opens in `_open`."""

    def __init__(self, relay: Client | str, signer: SecretKey, *, may_be_away: bool) -> None:
        """`relay`: a URL, or a client that is open for at least as long. `may_be_away`: a relay
        behind a URL need not be there to begin with."""
        self._signer = signer
        if isinstance(relay, Client):
            self._client, self._owns_client = relay, False
        else:
            self._client = Client(relay, signer, pace=Pace(), may_be_away=may_be_away)
            self._owns_client = True
        self._closing = AsyncExitStack()

    @property
    def url(self) -> str:
        """Of the relay."""
        return self._client.url

    @property
    def pubkey(self) -> str:
        """Who signs, 64 hex."""
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
        """The relay. What is put on `opening` is closed again, the last first."""
        if self._owns_client:
            await opening.enter_async_context(self._client)

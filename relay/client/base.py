"""BaseClient: a relay connection and a signing key; base class of every memory system's client."""

from __future__ import annotations

from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from relay.client.client import Client
from relay.client.connection import Timeouts
from relay.memory.junk import Sieve

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from relay.memory.junk import KeptOut
    from relay.nostr.keys import SecretKey

_MAX_TOLD: Final = 100


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
        self.sieve: Sieve | None = Sieve()
        """Filters junk out of writes; None: everything is written."""
        self.kept_out: deque[KeptOut] = deque(maxlen=_MAX_TOLD)
        """What it kept out, oldest first."""

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

    def sift(self, text: str, known: Iterable[str] = (), about: object = None) -> str | None:
        """The text without junk, given the `known` texts; None: it must not be written. Removed
        parts are added to `kept_out`. `about`: see `Sieve.recalled`."""
        if self.sieve is None:
            return text
        sifted = self.sieve.sifted(text, known, about)
        self.kept_out.extend(sifted.kept_out)
        return sifted.text

    def note_recalled(self, texts: Iterable[str], about: object = None) -> None:
        """Remember texts that were given to the writer, so that they are not written again.
        `about`: see `Sieve.recalled`."""
        if self.sieve is not None:
            self.sieve.recalled(texts, about)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            await self._open(opening)
            self._closing = opening.pop_all()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._closing.aclose()

    async def _open(self, opening: AsyncExitStack) -> None:
        """Connects. Whatever is pushed on `opening` is closed in reverse order."""
        if self._owns_client:
            await opening.enter_async_context(self._client)

"""What the console is given: services of the relay, its server, and what only owners see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from ipaddress import IPv4Address, IPv6Address

    from aiohttp import web

    from relay.access.visibility import Viewer
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter, FilterTerms
    from relay.nostr.nip42 import RelayAddress
    from relay.observe import LogLine, Refusal, Sample, Status
    from relay.state import RelayState


MAX_OF_KNOWN: Final = 2048
"""NIP-98 events that are remembered before known keys must wait: the rest is for owners."""
MAX_OF_OTHERS: Final = 1024
"""The same for unknown keys."""


class UsedAuthorizations(Protocol):
    async def was_used(
        self, event: Event, now: int, most: int | None = None, address: str | None = None
    ) -> bool:
        """Marks a NIP-98 event as used, unless `most` are remembered, or its key or address has
        its share of them. Raises Refused."""


class StoredRows(Protocol):
    async def of(
        self,
        viewer: Viewer,
        filters: tuple[Filter, ...],
        max_weight: int,
        counted_as: str | None,
    ) -> Sequence[bytes]:
        """What a REQ of this viewer is sent up to EOSE, or to the row that reaches `max_weight`,
        see `parsing_weight`. `counted_as`: see `Sharer.counted_as`.

        Raises Refused for a REQ that would be closed without a row, or by an error.
        """


class Publisher(Protocol):
    async def published(
        self,
        event: Event,
        keys: frozenset[str],
        address: IPv4Address | IPv6Address | None,
        counted_as: str,
    ) -> tuple[bool, str]:
        """Third and fourth element of the OK, as to a connection on which these keys logged in.

        `counted_as`: the address or key with which it shares turns and memory.
        """


class ConsoleServices(Protocol):
    """Satisfied by `relay.cli.services.Services`."""

    @property
    def relay_pubkey(self) -> str: ...
    @property
    def clock(self) -> Callable[[], int]:
        """Unix seconds."""

    @property
    def terms(self) -> FilterTerms: ...
    @property
    def state(self) -> RelayState: ...
    @property
    def stored(self) -> StoredRows: ...
    @property
    def ingest(self) -> Publisher: ...
    @property
    def used_calls(self) -> UsedAuthorizations: ...


class Site(Protocol):
    """Satisfied by `relay.server.app.Server`."""

    def may_connect(self, request: web.Request) -> bool:
        """Whether the client's address is not blocked."""

    def is_of_page(self, request: web.Request) -> bool:
        """Whether a page of another origin sent the request."""

    def address_of(self, request: web.Request) -> IPv4Address | IPv6Address | None:
        """By which rates are counted."""

    def counted_as(self, request: web.Request) -> str | None:
        """See `relay.access.shares.Sharer`."""

    def addresses_for(self, request: web.Request) -> frozenset[RelayAddress]: ...

    @property
    def is_secure(self) -> bool:
        """Whether clients come over TLS, to the relay itself or to a proxy before it."""

    def url_for(self, request: web.Request) -> str:
        """The relay's URL, ws:// or wss://."""

    def information(self) -> bytes:
        """The NIP-11 document, with the texts that were changed here."""


class OwnerView(Protocol):
    """What only owners of the relay see, beside events: numbers, rules, findings."""

    @property
    def data_folder(self) -> str:
        """Its whole path, for `--data`."""

    @property
    def is_in_database(self) -> bool:
        """Whether the events are in PostgreSQL, which has its own tools to back up and verify."""

    @property
    def may_edit_policies(self) -> bool:
        """Whether the policies in force are files of the folder."""

    async def status(self) -> Status: ...

    def day(self) -> Sequence[Sample]:
        """Numbers of the last day, one a minute, oldest first."""

    async def disk(self) -> Mapping[str, object]:
        """Sizes in bytes, growth, `backup_at`."""

    async def refusals(self) -> Sequence[Refusal]:
        """Oldest first."""

    async def log_lines(self) -> Sequence[LogLine]:
        """Oldest first."""

    async def findings(self) -> Sequence[Mapping[str, str]]:
        """Of `doctor`: `severity`, `text`, `cure`."""

    def verification(self) -> Mapping[str, Any]:
        """Of the last `verify` from the console: `began_at`, `ended_at` or None, rows `done` of
        `total`, `failure`, and `report` or None: `events`, `counts` by check, the first `findings`
        of each (`check`, `text`). Empty: there was none since the start."""

    def start_verify(self) -> None:
        """Raises Refused while one runs."""

    async def retention(self) -> Sequence[Mapping[str, object]] | None:
        """What a sweep would remove a day from now: `rule`, `place`, `cause`, `kind`, `events`,
        `bytes`, and `held`: why it stays all the same. None: it is still being counted."""

    async def policies(self) -> Mapping[str, object]:
        """`sections`: `title` and `rules` in force (`text`, `name`, `file`, `line`, `is_own`:
        not packaged); `files`: their names; `notes`."""

    async def policy_file(self, name: str) -> str | None:
        """The text of a file in force or in the folder; None: there is none of this name."""

    async def check_policy(self, name: str, text: str, owner: str) -> Mapping[str, object]:
        """An edit of an own file, or a new one, by this owner: `text` as it would be saved,
        `before`: a hash of the file as it is, and lines of `faults`, `warnings`, `access` and
        `diff`. Raises Refused."""

    async def save_policy(self, name: str, text: str, before: str, owner: str) -> None:
        """Checks again and saves. Raises Refused."""

    async def explain_write(self, fields: object, logins: frozenset[str]) -> Mapping[str, object]:
        """As `rookery policy explain --json`; no login: the author's. Raises Refused."""

    async def explain_read(self, event: Event) -> Mapping[str, object]:
        """`rules` that apply to a stored event (`rule`, `file`, `line`, `readers`), and `readers`:
        of some who are known (`who`, `pubkey`, `allowed`, and the `rule` that hides it)."""

    def connections(self) -> Sequence[Mapping[str, object]]:
        """`number`, `address`, `keys`, `subscriptions`, `unsent_bytes`."""

"""The events of a data folder, for commands and for the control socket.

`open_folder` goes through the control socket while a relay runs on the folder, else it opens the
store in this process, under the folder's lock.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from relay.access.management import ListName
from relay.access.visibility import ANONYMOUS
from relay.cli.folder_lock import locked
from relay.cli.options import no_data_folder
from relay.cli.services import run_services
from relay.config import load_config
from relay.errors import FolderBusy, Reject, StoreFault, UserError, WriteOutcome, ok_reply
from relay.nostr.event import parsing_weight
from relay.server.control import (
    ALLOWED,
    BANNED,
    INDEXED_VALUES,
    DryRunReply,
    RemoteFolder,
    Rows,
)
from relay.server.turns import Pauses
from relay.storage import PAGE_BYTES
from relay.write.commands import Purpose, Series, Unconnected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from relay.access.quotas import Sized, SizedBy
    from relay.cli.services import Services
    from relay.errors import Result
    from relay.facts import Origin
    from relay.lifecycle.rows import Stored
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.observe import LogLine, LogLines, Refusal, Status
    from relay.server.control import DataFolder
    from relay.write.sweeper import SweepLine

_EXPORT_PAGE: Final = 500
_MOST_FOUND: Final = 32 << 20
"""Bytes of rows that an index finds, which are held until they are sorted: 16 of the largest."""
_MAX_SEQ: Final = 2**63 - 1
_MOST_LATER: Final = 100_000
"""Rows that are read of what is committed during an export; as many as were there before, if these
are more."""


@asynccontextmanager
async def open_folder(folder: Path) -> AsyncIterator[DataFolder]:
    """Raises UserError for what is no data folder, FolderBusy when it is locked and no relay
    offers a control socket."""
    # A folder of something else gets no lock file.
    if not any((folder / name).exists() for name in ("rookery.toml", "relay.key", "rookery.db")):
        raise no_data_folder(folder)
    socket = folder / "control.sock"
    try:
        with locked(folder):
            config = load_config(folder / "rookery.toml")
            async with run_services(folder, config) as services:
                yield LocalFolder(services)
            return
    except FolderBusy as busy:
        if not socket.exists():
            raise busy from None
    async with RemoteFolder(socket) as remote:
        yield remote


class LocalFolder:
    """`DataFolder` on the services of this process."""

    def __init__(
        self,
        services: Services,
        url: Callable[[], str] = str,
        log_lines: LogLines | None = None,
        restart: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`url`: where the relay listens; empty: it does not."""
        self._services = services
        self._restart = restart
        self._log_lines = log_lines
        self._url = url

    async def submit(self, events: Sequence[Event], origin: Origin) -> Sequence[tuple[bool, str]]:
        batch, series = _Batch(len(events)), Series()
        pauses = Pauses()  # a relay may serve clients on this loop
        for index, event in enumerate(events):
            self._services.ingest.submit(
                event, Unconnected(told=partial(batch.set_reply, index)), origin, series
            )
            await pauses.rest()
        await batch.done.wait()
        return batch.replies

    async def events(
        self, filter_: Filter, rows: Rows = Rows.ALL
    ) -> AsyncIterator[Sequence[bytes]]:
        seq, head = 0, await self.head()
        if rows is Rows.ALL and _is_indexed(filter_):
            known = self._services.store.committed()
            found = await self._found_by_index(filter_)
            if found is not None:
                yield [raw for row_seq, raw in found if row_seq <= known]
                if head == known == await self.head():
                    return
                seq = known
        # To the end, with what is committed meanwhile: where that replaces a row before it is read,
        # no version would be in the result. When nothing is left, all that is stored was read.
        most = head + max(head, _MOST_LATER)
        while page := await self._rows_after(seq, rows):
            now = self._services.clock()
            matching = [
                row
                for row in page
                if (row.expires_at is None or row.expires_at > now) and filter_.matches(row.event)
            ]
            yield [row.event.raw for row in await self._readable(matching, rows, filter_)]
            seq = page[-1].seq
            if seq > most:
                raise StoreFault(
                    "events are stored faster than they are read, and records that were replaced"
                    " meanwhile may be missing; try again when less is written"
                )

    async def _found_by_index(self, filter_: Filter) -> Sequence[tuple[int, bytes]] | None:
        """seq and bytes of all matches, in order of seq; None: they are many."""
        now = self._services.clock()
        found: list[tuple[int, bytes]] = []
        last: Stored | None = None
        size = 0
        while True:
            page = await self._services.store.matching(
                filter_, limit=_EXPORT_PAGE, now=now, after=last
            )
            found += [(row.seq, row.event.raw) for row in page]
            size += sum([len(row.event.raw) for row in page])
            if len(found) >= _EXPORT_PAGE or size > _MOST_FOUND:
                return None
            if sum([parsing_weight(row.event.raw) for row in page]) < PAGE_BYTES:
                return sorted(found)
            last = page[-1]

    async def _rows_after(self, seq: int, rows: Rows) -> Sequence[Stored]:
        """The next rows of an export, in order of seq."""
        store = self._services.store
        page = await store.since(seq, _EXPORT_PAGE)
        if rows is not Rows.WITH_OLD_VERSIONS:
            return page
        old = [version.row for version in await store.old_versions(seq, _EXPORT_PAGE)]
        ends = [found[-1].seq for found in (page, old) if found]
        upto = min(ends, default=_MAX_SEQ)
        both = [row for row in (*page, *old) if row.seq <= upto]
        return sorted(both, key=lambda row: row.seq)

    async def _readable(
        self, page: Sequence[Stored], rows: Rows, filter_: Filter
    ) -> Sequence[Stored]:
        """The rows of a page that the export may contain. Checked for each page: a group may become
        private during an export."""
        match rows:
            case Rows.ALL | Rows.WITH_OLD_VERSIONS:
                return page
            case Rows.PUBLIC:
                state = self._services.state
                pointing = [(row, {ANONYMOUS}) for row in page if state.targets_of(row)]
                links = await self._services.linked_rows.links_of(pointing)
                # A page may have rows of a commit before its groups are adopted.
                await state.commit_ended()
                visibility = state.visibility(ANONYMOUS)
                return [
                    row
                    for row in page
                    # Most rows match no read rule, and that is cheaper to find out.
                    if state.is_public(row)
                    or visibility.may_read(row, filter_, links.readable(row, visibility))
                ]
            case _:
                assert_never(rows)

    async def head(self) -> int:
        return await self._services.store.head()

    async def dry_run(self, event: Event, logins: frozenset[str]) -> DryRunReply:
        dry_run = await self._services.ingest.dry_run(event, Unconnected(logins))
        rule = dry_run.result.rule if isinstance(dry_run.result, Reject) else None
        return DryRunReply(*ok_reply(dry_run.result), rule, dry_run.facts)

    async def managed_keys(self) -> Sequence[tuple[str, str]]:
        management = self._services.state.management
        return [
            *((ALLOWED, key) for key in management.of(ListName.ALLOWED_KEYS)),
            *((BANNED, key) for key in management.of(ListName.BANNED_KEYS)),
        ]

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        return await self._services.store.sizes(by, limit)

    async def sweep(self, purpose: Purpose, ahead_s: int = 0) -> AsyncIterator[Sequence[SweepLine]]:
        if purpose is not Purpose.DRY_RUN:
            ahead_s = 0  # nothing goes before its time
        async for lines in self._services.sweeper(ahead_s).run_now(purpose):
            yield lines

    async def refusals(self, after: int) -> Sequence[Refusal]:
        return self._services.metrics.refusals.after(after)

    async def restart(self) -> None:
        if self._restart is None:
            raise UserError("no relay runs here")
        await self._restart()

    async def log_lines(self, after: int) -> Sequence[LogLine]:
        return () if self._log_lines is None else self._log_lines.after(after)

    async def status(self) -> Status:
        services = self._services
        return replace(
            services.metrics.status(),
            plugins=services.plugins.states,
            problems=services.readiness.problems,
            url=self._url(),
        )


def _is_indexed(filter_: Filter) -> bool:
    """Whether an index gives the first matches, however many rows are stored."""
    if filter_.ids is not None:
        return len(filter_.ids) < _EXPORT_PAGE
    is_of_one_kind = filter_.kinds is not None and len(filter_.kinds) == 1
    lengths = [len(values) for _, values in filter_.tags]
    return is_of_one_kind and 0 < max(lengths, default=0) <= INDEXED_VALUES


class _Batch:
    """Imported events that wait for their replies together."""

    def __init__(self, size: int) -> None:
        self.replies: list[tuple[bool, str]] = [(False, "")] * size
        self.done = asyncio.Event()
        self._pending = size
        if not size:
            self.done.set()

    def set_reply(self, index: int, result: Result) -> None:
        self.replies[index] = (True, "") if result is WriteOutcome.STORED else ok_reply(result)
        self._pending -= 1
        if not self._pending:
            self.done.set()

"""`rookery sync`: synchronise a data folder or relay with another relay by negentropy (NIP-77).

Sending discloses: the other relay serves what it receives. So only publicly readable events of our
side are compared and sent, unless --all is given.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import AsyncGenerator
from contextlib import (
    ExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, assert_never

import click
import msgspec

from relay.cli.connect import advice_on
from relay.cli.exporting import filter_of
from relay.cli.folder_lock import locked
from relay.cli.group_records import GroupRecords
from relay.cli.humanize import counted
from relay.cli.import_lines import Outcome, outcome_of
from relay.cli.importing import groups_here, submit_with_retries
from relay.cli.options import (
    DATA_VARIABLE,
    json_option,
    print_json,
    printable,
    refuse_unnamed,
)
from relay.cli.progress import progress_bar, tell
from relay.client import Client, ClientError, Timeouts, Unreachable
from relay.client.settings import named_key, relay_url
from relay.client.sync import (
    Direction,
    Moderation,
    RelaySide,
    StoreResult,
    Sync,
    Tally,
    comparable,
    items_of,
)
from relay.clock import unix_now
from relay.config import load_config
from relay.errors import ConfigFaults, FolderBusy, StoreFault, UserError
from relay.facts import Origin
from relay.nostr.event import event_from_raw
from relay.nostr.filters import Filter, FilterTerms
from relay.nostr.kinds import MARMOT, RELAY_SIGNED
from relay.nostr.nip42 import relay_address
from relay.server.control import Rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence

    from rich.progress import Progress, TaskID

    from relay.client.sync import Side
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.nostr.nip77 import Items
    from relay.server.control import Folder

_BATCH: Final = 256
"""Events sent together."""
_TIMEOUTS: Final = Timeouts(deadline_s=60.0)
"""A relay needs a while to compare a million records."""


@click.command("sync", epilog="Example: rookery sync wss://relay.example.com --data ./data --down")
@click.argument("url", metavar="URL")
@click.option(
    "--filter",
    "filter_text",
    metavar="JSON",
    help="""Only events that match, as in a REQ: '{"kinds":[1],"authors":["…"]}'.""",
)
@click.option(
    "--data",
    "folder",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Our side: this data folder; its relay may run.  [default: data]",
)
@click.option("--relay", metavar="URL", help="Our side: the relay at this URL.")
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the secret key to authenticate with: nsec or 64 hex. Default: none.",
)
@click.option("--down", is_flag=True, help="Only fetch events missing here.")
@click.option("--up", is_flag=True, help="Only send events missing at URL.")
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Include events that are not publicly readable on our side: private groups, gift wraps,"
    " memory, configuration. The policies of URL then decide who may read them. With --relay: all"
    " events that the key may read.",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Skip write permissions of the data folder, except for group records.",
)
@click.option(
    "--moderation",
    "takes_moderation",
    is_flag=True,
    help="Also accept group records (kinds 9000 to 9022), which create and delete groups here, and"
    " add and remove members. Their changes are listed first.",
)
@click.option("--dry-run", is_flag=True, help="Only count the differences.")
@json_option
def sync_command(
    url: str,
    filter_text: str | None,
    folder: Path | None,
    relay: str | None,
    key_file: Path | None,
    *,
    down: bool,
    up: bool,
    is_all: bool,
    trust: bool,
    takes_moderation: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Synchronise our side with the relay at URL, both ways unless --down or --up is given.

    Only differing events are transferred, and every event is verified. They may be of any age, but
    not dated ahead of the clock by more than [limits] created_at_upper. Refusals are counted by
    reason and do not stop the run. After an interruption the same command continues. Our side is
    --data, --relay, or the relay in ROOKERY_RELAY if neither is given.

    Group records (kinds 9000 to 9022) are accepted only with --moderation: another relay may have
    other groups with the same ids. Use it only with relays that you trust with the groups here: a
    record does not say on which relay it was meant. Kinds 39000 to 39005 are never transferred,
    since each relay signs its own. Protected events (NIP-70) are never sent: only their author may
    publish them.
    """
    theirs = relay_url(url, "URL")
    if folder is not None and relay is not None:
        raise click.UsageError("--data and --relay exclude each other")
    if folder is None and (relay is not None or os.environ.get("ROOKERY_RELAY")):
        if trust:
            raise click.UsageError(
                "--trust works with --data only; a relay applies its own policies"
            )
        place = "--relay" if relay is not None else "ROOKERY_RELAY"
        ours: Path | str = relay_url(relay or os.environ["ROOKERY_RELAY"], place)
        if relay_address(str(ours)) == relay_address(theirs):
            raise UserError(f"{theirs} is on both sides", code=2)
    else:
        # Not of the option itself: --relay would seem to be given beside it.
        named = folder or os.environ.get(DATA_VARIABLE)
        ours = Path(named or "data")
        if not named:
            refuse_unnamed(ours)
    key = named_key(key_file, os.environ)
    filter_ = _filter(filter_text, ours)
    direction = Direction.BOTH if down == up else Direction.DOWN if down else Direction.UP
    rows = Rows.ALL if is_all else Rows.PUBLIC
    origin = Origin.TRUSTED_SYNC if trust else Origin.IMPORT
    moderation = Moderation.TAKEN if takes_moderation else Moderation.LEFT
    began = perf_counter()

    is_locked = isinstance(ours, Path) and ours.is_dir() and not dry_run
    lock = _only_sync(Path(ours), theirs) if is_locked else nullcontext()

    async def work() -> Tally:
        async with _side(ours, key, rows, origin) as side, _client(theirs, key) as client:
            foreign_h = _foreign_h(ours)
            return await _run_sync(
                side, client, filter_, direction, moderation, foreign_h, dry_run=dry_run
            )

    try:
        with lock:
            tally = asyncio.run(work())
    except Unreachable as error:
        raise UserError(
            f"{error}; nothing was transferred: repeat the command when the relay is reachable"
        ) from error
    seconds = perf_counter() - began
    if as_json:
        print_json(_as_json(tally, theirs, seconds))
        return
    for line in _not_transferred(tally):
        click.echo(printable(line), err=True)
    click.echo(
        printable(_summary(tally, theirs, seconds, direction=None if dry_run else direction))
    )


@contextmanager
def _only_sync(folder: Path, url: str) -> Iterator[None]:
    """Runs from cron must not pile up where the other relay is slow."""
    name = f"sync-{sha256(url.encode()).hexdigest()[:16]}.lock"
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder, name))
        except FolderBusy as busy:
            who = f"process {busy.pid}" if busy.pid else "another process"
            raise UserError(f"a sync of {folder} with {url} still runs: {who}") from None
        yield


def _filter(text: str | None, ours: Path | str) -> Filter:
    if isinstance(ours, Path):
        terms = load_config(ours / "rookery.toml").storage.terms
    else:
        terms = FilterTerms()
    try:
        return Filter() if text is None else comparable(filter_of(text, terms))
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="--filter") from None


def _foreign_h(ours: Path | str) -> Collection[int]:
    """Kinds whose `h` names no group: by the policies of a folder, else by the packaged ones."""
    if isinstance(ours, Path):
        import policies
        from relay.cli.pushed_policies import policies_of
        from relay.memory.systems import MEMORY_SYSTEMS

        with suppress(ConfigFaults):  # a running relay goes on with earlier ones
            return policies.load(policies_of(ours), MEMORY_SYSTEMS).groups.foreign_h
    return MARMOT


# -- the two sides --------------------------------------------------------------------------------


class _Item(msgspec.Struct, frozen=True):
    """The fields of an event that reconciliation needs."""

    id: str
    created_at: int
    kind: int


_item_in: Final = msgspec.json.Decoder(_Item).decode


class FolderSide:
    """A data folder. A Side."""

    def __init__(
        self, folder: Folder, rows: Rows, origin: Origin, *, takes_any_order: bool
    ) -> None:
        self.takes_any_order = takes_any_order
        self._folder = folder
        self._rows = rows
        self._origin = origin

    async def items(self, filter_: Filter) -> Items:
        timestamps, ids = array("Q"), bytearray()
        async with aclosing(self._pages(filter_)) as pages:
            async for raws in pages:
                for item in map(_item_in, raws):
                    if item.kind not in RELAY_SIGNED:
                        timestamps.append(item.created_at)
                        ids += bytes.fromhex(item.id)
        return items_of(timestamps, ids)

    async def events(
        self, filter_: Filter, ids: Sequence[bytes]
    ) -> AsyncGenerator[Sequence[Event], None]:
        """In storage order. Events no longer publicly readable are left out."""
        wanted, found = set(ids), 0
        batch: list[Event] = []
        async with aclosing(self._pages(filter_)) as pages:
            async for raws in pages:
                named = [raw for raw in raws if bytes.fromhex(_item_in(raw).id) in wanted]
                batch += map(event_from_raw, named)
                found += len(named)
                if found == len(wanted):
                    break
                if len(batch) >= _BATCH:
                    yield batch
                    batch = []
        if batch:
            yield batch

    async def store(self, events: Sequence[Event]) -> StoreResult:
        result = StoreResult()
        answers = await submit_with_retries(self._folder, events, self._origin)
        for event, answer in zip(events, answers, strict=True):
            match outcome_of(event, answer):
                case Outcome.STORED | Outcome.PASSED_ON:
                    result.stored += 1
                case Outcome.DUPLICATE:
                    result.duplicates += 1
                case Outcome.SUPERSEDED | Outcome.LEFT_OUT | Outcome.REFUSED:
                    result.refused.append((event, answer[1]))
                case never:
                    assert_never(never)
        return result

    async def groups(self, ids: Collection[str]) -> Mapping[str, Collection[str]]:
        return await groups_here(self._folder, ids)

    async def _pages(self, filter_: Filter) -> AsyncGenerator[Sequence[bytes], None]:
        pages = self._folder.events(filter_, self._rows)
        try:
            async for raws in pages:
                yield raws
        finally:
            if isinstance(pages, AsyncGenerator):
                await pages.aclose()


@asynccontextmanager
async def _side(
    ours: Path | str, key: SecretKey | None, rows: Rows, origin: Origin
) -> AsyncIterator[Side]:
    if isinstance(ours, Path):
        from relay.cli.data_folder import LocalFolder, open_folder

        async with open_folder(ours) as folder:
            # A running relay would send its clients what comes before the group that it is in.
            is_alone = isinstance(folder, LocalFolder)
            yield FolderSide(folder, rows, origin, takes_any_order=is_alone)
        return
    async with _client(ours, key) as writer:
        if rows is Rows.ALL or key is None:
            yield RelaySide(writer, writer)
            return
        # The key may read private events: what is sent to the other relay is read without it.
        async with _client(ours, None) as reader:
            yield RelaySide(reader, writer)


@asynccontextmanager
async def _client(url: str, key: SecretKey | None) -> AsyncIterator[Client]:
    async with Client(url, *(() if key is None else (key,)), timeouts=_TIMEOUTS) as client:
        if key is not None and client.login_refusal:
            raise UserError(
                f"{url} refused the login of {key.npub}: {client.login_refusal}"
                f"{advice_on(client.login_refusal)}"
            )
        yield client


# -- one run and its output -----------------------------------------------------------------------


async def _run_sync(
    ours: Side,
    theirs: Client,
    filter_: Filter,
    direction: Direction,
    moderation: Moderation,
    foreign_h: Collection[int],
    *,
    dry_run: bool,
) -> Tally:
    """A dry run only compares."""
    with progress_bar("{task.fields[amount]}") as progress:
        sync = Sync(
            ours,
            theirs,
            filter_,
            now=unix_now(),
            note=_bars(progress),
            moderation=moderation,
            foreign_h=foreign_h,
        )
        try:
            await sync.compare()
        except ClientError as error:
            raise UserError(f"cannot compare with {theirs.url}: {error}") from error
        try:
            if direction is not Direction.UP:
                records = GroupRecords()
                async for events in sync.group_records():
                    for event in events:
                        records.add(event.kind, event.tags, event.id)
                if records:
                    said = f"{theirs.url} has group records: {records}"
                    tell(said)
            if not dry_run:
                await sync.move(direction)
        except (ClientError, StoreFault) as error:
            raise UserError(f"{error}; {_so_far(sync.tally)}") from error
        except asyncio.CancelledError:
            tell(_so_far(sync.tally))
            raise
        return sync.tally


def _so_far(tally: Tally) -> str:
    return f"received {tally.received}, sent {tally.sent}; repeat the command to continue"


def _summary(tally: Tally, url: str, seconds: float, *, direction: Direction | None) -> str:
    compared = (
        f"compared {tally.compared:,} against {url} in {counted(tally.rounds, 'round')},"
        f" {_size(tally.sent_bytes + tally.received_bytes)}, {seconds:.1f} s"
    )
    if direction is None:
        return f"{tally.need:,} to receive, {tally.have:,} to send; {compared}"
    parts = []
    if direction is not Direction.UP:
        parts.append(f"received {_stored_text(tally.received, tally.refused_here.total())}")
    if direction is not Direction.DOWN:
        parts.append(f"sent {_stored_text(tally.sent, tally.refused_there.total())}")
    return ", ".join((*parts, compared))


def _stored_text(stored: int, refused: int) -> str:
    return f"{stored:,} ({refused:,} refused)" if refused else f"{stored:,}"


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{round(size / 1000)} kB"


def _not_transferred(tally: Tally) -> list[str]:
    """Events not transferred, and why; one line each."""
    lines = [
        f"refused {where}: {count} × {reason}"
        for where, reasons in (("here", tally.refused_here), ("there", tally.refused_there))
        for reason, count in reasons.most_common()
    ]
    if tally.not_given:
        lines.append(
            f"not returned: {tally.not_given} × listed by the relay, but missing in its answer"
        )
    if tally.not_asked:
        lines.append(
            f"skipped: {tally.not_asked} × listed by the relay, but not matching this filter"
        )
    lines += [
        f"skipped: {count} × of group {group}: the group of this id where they would be stored is"
        " another one"
        for group, count in tally.other_groups.most_common()
    ]
    if tally.moderation:
        lines.append(
            f"skipped: {tally.moderation} × group records (kinds 9000 to 9022);"
            " include them with --moderation"
        )
    if tally.protected:
        lines.append(f"not sent: {tally.protected} × protected: only their author may publish them")
    return lines


def _as_json(tally: Tally, url: str, seconds: float) -> dict[str, object]:
    return {
        "url": url,
        "compared": tally.compared,
        "need": tally.need,
        "have": tally.have,
        "received": tally.received,
        "sent": tally.sent,
        "known_here": tally.known_here,
        "known_there": tally.known_there,
        "refused_here": dict(tally.refused_here),
        "refused_there": dict(tally.refused_there),
        "not_given": tally.not_given,
        "not_asked": tally.not_asked,
        "moderation": tally.moderation,
        "other_groups": dict(tally.other_groups),
        "protected": tally.protected,
        "relay_signed": tally.relay_signed,
        "rounds": tally.rounds,
        "bytes_compared_sent": tally.sent_bytes,
        "bytes_compared_received": tally.received_bytes,
        "seconds": round(seconds, 3),
    }


def _bars(progress: Progress) -> Callable[[Tally], None]:
    """Progress callback: one bar for each step that has started."""
    comparing = progress.add_task("comparing", total=None, amount="")
    receiving = progress.add_task("receiving", total=None, amount="", visible=False)
    sending = progress.add_task("sending", total=None, amount="", visible=False)

    starts: dict[TaskID, tuple[float, int]] = {}
    """Start time and count of the first batch: the rate excludes it."""

    def show(task: TaskID, done: int, total: int) -> None:
        if done:
            began, at_first = starts.setdefault(task, (perf_counter(), done))
            rate = (done - at_first) / max(perf_counter() - began, 1e-3)
            amount = f"{done:,}/{total:,}, {rate:,.0f} events/s"
            progress.update(task, completed=done, total=total, amount=amount, visible=True)

    def note(tally: Tally) -> None:
        amount = f"{tally.compared:,} events, {tally.rounds} rounds"
        progress.update(comparing, amount=amount)
        here = tally.received + tally.known_here + tally.refused_here.total()
        there = tally.sent + tally.known_there + tally.refused_there.total() + tally.protected
        show(receiving, here, tally.need)
        show(sending, there, tally.have)

    return note

"""`rookery serve`: the one file that names implementations and puts the rooms together.

`open_folder` gives the other commands of a folder its events: through the control socket while a
relay runs there, else from the store, opened here under the folder's lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

import click

import policies
from policies.changes import rule_changes
from policies.plugins import Chain
from policies.reload import fingerprint, reloaded
from relay.access.management import BannedRows, Register
from relay.access.visibility import ANONYMOUS
from relay.bus.local import LocalBus
from relay.cli.folder_lock import locked
from relay.cli.init import fresh_folder, is_fresh
from relay.cli.options import folder_option
from relay.config import Config, Synchronous, load_config
from relay.errors import ConfigFaults, FolderBusy, UserError
from relay.nostr.filters import FilterTerms
from relay.nostr.keys import npub, read_key_file
from relay.nostr.nip42 import OwnAddresses
from relay.observe import Metrics, Readiness, set_up_logging
from relay.read.fanout import Fanout
from relay.read.linked_rows import Targets
from relay.read.negentropy import Negentropy
from relay.read.outbox import Turn
from relay.read.query import QueryRunner
from relay.read.search_indexer import SearchFollower
from relay.server.app import Parts, Server
from relay.server.connection import Roads
from relay.server.control import ALLOWED, BANNED, ControlServer, DryRunReply, RemoteFolder, Rows
from relay.state import RelayState, rebuilt_groups
from relay.storage.sqlite.store import SqliteStore
from relay.storage.sqlite.words import FtsMatcher
from relay.verdict import Origin, Reject, WriteOutcome, ok_reply
from relay.write.commands import ManagementChange
from relay.write.ingest import Ingest
from relay.write.key_rotation import taken_over
from relay.write.sweeper import Sweep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence, Set
    from concurrent.futures import Executor

    from policies.reload import Fingerprint
    from relay.access.usage import Sized, SizedBy
    from relay.errors import Fault
    from relay.lifecycle.rows import Stored
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.nostr.keys import SecretKey
    from relay.observe import Refusal
    from relay.server.control import DataFolder
    from relay.verdict import Result
    from relay.write.commands import Purpose
    from relay.write.sweeper import SweepLine

_log = logging.getLogger("rookery")

_RELOAD_S: Final = 1.0
_EXPORT_PAGE: Final = 500
_SWITCH_S: Final = 0.0005
"""How long a thread keeps the interpreter: the writer must not wait 5 ms per statement."""


@dataclass(frozen=True, slots=True)
class Opened:
    """One data folder at work: its store, what is judged against, the road in."""

    config: Config
    relay_key: SecretKey
    policies: policies.PolicySet
    """As they were at the start."""
    policy_files: Fingerprint
    """From before they were read: what changes while the relay starts is a change."""
    store: SqliteStore
    state: RelayState
    targets: Targets
    fanout: Fanout
    plugins: Chain
    """Started when the first event is to be judged, or by `start`."""
    ingest: Ingest
    metrics: Metrics
    readiness: Readiness
    bus: LocalBus
    terms: FilterTerms
    addresses: OwnAddresses
    comparers: Executor
    following: SearchFollower
    """Not yet running: what only reads the folder has no use for it."""

    @property
    def folder(self) -> LocalFolder:
        return LocalFolder(self)

    @property
    def sweep(self) -> Sweep:
        """Not yet running; any number may, each asks anew what is still there."""
        return Sweep(self.store, self.state, self.ingest, clock=_now, metrics=self.metrics)


def _now() -> int:
    return int(time.time())  # noqa: TID251 — a shell reads the clock


@asynccontextmanager
async def opened(folder: Path, config: Config) -> AsyncIterator[Opened]:
    """The folder's parts, running; the caller holds its lock."""
    relay_key = _relay_key(folder)
    files = fingerprint(folder / "policies")
    policy = policies.load(folder / "policies", relay_key.pubkey)
    terms = FilterTerms(
        config.storage.index_tags, config.storage.prefix_d_kinds, SqliteStore.features.search
    )
    metrics, readiness, bus = Metrics(), Readiness(), LocalBus()
    addresses = OwnAddresses(config.relay.url)
    store = await SqliteStore.open(
        folder / "rookery.db", terms, synchronous=config.storage.synchronous.value
    )
    words = FtsMatcher()
    verifiers, comparers = ThreadPoolExecutor(2, "verify"), ThreadPoolExecutor(1, "negentropy")
    try:
        groups = await rebuilt_groups(store, relay_key.pubkey)
        groups = await taken_over(store, groups, relay_key, policy.keep, _now())
        state = RelayState(policy, groups, await store.management())
        targets = Targets(store, state, _now)
        fanout = Fanout(state, words, targets)
        plugins = _plugins(policy, metrics, readiness)
        ingest = Ingest(
            store,
            state,
            relay_key,
            fanout,
            clock=_now,
            verifiers=verifiers,
            metrics=metrics,
            committed=bus.announce,
            is_here=addresses.has,
            plugins=plugins,
        )
        async with plugins, ingest:
            yield Opened(
                config,
                relay_key,
                policy,
                files,
                store,
                state,
                targets,
                fanout,
                plugins,
                ingest,
                metrics,
                readiness,
                bus,
                terms,
                addresses,
                comparers,
                SearchFollower(store, state, bus, clock=_now),
            )
    finally:
        verifiers.shutdown()
        comparers.shutdown()
        await store.close()
        words.close()


def _plugins(policy: policies.PolicySet, metrics: Metrics, readiness: Readiness) -> Chain:
    def changed(problems: Sequence[str]) -> None:
        if problems:
            readiness.note("plug-ins", "; ".join(problems))
        else:
            readiness.clear("plug-ins")

    plugins = Chain(policy.plugins, changed=changed)
    metrics.watch(
        "plugins_down", "Plug-ins that do not answer just now.", lambda: len(plugins.problems)
    )
    metrics.watch(
        "plugin_failures", "Times since the start that a plug-in failed.", lambda: plugins.failures
    )
    return plugins


def _relay_key(folder: Path) -> SecretKey:
    path = folder / "relay.key"
    try:
        text = path.read_text("ascii")
    except FileNotFoundError:
        raise UserError(
            f"{path} is missing: make the folder with `rookery init {folder} --owner KEY`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        _log.warning("%s can be read by others: chmod 600 %s", path, path)
    return read_key_file(text, str(path))


class LocalFolder:
    """`DataFolder` over the parts of this process: what commands and the control socket ask."""

    def __init__(self, parts: Opened) -> None:
        self._parts = parts

    async def submit(self, events: Sequence[Event], origin: Origin) -> Sequence[tuple[bool, str]]:
        batch = _Batch(len(events))
        for number, event in enumerate(events):
            self._parts.ingest.submit(event, _Line(batch, number), origin)
        await batch.done.wait()
        return batch.results

    async def events(
        self, filter_: Filter, rows: Rows = Rows.ALL
    ) -> AsyncIterator[Sequence[bytes]]:
        seq, head = 0, await self.head()  # what comes while this is read is not part of it
        while page := await self._parts.store.since(seq, _EXPORT_PAGE):
            now = _now()
            asked = [
                row
                for row in page
                if row.seq <= head
                and (row.expires_at is None or row.expires_at > now)
                and filter_.matches(row.event)
            ]
            yield [row.event.raw for row in await self._readable(asked, rows, filter_)]
            seq = page[-1].seq
            if seq >= head:
                return

    async def _readable(
        self, page: Sequence[Stored], rows: Rows, filter_: Filter
    ) -> Sequence[Stored]:
        """Of this moment: while a folder is read a group may become private."""
        match rows:
            case Rows.ALL:
                return page
            case Rows.PUBLIC:
                state, targets = self._parts.state, self._parts.targets
                pointing = [(row, {ANONYMOUS}) for row in page if state.points_to(row)]
                pointed = await targets.pointed(pointing)
                visibility = state.visibility(ANONYMOUS)
                return [
                    row
                    for row in page
                    # What no rule is about is quicker to tell, and is most of what there is.
                    if state.is_public(row)
                    or visibility.may_read(row, filter_, pointed.readable(row, visibility))
                ]
            case _:
                assert_never(rows)

    async def head(self) -> int:
        return await self._parts.store.head()

    async def dry_run(self, event: Event, logins: frozenset[str]) -> DryRunReply:
        seen = await self._parts.ingest.dry_run(event, _Asker(logins))
        rule = seen.result.rule if isinstance(seen.result, Reject) else None
        return DryRunReply(*ok_reply(seen.result), rule, seen.facts)

    async def standings(self) -> Sequence[tuple[str, str]]:
        management = self._parts.state.management
        return [
            *((ALLOWED, key) for key in management.of(Register.ALLOWED_KEYS)),
            *((BANNED, key) for key in management.of(Register.BANNED_KEYS)),
        ]

    async def sizes(self, by: SizedBy, limit: int) -> Sequence[Sized]:
        return await self._parts.store.sizes(by, limit)

    async def sweep(self, purpose: Purpose) -> AsyncIterator[Sequence[SweepLine]]:
        async for lines in self._parts.sweep.asked(purpose):
            yield lines

    async def refusals(self, after: int) -> Sequence[Refusal]:
        return self._parts.metrics.refusals.after(after)


class _Batch:
    """Events of an import that wait for their verdicts together."""

    def __init__(self, size: int) -> None:
        self.results: list[tuple[bool, str]] = [(False, "")] * size
        self.done = asyncio.Event()
        self._left = size
        if not size:
            self.done.set()

    def note(self, number: int, result: Result) -> None:
        self.results[number] = (True, "") if result is WriteOutcome.STORED else ok_reply(result)
        self._left -= 1
        if not self._left:
            self.done.set()


class _OverNoConnection:
    """Where an event comes from that no client has sent."""

    __slots__ = ()

    @property
    def address(self) -> None:
        return None

    @property
    def connection(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class _Line(_OverNoConnection):
    """The author of one imported event: nobody is logged in."""

    batch: _Batch
    number: int

    @property
    def authenticated(self) -> frozenset[str]:
        return frozenset()

    def answered(self, event: Event, result: Result) -> None:
        self.batch.note(self.number, result)


@dataclass(frozen=True, slots=True)
class _Asker(_OverNoConnection):
    """The author of an event that is only asked about."""

    authenticated: frozenset[str]

    def answered(self, event: Event, result: Result) -> None:
        """Nothing was sent, so nobody waits."""


@asynccontextmanager
async def open_folder(folder: Path) -> AsyncIterator[DataFolder]:
    """The folder's events, whether a relay runs on it or not."""
    if not folder.is_dir():  # noqa: ASYNC240 — nothing else runs here
        raise UserError(f"{folder} is no folder: `rookery init {folder} --owner KEY` makes one")
    socket = folder / "control.sock"
    try:
        with locked(folder):
            config = load_config(folder / "rookery.toml")
            async with opened(folder, config) as parts:
                yield parts.folder
            return
    except FolderBusy as busy:
        if not socket.exists():
            raise busy from None
    async with RemoteFolder(socket) as remote:
        yield remote


# -- the command -----------------------------------------------------------------------------------


@click.command("serve", epilog="Example: rookery serve --data ./data --port 7777")
@folder_option
@click.option(
    "--config",
    "config_file",
    metavar="F",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings to read instead of DIR/rookery.toml.",
)
@click.option("--host", metavar="H", help="Listen here instead of [server] host.")
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), help="0 picks a free one.")
def serve_command(
    folder: Path, config_file: Path | None, host: str | None, port: int | None
) -> None:
    """Run the relay. A folder that is empty or not there yet is made first."""
    _make_if_fresh(folder)
    config = load_config(config_file or folder / "rookery.toml")
    if config_file is not None and not config_file.is_file():
        raise UserError(f"{config_file} is not there", code=2)
    config = replace(
        config,
        server=replace(
            config.server,
            host=config.server.host if host is None else host,
            port=config.server.port if port is None else port,
        ),
    )
    set_up_logging(config.log)
    if config.storage.synchronous is Synchronous.NORMAL:
        _log.warning("[storage] synchronous = NORMAL: a power loss may take acknowledged events")
    with locked(folder):
        _run(_serve(folder, config))


def _make_if_fresh(folder: Path) -> None:
    if not is_fresh(folder):
        return
    made = fresh_folder(folder)
    print(f"made {made.folder}: a relay with a new owner and one agent", flush=True)
    print(f"  owner {npub(made.owner)}  secret key in {made.owner_key_file}", flush=True)
    print(f"  agent {npub(made.agent)}  secret key in {made.agent_key_file}", flush=True)
    print(f"  keep the keys safe; who may do what stands in {made.folder}/policies", flush=True)


def _run(main: Coroutine[object, object, None]) -> None:
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(50_000, 20, 50)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(main)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform; slower, not different
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(folder: Path, config: Config) -> None:
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    async with opened(folder, config) as parts:
        roads = roads_of(parts)
        server = Server(
            Parts(
                config,
                parts.state,
                parts.store,
                roads,
                parts.relay_key.pubkey,
                parts.metrics,
                parts.readiness,
            ),
            config.server.host,
            config.server.port,
        )
        async with (
            ControlServer(folder / "control.sock", parts.folder),
            server,
            parts.following,
            parts.sweep,
        ):
            parts.addresses.listens_on(server.addresses)
            watching = asyncio.create_task(
                _reload(folder, parts, reload, server.rights_changed), name="reload"
            )
            parts.plugins.start()
            gc.freeze()
            print(f"listening on {server.url}", flush=True)
            await stop.wait()
            _log.info("stopping")
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def roads_of(parts: Opened) -> Roads:
    config = parts.config
    loop = asyncio.get_running_loop()
    queries = QueryRunner(
        parts.store,
        parts.state,
        parts.fanout,
        config.limits,
        clock=_now,
        metrics=parts.metrics,
        index=parts.following,
    )
    negentropy = Negentropy(
        parts.store, parts.state, config.limits, clock=_now, workers=parts.comparers
    )
    parts.metrics.watch(
        "negentropy_records", "Records held for clients that reconcile.", lambda: negentropy.held
    )
    turn = Turn(loop.call_soon, parts.metrics.frames_out)
    return Roads(
        parts.ingest,
        queries,
        negentropy,
        turn,
        config.limits,
        parts.terms,
        parts.metrics,
        _now,
        parts.state,
        compression=config.server.compression,
    )


def _banish(policy: policies.PolicySet, before: Set[str], parts: Opened) -> None:
    """Delete what keys wrote that a file bans anew, where `[bans] stored` says so."""
    banned = policy.people.banned - before
    if banned and policy.banned_rows is BannedRows.DELETE:
        parts.ingest.order(ManagementChange((), lambda _: None, banishes=banned))


def _tell(notes: Iterable[Fault]) -> None:
    """Packaged rules that the files replace or switch off: nobody shall do so unawares."""
    for note in notes:
        _log.warning("policies: %s", note)


async def _reload(
    folder: Path, parts: Opened, asked: asyncio.Event, changed: Callable[[], None]
) -> None:
    """Policies anew within 2 s of a change, or on SIGHUP: whole or not at all (contract §4)."""
    home = folder / "policies"
    current = parts.policies
    if fingerprint(home) != parts.policy_files:
        asked.set()
    seen = fingerprint(home, current.watched)
    wrong = ""
    _tell(current.notes)
    _banish(current, frozenset(), parts)
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RELOAD_S):
                await asked.wait()
        now = await asyncio.to_thread(fingerprint, home, current.watched)
        # What is wrong may be righted where no fingerprint shows it: a missing file, a permission.
        is_news = now != seen or asked.is_set()
        if not is_news and not wrong:
            continue
        asked.clear()
        seen = now
        policy = await asyncio.to_thread(reloaded, current, home)
        if isinstance(policy, ConfigFaults):
            if wrong == str(policy) and not is_news:
                continue
            wrong = str(policy)
            parts.readiness.note("policies", str(policy))
            parts.metrics.reloaded(ok=False)
            for fault in policy.faults:
                _log.error("policies stay as they were: %s", fault)
            continue
        before, current, wrong = current, policy, ""
        parts.state.enforce(policy)
        deleted = before.banned_rows is BannedRows.DELETE
        _banish(policy, before.people.banned if deleted else frozenset(), parts)
        parts.plugins.enforce(policy.plugins)
        changed()
        parts.readiness.clear("policies")
        parts.metrics.reloaded(ok=True)
        _log.info("policies reloaded: %s", rule_changes(before, policy) or "they say the same")
        told = {note.text for note in before.notes}
        _tell(note for note in policy.notes if note.text not in told)

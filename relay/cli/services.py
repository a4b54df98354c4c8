"""The composition root: everything that works on one data folder, built in one place.

Of the modules that run a relay only this one names `relay.storage.sqlite`, `relay.storage.postgres`
and `policies`.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import policies
from policies.plugins import Chain
from policies.reload import fingerprint
from relay.cli.backup import LAST_BACKUP, back_up_before_upgrade, drop_safety_copies
from relay.cli.database import check_driver, password_in, refuse_store_fault, second_store
from relay.cli.move_switch import unended
from relay.cli.policy_files import plugin_faults, write_folder
from relay.cli.pushed_policies import NONE_YET, PushedPolicies
from relay.clock import unix_now
from relay.config import PolicySource
from relay.errors import ConfigFaults, Outdated, StoreFault, UserError
from relay.files import MAX_KEY_FILE, content_of, is_open_for_writing
from relay.memory.fence import shell_word
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.filters import FilterTerms
from relay.nostr.keys import read_key_file
from relay.nostr.nip42 import OwnAddresses
from relay.observe import Metrics, Readiness
from relay.read.fanout import Fanout
from relay.read.linked_rows import LinkedRows
from relay.read.negentropy import Negentropy
from relay.read.outbox import FlushQueue
from relay.read.query import QueryRunner
from relay.read.search_indexer import SearchIndexer
from relay.read.stored import StoredRows
from relay.read.versions import VersionReader
from relay.server.day_file import FILE as DAY
from relay.server.day_file import kept_day
from relay.server.history import HistoryRequests
from relay.server.nip86 import UsedAuthorizations
from relay.server.receipts import Receipts
from relay.server.refusal_file import FILE as REFUSALS
from relay.server.refusal_file import kept_refusals
from relay.server.tls import usable
from relay.state import RelayState
from relay.storage.sqlite.copying import schema_of
from relay.storage.sqlite.minilm import MiniLM
from relay.storage.sqlite.opening import SCHEMA_VERSION, too_new
from relay.storage.sqlite.store import SqliteStore
from relay.storage.tokens import TokenMatcher
from relay.write.following import Following
from relay.write.ingest import Ingest
from relay.write.invitations import Invitations
from relay.write.key_rotation import signed_again
from relay.write.replay import rebuilt_groups
from relay.write.sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from policies.reload import Fingerprint
    from relay.config import Config, StorageConfig
    from relay.groups.group import Groups
    from relay.nostr.keys import SecretKey
    from relay.storage import ClientReads, Store
    from relay.storage.postgres.replica import ReplicaReader
    from relay.storage.postgres.store import PostgresStore

_log = logging.getLogger("rookery")

_WRITTEN_S: Final = 5.0
"""How long a start waits for policy files that are being written."""
_TRIES_WITH_LISTS: Final = 5
"""Then outdated lists are left: they may wait at another relay, which goes on writing."""
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Services:
    """What runs on one data folder. Satisfies `relay.server.services.ServerServices`."""

    folder: Path
    config: Config
    relay_key: SecretKey
    policy: policies.PolicySet
    """The policies as read at start; `state.policy` is the one in force."""
    policy_files: Fingerprint
    """Fingerprint from before the policy files were read, so that a change during startup is
    noticed."""
    pushed: PushedPolicies | None
    """None: the policies are those of the folder."""
    clock: Callable[[], int]
    terms: FilterTerms
    addresses: OwnAddresses
    metrics: Metrics
    readiness: Readiness
    store: Store
    state: RelayState
    linked_rows: LinkedRows
    fanout: Fanout
    plugins: Chain
    """Started by the first event that needs them, or by `start`."""
    ingest: Ingest
    indexer: SearchIndexer
    """Not started: only `serve` needs it."""
    invitations: Invitations
    queries: QueryRunner
    stored: StoredRows
    negentropy: Negentropy
    flush_queue: FlushQueue
    history: HistoryRequests
    receipts: Receipts
    used_calls: UsedAuthorizations
    following: Following | None
    """None: no other relay writes to the store."""
    set_back: asyncio.Event
    """Set when the store's history has changed: a restart must read everything again."""
    sweeps: Callable[[], bool]
    """Whether this relay, of all on the store, sweeps."""

    @property
    def relay_pubkey(self) -> str:
        return self.relay_key.pubkey

    @property
    def policy_folder(self) -> Path:
        """Folder of the policies in force."""
        return self.folder / "policies" if self.pushed is None else self.pushed.folder

    def sweeper(self, ahead_s: int = 0) -> Sweeper:
        """A new one, not started. Several may run at the same time. `ahead_s`: how far its clock is
        ahead, for a dry run."""
        return Sweeper(
            self.store,
            self.state,
            self.ingest,
            clock=lambda: self.clock() + ahead_s,
            metrics=self.metrics,
            damaged=self._damaged,
            is_due=self.sweeps,
        )

    def _damaged(self, text: str) -> None:
        if text:
            self.readiness.note("rows", text)
        else:
            self.readiness.clear("rows")


@asynccontextmanager
async def run_services(folder: Path, config: Config) -> AsyncIterator[Services]:
    """The services of a folder; `ingest` runs inside. The caller holds the folder's lock.

    Raises UserError, ConfigFaults or StoreFault when the folder cannot be used.
    """
    relay_key, pushed = _relay_key(folder), None
    if config.storage.policies is PolicySource.FOLDER:
        await _until_written(folder / "policies")
        policy_files, policy = _rules(folder / "policies", relay_key)
    terms = FilterTerms(
        config.storage.index_tags, config.storage.prefix_d_kinds, SqliteStore.features.search
    )
    metrics, readiness = Metrics(), Readiness()
    addresses = OwnAddresses(config.relay.url)
    shared: PostgresStore | None = None
    reads: ClientReads | None = None
    set_back = asyncio.Event()
    ending = AsyncExitStack()
    if config.storage.url is None:
        store: Store = await _opened_file(folder, config, terms, metrics)
    else:
        store = database = await _opened_database(folder, config, terms, relay_key)
        shared, set_back = database if config.storage.shared else None, database.set_back
        ending.callback(database.hurry)
        if database.reader is not None:
            reads = database.reader
            _watch_replica(metrics, database.reader)
        if config.storage.policies is PolicySource.DATABASE:
            pushed = PushedPolicies(folder, database.policies)
    metrics.watch("disk_free_bytes", "Free space for the store.", lambda: disk_usage(folder).free)
    matcher = TokenMatcher()
    verifiers, comparers = ThreadPoolExecutor(2, "verify"), ThreadPoolExecutor(1, "negentropy")
    try:
        if pushed is not None:
            policy_files, policy = await _pushed_rules(pushed, relay_key, metrics)
        groups = await _groups(store, shared, relay_key, policy)
        state = RelayState(policy, groups, await store.management())
        linked_rows = LinkedRows(store, state, unix_now)
        flush_queue = FlushQueue(asyncio.get_running_loop().call_soon, metrics.traffic)
        fanout = Fanout(state, matcher, linked_rows, flush_queue)
        plugins = _plugins(policy, metrics, readiness)
        ingest = Ingest(
            store,
            state,
            relay_key,
            fanout,
            clock=unix_now,
            verifiers=verifiers,
            metrics=metrics,
            is_here=addresses.has,
            plugins=plugins,
            # A larger one, of an import or a sync, would close the connection of each reader.
            max_event=max(config.limits.max_message_length, config.limits.outbox_bytes // 2),
        )
        following = None
        if shared is not None:
            following = Following(shared, state, ingest, relay_key.pubkey)
            metrics.watch(
                "follow_lag_seconds",
                "Time since all that other relays had committed was taken over.",
                shared.lag_s,
            )
            metrics.watch("store_seq", "Newest seq that was taken over.", shared.committed)
        indexer = SearchIndexer(store, state)
        invitations = Invitations.of(state, ingest, relay_key, unix_now)
        queries = QueryRunner(
            reads or store,
            state,
            fanout,
            config.limits,
            clock=unix_now,
            metrics=metrics,
            index=indexer,
            invites=invitations,
        )
        negentropy = Negentropy(
            reads or store, state, config.limits, clock=unix_now, workers=comparers
        )
        metrics.watch(
            "events_waiting", "Events not yet committed.", lambda: ingest.waiting, "queue"
        )
        metrics.watch(
            "undelivered_batches",
            "Batches of rows that live subscriptions do not have yet.",
            lambda: ingest.undelivered,
        )
        metrics.watch("search_lag_rows", "Rows not yet in the search index.", lambda: indexer.lag)
        metrics.watch(
            "negentropy_records", "Records in open negentropy snapshots.", lambda: negentropy.held
        )
        metrics.watch(
            "erasure_pending_seconds",
            "Age of the oldest deletion whose bytes may still be in a file.",
            store.unerased_s,
        )
        used_calls = UsedAuthorizations(
            unix_now(),
            folder / "used_calls.json",
            None if shared is None else shared.use_call,
        )
        refused = kept_refusals(folder / REFUSALS, metrics.refusals)
        day = kept_day(folder / DAY, metrics.day, lambda: metrics.sample(unix_now()))
        async with refused, day, plugins, queries, ingest, following or nullcontext(), ending:
            yield Services(
                folder=folder,
                config=config,
                relay_key=relay_key,
                policy=policy,
                policy_files=policy_files,
                pushed=pushed,
                clock=unix_now,
                terms=terms,
                addresses=addresses,
                metrics=metrics,
                readiness=readiness,
                store=store,
                state=state,
                linked_rows=linked_rows,
                fanout=fanout,
                plugins=plugins,
                ingest=ingest,
                indexer=indexer,
                invitations=invitations,
                queries=queries,
                stored=StoredRows(queries),
                negentropy=negentropy,
                flush_queue=flush_queue,
                history=HistoryRequests(
                    state,
                    VersionReader(store, state, linked_rows, unix_now),
                    unix_now,
                    used_calls,
                ),
                receipts=Receipts(state, store, relay_key, unix_now, used_calls),
                used_calls=used_calls,
                following=following,
                set_back=set_back,
                sweeps=(lambda: True) if shared is None else shared.is_first,
            )
    finally:
        verifiers.shutdown()
        comparers.shutdown()
        await store.close()
        matcher.close()


async def _groups(
    store: Store, shared: PostgresStore | None, key: SecretKey, policy: policies.PolicySet
) -> Groups:
    """The groups by the log up to `committed`, signed by this key. Raises StoreFault."""
    tries = 0
    while True:
        groups = await rebuilt_groups(store, key.pubkey, store.committed())
        try:
            return await signed_again(
                store,
                groups,
                key,
                policy.keep,
                policy.groups.compat,
                unix_now(),
                check=store.check_groups if isinstance(store, SqliteStore) else None,
                leaves_lists=tries >= _TRIES_WITH_LISTS,
            )
        except Outdated:  # other relays have written since
            if shared is None:
                raise
            shared.follow_from(await store.head())
            tries += 1


async def _opened_database(
    folder: Path, config: Config, terms: FilterTerms, relay_key: SecretKey
) -> PostgresStore:
    check_driver()
    _refuse_second_store(folder)
    from relay.storage.postgres.store import PostgresStore

    url, password = config.storage.url, password_in(config.storage.password_file)
    assert url is not None
    await _check_whole(url, password)
    return await PostgresStore.open(
        url,
        terms,
        password=password,
        is_shared=config.storage.shared,
        replica=config.storage.replica,
        relay=relay_key.pubkey,
    )


async def _opened_file(
    folder: Path, config: Config, terms: FilterTerms, metrics: Metrics
) -> SqliteStore:
    refuse_store_fault(folder)
    await asyncio.to_thread(_back_up_before_upgrade, folder)
    store = await SqliteStore.open(
        folder / "rookery.db",
        terms,
        synchronous=config.storage.synchronous.value,
        embedder=await asyncio.to_thread(MiniLM) if config.search.meaning else None,
    )
    metrics.watch("search_vectors", "Texts that can be compared by meaning.", lambda: store.vectors)
    _watch_files(metrics, folder, store)
    return store


def _refuse_second_store(folder: Path) -> None:
    """Raises UserError."""
    second = second_store(folder)
    if second is None:
        return
    left = unended(folder)
    shown = second if left is None else left
    raise UserError(f"{shown.text}: {shown.cure}")


async def _check_whole(url: str, password: str | None) -> None:
    """Raises StoreFault for a database whose events were moved away, or have not all been moved to
    it."""
    from relay.storage.postgres.moving import PostgresSide

    side = await PostgresSide.open(url, password)
    try:
        why = await side.why_closed()
    finally:
        await side.close()
    if why:
        raise StoreFault(why)


def check_start(folder: Path, config: Config, *, ends_move: bool) -> None:
    """Read what a start reads before it changes anything. `ends_move`: it does what is left of a
    move before that.

    Raises UserError, ConfigFaults or StoreFault when it would fail. The lock is not needed.
    """
    relay_key = _relay_key(folder)
    store = folder / "rookery.db"
    if config.storage.url is not None:
        check_driver()
        if not ends_move:
            _refuse_second_store(folder)
        password = password_in(config.storage.password_file)
        if config.storage.shared:
            from relay.storage.postgres.opening import check_shared

            asyncio.run(check_shared(config.storage.url, password, relay_key.pubkey))
    else:
        refuse_store_fault(folder)
    if config.storage.policies is PolicySource.FOLDER:
        _rules(folder / "policies", relay_key)
    else:
        asyncio.run(_check_pushed(config.storage, relay_key))
    schema = schema_of(store)
    if schema is not None and schema > SCHEMA_VERSION:
        raise too_new(store, schema)
    server = config.server
    if server.tls_cert is not None and server.tls_key is not None:
        usable(server.tls_cert, server.tls_key)


async def _until_written(folder: Path) -> None:
    """Wait while a program has a policy file open for writing, at most `_WRITTEN_S`: a program may
    hold one open for hours, and the relay must start."""
    end = asyncio.get_running_loop().time() + _WRITTEN_S
    while being_written := [*filter(is_open_for_writing, _paths(fingerprint(folder)))]:
        if asyncio.get_running_loop().time() >= end:
            _log.warning(
                "policies: %s is open for writing and may be half written; it is read again when it"
                " is closed",
                being_written[0],
            )
            return
        await asyncio.sleep(_LOOK_S)


def _paths(files: Fingerprint) -> list[Path]:
    return [Path(path) for path, *_ in files]


def _rules(folder: Path, key: SecretKey) -> tuple[Fingerprint, policies.PolicySet]:
    files = fingerprint(folder)
    return files, policies.load(folder, MEMORY_SYSTEMS, key.pubkey)


async def _pushed_rules(
    pushed: PushedPolicies, key: SecretKey, metrics: Metrics
) -> tuple[Fingerprint, policies.PolicySet]:
    folder = await pushed.first()
    files, policy = await asyncio.to_thread(_rules_of_version, folder, key)
    pushed.took(folder)
    metrics.watch(
        "policy_version",
        "Version of the policies in force, of those in the database.",
        lambda: pushed.in_force,
    )
    return files, policy


def _rules_of_version(folder: Path, key: SecretKey) -> tuple[Fingerprint, policies.PolicySet]:
    files, policy = _rules(folder, key)
    faults = plugin_faults(policy)
    if faults:
        raise ConfigFaults(faults)
    return files, policy


async def _check_pushed(storage: StorageConfig, key: SecretKey) -> None:
    """Raises UserError, ConfigFaults, StoreFault."""
    from relay.storage.postgres.policies import opened_policies

    assert storage.url is not None
    async with opened_policies(storage.url, password_in(storage.password_file)) as versions:
        found = await versions.read()
    if found is None:
        raise UserError(NONE_YET)
    version, files = found
    with TemporaryDirectory() as parent:
        folder = Path(parent) / f"version {version.number}"
        write_folder(folder, files)
        _rules_of_version(folder, key)


def _back_up_before_upgrade(folder: Path) -> None:
    now = unix_now()
    for dropped in drop_safety_copies(folder, now):
        _log.info("%s is removed: it is a week old", dropped)
    made = back_up_before_upgrade(folder, now)
    if made is not None:
        _log.warning(
            "the store is upgraded; %s is a backup from before, which keeps events that are deleted"
            " later: a start after a week removes it",
            made,
        )


def _watch_replica(metrics: Metrics, reader: ReplicaReader) -> None:
    metrics.watch(
        "replica_reads_total",
        "Reads of clients, by the server that answered.",
        lambda: reader.reads,
        "from",
    )
    metrics.watch(
        "replica_wait_seconds_total",
        "Time until the replica had what this relay has, or did not have it.",
        lambda: reader.waited_s,
    )
    metrics.watch(
        "replica_lag_rows", "What the replica did not have when last asked.", reader.lag_rows
    )


def _watch_files(metrics: Metrics, folder: Path, store: SqliteStore) -> None:
    def sizes() -> Mapping[str, float]:
        found: dict[str, float] = {}
        for name in ("rookery.db", "rookery.db-wal", "search.db", "search.db-wal"):
            with suppress(FileNotFoundError):
                found[name] = (folder / name).stat().st_size
        return found

    def last_backup() -> float:
        try:
            return (folder / LAST_BACKUP).stat().st_mtime
        except OSError:
            return 0

    metrics.watch("file_bytes", "Size of a file of the store.", sizes, "file")
    metrics.watch("last_backup_timestamp_seconds", "When a backup was made.", last_backup)
    upkeep = store.upkeep
    metrics.watch(
        "checkpoints_total",
        "Truncations of the WAL; busy: another program read the store.",
        lambda: {"truncated": upkeep.truncated, "busy": upkeep.busy},
        "result",
    )
    metrics.watch(
        "checkpoint_held_seconds_total",
        "Seconds for which reads and writes were held by truncations.",
        lambda: upkeep.held_s,
    )
    metrics.watch(
        "vacuumed_pages_total",
        "Free pages given back to the file system.",
        lambda: upkeep.vacuumed,
    )


def _plugins(policy: policies.PolicySet, metrics: Metrics, readiness: Readiness) -> Chain:
    def changed(problems: Sequence[str]) -> None:
        if problems:
            readiness.note("plug-ins", "; ".join(problems))
        else:
            readiness.clear("plug-ins")

    plugins = Chain(policy.plugins, changed=changed, took=metrics.plugin_took)
    metrics.watch("plugins_down", "Plug-ins that do not answer.", lambda: len(plugins.problems))
    metrics.watch(
        "plugin_failures_total", "Plug-in failures since start.", lambda: plugins.failures
    )
    return plugins


def _relay_key(folder: Path) -> SecretKey:
    path = folder / "relay.key"
    try:
        text = content_of(path, MAX_KEY_FILE).decode("ascii")
    except FileNotFoundError:
        raise UserError(
            f"{path} is missing: name the relay's data folder with --data DIR; a new one is made by"
            f" `rookery init {shell_word(folder)} --owner KEY`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError(f"{path} cannot be read: {reason}") from error
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        _log.warning("%s is readable by other users: run chmod 600 %s", path, shell_word(path))
    return read_key_file(text, str(path))

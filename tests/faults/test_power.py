"""A power failure at any moment: what was answered is there, whole, and group state with it.

A scripted run is recorded below SQLite (`vfs`); at points of the record the worst files are made
(`power`), and a relay is started on them. What it finds must be, row by row, the state after one of
the commits: not before the last one of which somebody was told.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest

from relay.errors import StoreFault
from relay.nostr.filters import FilterTerms, filter_from
from relay.read.search_indexer import SearchIndexer
from relay.storage import PageQuery
from relay.storage.sqlite import checkpoints, opening
from relay.storage.sqlite.connections import connection
from relay.storage.sqlite.store import SqliteStore
from relay.storage.sqlite.writer import Writer
from tests.contract.writing import EVERYTHING, MAX, TERMS, asked
from tests.effort import tries
from tests.faults.contents import Contents, contents, contradictions, raws_in
from tests.faults.power import Loss, Platter
from tests.faults.recording import Recorded, Run, Witness
from tests.faults.script import Script, policy
from tests.faults.vfs import Call, is_available, watched
from tests.harness.relay_in_process import Home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from policies import PolicySet
    from relay.lifecycle.rows import Found, Lookups, WritePlan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="SQLite is part of Python's module"),
]

STEPS: Final = tries(200, 80)
SEEDS: Final = tries(8, 1)
IMAGES: Final = tries(300, 150, 60)
_LATE_TEXTS: Final = 200


class AnswersBeforeTheCommit(Recorded):
    """Mutant: `append` is over once the plan is made."""

    tasks: Sequence[asyncio.Task[int]] = ()

    async def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        loop, decided, answered = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def deciding(found: Found) -> WritePlan:
            plan = decide(found)
            loop.call_soon_threadsafe(decided.set)
            answered.wait(5)
            return plan

        work = asyncio.create_task(super().append(lookups, deciding))
        waiting = asyncio.create_task(decided.wait())
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED)
        loop.call_later(0.005, answered.set)
        waiting.cancel()
        self.tasks = [*self.tasks, work]
        return self._writer.head

    async def close(self) -> None:
        await asyncio.gather(*self.tasks)
        await super().close()


async def recorded(
    folder: Path,
    seed: int,
    rules: PolicySet,
    *,
    kind: type[Recorded] = Recorded,
    synchronous: str = "FULL",
    keeps_syncs: bool = True,
) -> Run:
    with watched(folder) as disk:
        disk.records, disk.keeps_syncs = True, keeps_syncs
        run = Run(disk)
        store = await kind.open(folder / "rookery.db", TERMS, synchronous=synchronous)
        assert isinstance(store, Recorded)
        store.run, store.path = run, folder / "rookery.db"
        home = Witness(store, rules)
        home.run = run
        script = Script(seed)
        async with home, SearchIndexer(store, home.state):
            await script.begin(home)
            for _ in range(STEPS):
                await script.step(home)
                if kind is Recorded:
                    number = len(run.states) - 1
                    run.groups[number] = home.groups
                    run.tell(f"commit {number}")
        await store.close()
        run.steps, disk.records = disk.steps, False
    return run


async def faults_of(run: Run, rules: PolicySet, images: int, seed: int) -> list[str]:
    """What is wrong after a power failure at so many points."""
    chance = Random(seed)
    # At a sync, before and after it, and anywhere.
    syncs = [number for number, step in enumerate(run.steps) if step.call is Call.SYNC] or [0]
    end = len(run.steps)
    points = sorted(
        chance.choice([chance.choice(syncs) + chance.randint(0, 1), chance.randrange(end)])
        for _ in range(images)
    )
    first_with = run.first_with
    platter, promised, found = Platter(), 0, []
    at = 0
    for point in points:
        for step in run.steps[at:point]:
            platter.take(step)
            if step.call is Call.ACK:
                number = step.path.removeprefix("commit ")
                promised = max(
                    promised, first_with.get(step.path, 0) if number == step.path else int(number)
                )
        at = point
        loss = chance.choice(list(Loss))
        files = platter.left(loss, chance)
        wrong = await _wrong_with(files, run, promised, rules)
        if wrong is not None:
            found.append(f"seed {seed}, step {point} of {len(run.steps)}, {loss.value}: {wrong}")
    return found


async def _wrong_with(
    files: Mapping[str, bytes], run: Run, promised: int, rules: PolicySet
) -> str | None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for name, content in files.items():
            (folder / Path(name).name).write_bytes(content)
        path = folder / "rookery.db"
        try:
            store = await SqliteStore.open(path, TERMS)
        except StoreFault as fault:
            return f"not opened: {fault}"
        try:
            async with Home(store, rules) as home:
                now = contents(path)
                state = _number_of(now, run.states)
                if state is None:
                    return (
                        f"no state that was, promised {promised}: {_difference(now, run, promised)}"
                    )
                if state < promised:
                    return f"it is as after commit {state}, {promised} was promised"
                if state in run.groups and home.groups != run.groups[state]:
                    return "the groups are others than they were in memory"
                return (
                    await _wrong_in_reads(store, home, now)
                    or _deleted_texts(folder, run.states[: state + 1])
                    or "; ".join(contradictions(path))
                    or None
                )
        except (StoreFault, sqlite3.Error) as fault:
            return f"not read: {fault}"
        finally:
            await store.close()


def _number_of(now: Contents, states: Sequence[Contents]) -> int | None:
    """The last of these states that this is. A table without rows may be missing."""
    rows = {table: of for table, of in now.items() if of}
    for number in range(len(states) - 1, -1, -1):
        if rows == {table: of for table, of in states[number].items() if of}:
            return number
    return None


def _difference(now: Contents, run: Run, promised: int) -> str:
    was = run.states[promised]
    return f"after commit {promised} " + ", ".join(
        f"{table}: {len(was.get(table, frozenset()) - rows)} missing,"
        f" {len(rows - was.get(table, frozenset()))} more"
        for table, rows in now.items()
    )


async def _wrong_in_reads(store: SqliteStore, home: Home, now: Contents) -> str | None:
    """By tag, where the table of tags may lack rows, and by text."""
    raws = set(raws_in(now).values())
    for tag, value in (("t", "tea"), ("h", "tea"), ("h", "food")):
        wanted = {raw for raw in raws if f'["{tag}","{value}"'.encode() in raw}
        filter_ = asked(**{f"tag_{tag}": [value]})
        page = await store.page(PageQuery(filter_, EVERYTHING, 10_000, MAX, now=0, size=10_000))
        if set(page.raws) != wanted:
            return f"#{tag} {value}: {len(page.raws)} of {len(wanted)} rows"
    # Texts of expired rows leave the index before the rows are swept.
    said = {
        row[0]: _text_of(row[-1])
        for row in now.get("events", ())
        if row[5] in (1, 9) and b'"expiration"' not in row[-1]
    }
    async with SearchIndexer(store, home.state) as indexer:
        await indexer.reached(store.committed())
        for seq in sorted(said)[-2:]:
            by_text = filter_from({"search": said[seq].decode()}, FilterTerms(search=True))
            if await store.search(by_text, EVERYTHING, limit=5, upto=MAX, now=0) != [seq]:
                return f"a search for {said[seq].decode()} does not find it"
    return None


def _text_of(raw: bytes) -> bytes:
    """The word that no other event has."""
    return raw[raw.index(b'"content":"') + 11 :].split(b" ")[0].split(b'"')[0]


def _deleted_texts(folder: Path, states: Sequence[Contents]) -> str | None:
    """Bytes of what was deleted, in the store's file or its log."""
    there = set(raws_in(states[-1]))
    gone = {
        _text_of(raw)
        for state in states[-_LATE_TEXTS:]
        for id_, raw in raws_in(state).items()
        if id_ not in there and b'"content":"word' in raw
    }
    for ending in ("", "-wal"):
        file = folder / f"rookery.db{ending}"
        content = file.read_bytes() if file.exists() else b""
        for text in gone:
            if text in content:
                return f"{text.decode()} was deleted, and is in {file.name}"
    return None


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs are truncated some hundred times in a run."""
    monkeypatch.setattr(checkpoints, "_GATHER_S", 0.01)
    monkeypatch.setattr(checkpoints, "_PAUSE_S", 0.02)


@pytest.fixture(scope="module")
def rules() -> PolicySet:
    return policy()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_was_answered_survives_a_power_failure(
    tmp_path: Path, rules: PolicySet, seed: int
) -> None:
    run = await recorded(tmp_path, seed, rules)
    assert len(run.states) > STEPS / 2
    assert await faults_of(run, rules, IMAGES, seed) == []


def _without_sync(_: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"keeps_syncs": False}


def _synchronous_normal(_: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"synchronous": "NORMAL"}


def _synchronous_off(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(opening, "connection", _Changed({"= FULL": "= OFF"}))
    return {}


def _answered_before_the_commit(_: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"kind": AnswersBeforeTheCommit}


def _two_transactions(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Totals are committed apart from the rows."""
    put = Writer._put_sizes

    def apart(writer: Writer, sizes: Any) -> None:
        writer._db.execute("COMMIT")
        writer._db.execute("BEGIN IMMEDIATE")
        put(writer, sizes)

    patch.setattr(Writer, "_put_sizes", apart)
    return {}


@pytest.mark.mutant
@pytest.mark.parametrize(
    "mutant",
    [
        _without_sync,
        _synchronous_normal,
        _synchronous_off,
        _answered_before_the_commit,
        _two_transactions,
    ],
    ids=lambda mutant: mutant.__name__.strip("_"),
)
async def test_a_relay_that_syncs_too_little_is_found(
    tmp_path: Path,
    rules: PolicySet,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], dict[str, Any]],
) -> None:
    run = await recorded(tmp_path, 1, rules, **mutant(monkeypatch))
    monkeypatch.undo()
    assert await faults_of(run, rules, 60, 1) != []


@pytest.mark.mutant
async def test_a_start_that_keeps_the_log_is_found(
    tmp_path: Path, rules: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else a slow machine has the time to bring the log into the file.
    monkeypatch.setattr(checkpoints, "_SETTLE_S", 3600.0)
    monkeypatch.setattr(checkpoints, "_GATHER_S", 3600.0)
    run = await recorded(tmp_path, 1, rules)
    kept = _Changed({"PRAGMA wal_checkpoint(TRUNCATE)": "SELECT 0"})
    monkeypatch.setattr(opening, "connection", kept)
    monkeypatch.setattr(opening, "check_log", lambda _: None)  # it deletes a log when it closes it
    found = await faults_of(run, rules, 60, 1)
    assert any("was deleted, and is in" in fault for fault in found), found


class _Changed:
    """`connection`, with other texts of some statements."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def __call__(self, path: Path) -> sqlite3.Connection:
        texts = self._texts

        class Changed(sqlite3.Connection):
            def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
                for text, other in texts.items():
                    sql = sql.replace(text, other)
                return super().execute(sql, values)

        return connection(path, Changed)

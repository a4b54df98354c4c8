"""A crash at every write of what happens seldom: a migration, another relay.key, a sweep; and a
clock that jumps.

Each is recorded below SQLite. Whatever a power failure leaves of it, the next start ends where one
that nothing has disturbed ends.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from enum import Enum
from pathlib import Path
from random import Random
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest

from relay.errors import StoreFault
from relay.files import sync
from relay.groups import notices
from relay.groups.notices import notices_for
from relay.storage.sqlite import compacting, opening
from relay.storage.sqlite.connections import connection
from relay.storage.sqlite.store import SqliteStore
from tests import cast
from tests.contract.test_sqlite_files import of_version_1
from tests.contract.writing import TERMS
from tests.effort import tries
from tests.faults.contents import Contents, contents, contradictions
from tests.faults.power import Loss, Platter
from tests.faults.recording import Recorded, Run, Witness
from tests.faults.script import Script, policy
from tests.faults.vfs import is_available, watched
from tests.harness.relay_in_process import Home

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from policies import PolicySet
    from tests.faults.vfs import Step

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="SQLite is part of Python's module"),
]

SEEDS: Final = tries(6, 1)
IMAGES: Final = tries(150, 150, 50)


class Stage(Enum):
    MIGRATION = "migration"
    ROTATION = "another relay.key"
    SWEEP = "sweep"


class Renewed(Home):
    relay = cast.person("another relay")


@pytest.fixture(scope="module")
def rules() -> PolicySet:
    return policy()


async def prepared(folder: Path, stage: Stage, rules: PolicySet) -> int:
    """What is there before; the time."""
    path = folder / "rookery.db"
    if stage is Stage.MIGRATION:
        of_version_1(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.executescript("DELETE FROM groups; DELETE FROM members")  # it has no records
        return 2000
    store = await SqliteStore.open(path, TERMS)
    async with Home(store, rules) as home:
        script = Script(8)
        await script.begin(home)
        for _ in range(60):
            await script.step(home)
        for index in range(30):
            at = str(home.now + 5)
            await home.take(home.made(cast.owner, 1, ["expiration", at], content=f"word{index}e"))
        now = home.now + 1000
    await store.close()
    return now


async def lived(folder: Path, stage: Stage, rules: PolicySet, now: int) -> Contents:
    """The stage from its begin to its end; what is there after it."""
    store = await SqliteStore.open(folder / "rookery.db", TERMS)
    home = (Renewed if stage is Stage.ROTATION else Home)(store, rules)
    home.now = now
    try:
        async with home:
            if stage is Stage.SWEEP:
                home.sweep._rules = None
                await home.sweep.once()
    finally:
        await store.close()
    found = contents(folder / "rookery.db")
    assert contradictions(folder / "rookery.db") == []
    return found


def without_seq(found: Contents) -> dict[str, object]:
    """Without what differs whenever it is done: numbers, hashes by a random key, signatures."""
    rows = {(*row[1:9], *row[10:13]) for row in found["events"]}
    return {**found, "events": rows}


async def faults_of(
    steps: list[Step],
    before: Mapping[str, bytes],
    stage: Stage,
    rules: PolicySet,
    now: int,
    wanted: Contents,
    seed: int,
) -> list[str]:
    chance, platter, found = Random(seed), Platter(before), []
    for number, step in enumerate(steps):
        platter.take(step)
        if chance.random() > IMAGES / len(steps):
            continue
        loss = chance.choice(list(Loss))
        with TemporaryDirectory() as name:
            for path, content in platter.left(loss, chance).items():
                (Path(name) / Path(path).name).write_bytes(content)
            try:
                after = await lived(Path(name), stage, rules, now)
            except StoreFault as fault:
                found.append(f"step {number}, {loss.value}: {fault}")
                continue
            if without_seq(after) != without_seq(wanted):
                found.append(f"step {number} of {len(steps)}, {loss.value}: another end")
    return found


async def recorded_stage(
    tmp_path: Path, stage: Stage, rules: PolicySet
) -> tuple[list[Step], Mapping[str, bytes], int, Contents]:
    folder = tmp_path / "data"
    folder.mkdir()
    now = await prepared(folder, stage, rules)
    before = {str(file): file.read_bytes() for file in folder.iterdir()}
    was = contents(folder / "rookery.db")
    with watched(folder) as disk:
        disk.records = True
        wanted = await lived(folder, stage, rules, now)
    assert wanted != was
    return disk.steps, before, now, wanted


@pytest.mark.timeout(900)
@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.name.lower())
async def test_what_is_cut_short_is_done_by_the_next_start(
    tmp_path: Path, rules: PolicySet, stage: Stage
) -> None:
    steps, before, now, wanted = await recorded_stage(tmp_path, stage, rules)
    for seed in range(SEEDS):
        assert await faults_of(steps, before, stage, rules, now, wanted, seed) == []


@pytest.mark.mutant
async def test_a_migration_in_many_transactions_is_found(
    tmp_path: Path, rules: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_pieces(db: object, script: str, version: int) -> None:
        run(db, script.replace(";", "; COMMIT; BEGIN;"), version)  # type: ignore[arg-type]

    run = opening._run
    monkeypatch.setattr(opening, "_run", in_pieces)
    steps, before, now, wanted = await recorded_stage(tmp_path, Stage.MIGRATION, rules)
    monkeypatch.undo()
    for seed in range(3):
        if await faults_of(steps, before, Stage.MIGRATION, rules, now, wanted, seed):
            return
    pytest.fail("a migration that is half done is not found")


# -- clocks ----------------------------------------------------------------------------------------


async def jumped(folder: Path, rules: PolicySet, seed: int) -> list[str]:
    """A scripted run whose clock jumps by an hour, mostly back."""
    chance, found, path = Random(seed), list[str](), folder / "rookery.db"
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 -- nobody waits for the loop of a test
    with watched(folder) as disk:
        store = await Recorded.open(path, TERMS)
        assert isinstance(store, Recorded)
        store.run, store.path = Run(disk), path
        home = Witness(store, rules)
        home.run = store.run
        async with home:
            script = Script(seed)
            await script.begin(home)
            for _ in range(tries(150, 60)):
                if chance.random() < 0.2:
                    home.now += chance.choice([-3600, -3600, -60, 3600])
                await script.step(home)
            shown = {(row.kind, row.d): row.tags for row in await home.log()}
            for group in home.groups.by_id.values():
                for draft in notices_for(None, group, 0)[1]:
                    if shown.get((draft.kind, group.id)) != [list(tag) for tag in draft.tags]:
                        found.append(f"{draft.kind} of {group.id} says something older")
            if await home.rebuilt() != home.groups:
                found.append("the log says other groups")
        lost = {each.id for each in store.run.answered if each.kind != 62}
        if lost - store.run.first_with.keys():
            found.append("events were answered and not stored")
        await store.close()
    return found


@pytest.mark.parametrize("seed", range(tries(30, 4, 2)))
async def test_a_clock_that_jumps_loses_nothing(
    tmp_path: Path, rules: PolicySet, seed: int
) -> None:
    assert await jumped(tmp_path, rules, seed) == []


@pytest.mark.mutant
async def test_notices_that_follow_the_clock_are_found(
    tmp_path: Path, rules: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    dated = notices._dated

    def by_the_clock(found: Any, group: Any, now: int) -> Any:
        after, drafts = dated(found, group, now)
        return after, tuple(replace(draft, created_at=now) for draft in drafts)

    monkeypatch.setattr(notices, "_dated", by_the_clock)
    for seed in range(4):
        if await jumped(tmp_path / f"{seed}", rules, seed):
            return
    pytest.fail("notices that follow the clock are not found")


# -- compaction ------------------------------------------------------------------------------------


async def left_by(
    folder: Path, at: Path, compaction: Callable[[Path], None], patch: pytest.MonkeyPatch
) -> list[Path]:
    """Copies of the folder as a kill leaves it at each moment of the compaction, with the end."""
    left: list[Path] = []

    def killed_here(*_: object) -> None:
        left.append(at / str(len(left)))
        copytree(folder, left[-1])

    def watched_connection(path: Path) -> sqlite3.Connection:
        db = connection(path)
        db.set_progress_handler(killed_here, 200)
        return db

    def noted(path: Path) -> None:
        sync(path)
        killed_here()

    patch.setattr(compacting, "connection", watched_connection)
    patch.setattr(compacting, "sync", noted)
    compaction(folder / "rookery.db")
    killed_here()
    patch.undo()
    return left


async def differing(left: Sequence[Path], wanted: Contents) -> list[str]:
    """Those that do not hold what was there, or not after the next compaction."""
    found = []
    for each in left:
        try:
            if contents(each / "rookery.db") != wanted:
                raise StoreFault("other contents")
            compacting.compact(each / "rookery.db")
            assert contents(each / "rookery.db") == wanted
            assert not [*each.glob("*.compacting")]
        except (StoreFault, sqlite3.Error) as fault:
            found.append(f"{each.name}: {fault}")
    return found


async def test_a_compaction_that_is_killed_anywhere_changes_nothing(
    tmp_path: Path, rules: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    await prepared(folder, Stage.SWEEP, rules)
    wanted = contents(folder / "rookery.db")
    left = await left_by(folder, tmp_path / "left", compacting.compact, monkeypatch)
    assert len(left) > 5
    assert any([*each.glob("*.compacting")] for each in left)
    assert await differing(left, wanted) == []


@pytest.mark.mutant
async def test_a_compaction_that_writes_over_the_file_is_found(
    tmp_path: Path, rules: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(path: Path) -> None:
        watched_by: Callable[[Path], sqlite3.Connection] = vars(compacting)["connection"]
        copy = compacting.unfinished(path)
        path.rename(copy)
        with closing(watched_by(copy)) as db:
            db.execute("VACUUM INTO ?", (str(path),))
        copy.unlink()

    folder = tmp_path / "data"
    folder.mkdir()
    await prepared(folder, Stage.SWEEP, rules)
    wanted = contents(folder / "rookery.db")
    left = await left_by(folder, tmp_path / "left", careless, monkeypatch)
    assert await differing(left, wanted)

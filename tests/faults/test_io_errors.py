"""Calls of SQLite that fail: each one in turn, and every n-th.

Whoever wrote gets `error:` or a true OK, whoever reads gets an error or every row, nothing else is
raised, and when the disk is well again the relay goes on: with what was answered, and nothing else.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum, auto
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from relay.errors import StoreFault
from relay.read.search_indexer import SearchIndexer
from relay.storage import Page, PageQuery
from relay.storage.sqlite import checkpoints
from relay.storage.sqlite.store import SqliteStore
from relay.write.ingest import STORE_FAILED
from tests import cast
from tests.contract.writing import EVERYTHING, MAX, TERMS, asked
from tests.effort import tries
from tests.faults.contents import contents, contradictions, raws_in
from tests.faults.recording import Recorded, Run, Witness
from tests.faults.script import Script, policy
from tests.faults.vfs import FULL, Call, Disk, Fails, every, is_available, watched
from tests.harness.relay_in_process import Home

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from policies import PolicySet
    from relay.groups.group import Groups
    from relay.lifecycle.rows import Found, Lookups, WritePlan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="SQLite is part of Python's module"),
]

STEPS: Final = 30
ERROR: Final = f"error: {STORE_FAILED.text}"
CHANGES: Final = (Call.WRITE, Call.SYNC, Call.TRUNCATE)


class Start(Enum):
    SICK = auto()
    """The disk fails when the store is opened, too."""
    WELL = auto()


class Sick(Witness):
    """Notes what the steps of a script get to hear."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.errors = 0

    async def take(self, *events: Any, **more: Any) -> list[tuple[bool, str]]:
        answers = await super().take(*events, **more)
        self._heard(answers)
        return answers

    async def call(self, method: str, *params: object) -> tuple[bool, str]:
        answer = await super().call(method, *params)
        self._heard([answer])
        return answer

    def _heard(self, answers: list[tuple[bool, str]]) -> None:
        for _, text in answers:
            assert not text.startswith("error:") or text == ERROR, text
            self.errors += text == ERROR


async def opened(kind: type[Recorded], path: Path, disk: Disk) -> Recorded:
    """Once the disk is well, if it is not; a refusal names the file."""
    try:
        store = await kind.open(path, TERMS)
    except StoreFault as fault:
        if str(path.parent) not in str(fault):
            raise AssertionError("the refusal names no file") from fault
        disk.fails = None
        store = await kind.open(path, TERMS)
    assert isinstance(store, Recorded)
    return store


async def suffered(
    folder: Path,
    rules: PolicySet,
    fails: Fails,
    kind: type[Recorded] = Recorded,
    seed: int = 3,
    start: Start = Start.SICK,
) -> tuple[int, int]:
    """A scripted run on a disk of which calls fail; how many failed, and `error:` answers."""
    path = folder / "rookery.db"
    with watched(folder) as disk:
        disk.fails = fails if start is Start.SICK else None
        store = await opened(kind, path, disk)
        store.run = Run(disk)
        store.path = path
        try:
            groups, home = await _lived(store, Sick(store, rules), disk, fails, seed, start)
        finally:
            disk.fails = None
            await store.close()
    run = store.run
    lost = {event.id for event in run.answered if event.kind != 62} - run.first_with.keys()
    assert not lost, f"{len(lost)} events were answered and not stored"
    assert contents(path) == run.states[-1], "closed with other rows than were committed"
    assert contradictions(path) == []
    again = await SqliteStore.open(path, TERMS)
    async with Home(again, rules) as home_again:
        assert contents(path) == run.states[-1]
        assert home_again.groups == groups
    await again.close()
    return disk.failed, home.errors


async def _lived(
    store: Recorded,
    home: Sick,
    disk: Disk,
    fails: Fails,
    seed: int,
    start: Start,
) -> tuple[Groups, Sick]:
    home.run = store.run
    try:
        await home.__aenter__()
    except StoreFault:
        disk.fails = None
        await home.__aenter__()
    try:
        async with SearchIndexer(store, home.state):
            script = Script(seed)
            await script.begin(home)
            if start is Start.WELL:
                disk.fails = fails
            for _ in range(STEPS):
                with suppress(StoreFault):  # of a sweep, which logs it
                    await script.step(home)
                await reads(store)
            disk.fails = None
            for _ in range(3):  # the first may find the transaction of before
                (answer,) = await home.take(home.made(cast.owner, 1, content="well"))
                if answer[0]:
                    break
            assert answer == (True, ""), answer
            assert await store.is_writable()
            await reads(store)
            assert await home.rebuilt() == home.groups, "groups in memory and by the log"
    finally:
        await home.__aexit__()
    return home.groups, home


async def reads(store: Recorded) -> None:
    """All rows, or a fault."""
    wanted = set(raws_in(store.run.states[-1]).values())
    found: set[bytes] = set()
    query = PageQuery(asked(), EVERYTHING, 10_000, MAX, now=0, size=7)
    try:
        while True:
            page = await store.page(query)
            found.update(page.raws)
            if page.next is None:
                break
            query = query.following(page)
    except StoreFault:
        return
    assert found == wanted, f"{len(found)} rows of {len(wanted)}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_GATHER_S", 0.01)
    monkeypatch.setattr(checkpoints, "_PAUSE_S", 0.02)


@pytest.fixture(scope="module")
def rules() -> PolicySet:
    return policy()


def once(n: int, *calls: Call, code: int | None = None) -> Fails:
    return every(n, *calls, code=code, times=1)


def places(everything: int, full: int, upto: int, seed: int) -> list[int]:
    """Numbers of calls, the first ones and any."""
    numbers = range(1, upto)
    number = min(tries(everything, full, full // 2), len(numbers))
    return sorted(Random(seed).sample(numbers, number))


@pytest.mark.parametrize("n", places(500, 12, 600, 1))
async def test_the_nth_change_fails(tmp_path: Path, rules: PolicySet, n: int) -> None:
    await suffered(tmp_path, rules, once(n, *CHANGES), seed=n)


@pytest.mark.parametrize("n", places(60, 6, 80, 2))
async def test_the_nth_sync_fails(tmp_path: Path, rules: PolicySet, n: int) -> None:
    await suffered(tmp_path, rules, once(n, Call.SYNC), seed=n)


@pytest.mark.parametrize("n", places(100, 6, 300, 3))
async def test_the_nth_read_fails(tmp_path: Path, rules: PolicySet, n: int) -> None:
    await suffered(tmp_path, rules, once(n, Call.READ), seed=n)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13, 21][:: tries(1, 1, 2)])
@pytest.mark.parametrize("calls", [CHANGES, (Call.SYNC,), (Call.READ,)], ids=str)
async def test_every_nth_call_fails(
    tmp_path: Path, rules: PolicySet, n: int, calls: tuple[Call, ...]
) -> None:
    failed, _ = await suffered(tmp_path, rules, every(n, *calls), seed=n, start=Start.WELL)
    assert failed


@pytest.mark.parametrize("n", places(60, 6, 400, 4))
async def test_the_disk_is_full_for_twenty_writes(tmp_path: Path, rules: PolicySet, n: int) -> None:
    """From the n-th write on; then there is room again."""
    calls = 0

    def full(call: Call, _: str) -> int:
        nonlocal calls
        calls += call is Call.WRITE
        return FULL if call is Call.WRITE and n <= calls < n + 20 else 0

    await suffered(tmp_path, rules, full, seed=n)


async def test_a_failing_disk_is_answered_with_error(tmp_path: Path, rules: PolicySet) -> None:
    """So that the tests above do not pass because nothing fails."""
    failed, errors = await suffered(tmp_path, rules, every(8, *CHANGES), start=Start.WELL)
    assert failed > 10
    assert errors > 5


# -- mutants ---------------------------------------------------------------------------------------


class IgnoresFaults(Recorded):
    async def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        try:
            return await super().append(lookups, decide)
        except StoreFault:
            return self._writer.head


class ReadsLess(Recorded):
    """A read that fails gives the rows so far."""

    async def page(self, query: PageQuery, *, is_long: bool = False) -> Page:
        try:
            return await super().page(query, is_long=is_long)
        except StoreFault:
            return Page((), None)


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("mutant", "calls"), [(IgnoresFaults, CHANGES), (ReadsLess, (Call.READ,))], ids=str
)
async def test_a_relay_that_ignores_errors_is_found(
    tmp_path: Path, rules: PolicySet, mutant: type[Recorded], calls: tuple[Call, ...]
) -> None:
    with pytest.raises(AssertionError):
        await suffered(tmp_path, rules, every(4, *calls), mutant, start=Start.WELL)

"""Bits that flip and files that are cut: refused, reported or harmless, never less in silence."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
from contextlib import closing
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from relay.errors import Invalid, StoreFault, UserError
from relay.nostr.event import event_from
from relay.nostr.filters import FilterTerms, filter_from
from relay.nostr.keys import is_signature, read_key_file
from relay.nostr.kinds import RELAY_SIGNED
from relay.read.search_indexer import SearchIndexer
from relay.storage import PageQuery
from relay.storage.sqlite import checkpoints, wal
from relay.storage.sqlite.compacting import compact
from relay.storage.sqlite.copying import schema_of
from relay.storage.sqlite.store import SqliteStore
from relay.storage.sqlite.verifying import snapshot
from relay.write.sweeper import Sweeper
from tests import cast
from tests.contract.writing import EVERYTHING, MAX, TERMS, asked
from tests.effort import tries
from tests.faults.script import Script, policy
from tests.harness.relay_in_process import Home

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from policies import PolicySet

SEEDS: Final = tries(500, 60)
_QUESTIONS: Final[list[dict[str, object]]] = [
    {},
    {"kinds": [1, 9]},
    {"kinds": [30078, 39000, 39001, 39002]},
    {"kinds": [0, 10002], "authors": [cast.owner.pubkey, cast.robot.pubkey]},
    {"tag_h": ["tea"]},
    {"tag_t": ["tea"]},
]

Answers = list[frozenset[bytes]]


@pytest.fixture(scope="module")
def rules() -> PolicySet:
    return policy()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, rules: PolicySet) -> tuple[Path, Answers]:
    """The same rows as a `kill -9` leaves them, most in the WAL, and closed. What is served."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "_GATHER_S", 3600.0)  # nothing truncates the WAL
        return asyncio.run(_made(tmp_path_factory, rules))


async def _made(tmp_path_factory: pytest.TempPathFactory, rules: PolicySet) -> tuple[Path, Answers]:
    folder = tmp_path_factory.mktemp("made")
    store = await SqliteStore.open(folder / "rookery.db", TERMS)
    copy = tmp_path_factory.mktemp("copy")
    async with (
        Home(store, rules) as home,
        SearchIndexer(store, home.state) as index,
    ):
        script = Script(5)
        await script.begin(home)
        for _ in range(120):
            await script.step(home)
        await index.reached(store.committed())
        answers = await answers_of(home)
        (copy / "killed").mkdir()
        for file in folder.iterdir():
            if not file.name.endswith("-shm"):
                shutil.copy(file, copy / "killed")
    await store.close()
    shutil.copytree(folder, copy / "closed")
    return copy, answers


async def answers_of(home: Home) -> Answers:
    """Raises StoreFault."""
    found = []
    for conditions in _QUESTIONS:
        query = PageQuery(asked(**conditions), EVERYTHING, 10_000, MAX, now=0, size=10_000)
        page = await home.store.page(query)
        found.append(frozenset(page.raws))
    async with SearchIndexer(home.store, home.state) as index:
        if not await index.reached(home.store.committed()):
            raise StoreFault("the index does not follow")
        wanted = filter_from({"search": "word"}, FilterTerms(search=True))
        await home.store.search(wanted, EVERYTHING, limit=500, upto=MAX, now=0)
    return found


def said(answer: frozenset[bytes]) -> set[object]:
    """The events of others, and what those say that the relay has signed."""
    found: set[object] = set()
    for raw in answer:
        try:
            event = event_from(json.loads(raw))
        except (ValueError, Invalid):  # damaged
            found.add(raw)
            continue
        digest, signature = bytes.fromhex(event.id), bytes.fromhex(event.sig)
        is_whole = event.kind in RELAY_SIGNED and is_signature(event.pubkey, digest, signature)
        found.add((event.kind, f"{event.tags}", event.content) if is_whole else raw)
    return found


def last_commit_at(log: Path) -> int:
    """Where its frames begin."""
    content = log.read_bytes()
    size = 24 + int.from_bytes(content[8:12], "big")
    ends = [
        at + size
        for at in range(32, len(content), size)
        if int.from_bytes(content[at + 4 : at + 8], "big")
    ]
    return ends[-2]


def damage(file: Path, chance: Random) -> str:
    """In the log of the store only what can be told from a crash: not the end."""
    content = bytearray(file.read_bytes())
    is_log = file.name == "rookery.db-wal"
    end = last_commit_at(file) if is_log else len(content)
    match chance.choice(["flip", "flip", "flip", "zeros", "flip" if is_log else "cut"]):
        case "flip":
            places = [chance.randrange(end) for _ in range(chance.choice([1, 1, 8]))]
            for at in places:
                content[at] ^= 1 << chance.randrange(8)
            what = f"bits flipped at {places}"
        case "zeros":
            at = chance.randrange(end) // 512 * 512
            content[at : at + 512] = bytes(len(content[at : at + 512]))
            what = f"a sector of zeros at {at}"
        case _:
            del content[chance.randrange(len(content)) :]
            what = f"cut to {len(content)} bytes"
    file.write_bytes(content)
    return f"{file.name}: {what}"


async def outcome(folder: Path, rules: PolicySet, whole: Answers) -> str:
    """How a relay on the folder tells of damage, or that it serves all; else it fails."""
    try:
        store = await SqliteStore.open(folder / "rookery.db", TERMS)
    except StoreFault as refusal:
        return f"refused at start: {refusal}" if str(folder) in str(refusal) else "SERVED: no name"
    try:
        told: list[str] = []
        try:
            async with Home(store, rules) as home:
                home.sweep._damaged = told.append
                while not await home.sweep.check():
                    pass
                answers = await answers_of(home)
        except StoreFault as fault:
            return f"error: {fault}"
        if any(told):
            return "reported by the check of rows"
        if answers == whole:
            return "all is served"
        if [said(each) for each in answers] == [said(each) for each in whole]:
            return "what the relay says of groups is signed anew"
        return "SERVED OTHERWISE: " + ", ".join(
            f"{len(wanted - found)} missing, {len(found - wanted)} others"
            for wanted, found in zip(whole, answers, strict=True)
        )
    finally:
        await store.close()


async def tried(folder: Path, source: Path, rules: PolicySet, whole: Answers, seed: int) -> str:
    """Damages a copy; what was damaged, and what came of it."""
    chance = Random(seed)
    state, name = chance.choice(
        [
            *[("closed", "rookery.db")] * 4,
            *[("killed", "rookery.db-wal")] * 2,
            ("closed", "search.db"),
            ("killed", "search.db"),
            ("killed", "search.db-wal"),
        ]
    )
    shutil.copytree(source / state, folder)
    what = damage(folder / name, chance)
    found = await outcome(folder, rules, whole)
    if name.startswith("search.db") and found != "all is served":
        assert "made anew at the next start" in found, found
        assert await outcome(folder, rules, whole) == "all is served"
    return f"{what}: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_damaged_store_never_serves_less_in_silence(
    tmp_path: Path, made: tuple[Path, Answers], rules: PolicySet, seed: int
) -> None:
    found = await tried(tmp_path / "data", made[0], rules, made[1], seed)
    assert "SERVED" not in found


def _no_check(patch: pytest.MonkeyPatch) -> None:
    """Rows are not compared with what was signed."""

    async def checked(_: Sweeper) -> bool:
        return True

    patch.setattr(Sweeper, "check", checked)


def _any_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wal, "is_cut_short", lambda *_: False)


@pytest.mark.mutant
@pytest.mark.slow
@pytest.mark.parametrize("mutant", [_no_check, _any_log], ids=lambda of: of.__name__)
async def test_a_relay_that_looks_away_is_found(
    tmp_path: Path,
    made: tuple[Path, Answers],
    rules: PolicySet,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
) -> None:
    mutant(monkeypatch)
    for seed in range(500):
        if "SERVED" in await tried(tmp_path / f"{seed}", *made[:1], rules, made[1], seed):
            return
    pytest.fail("no seed found it")


@pytest.mark.parametrize(
    "first", [schema_of, snapshot, compact, None], ids=["start", "verify", "compact", "store"]
)
async def test_a_damaged_log_is_refused_whatever_opens_the_file_first(
    tmp_path: Path, made: tuple[Path, Answers], first: Callable[[Path], object] | None
) -> None:
    """SQLite deletes the log when the last connection is closed, and the next start sees none."""
    shutil.copytree(made[0] / "killed", tmp_path / "data")
    store = tmp_path / "data" / "rookery.db"
    log = store.with_name("rookery.db-wal")
    content = bytearray(log.read_bytes())
    content[last_commit_at(log) // 2] ^= 4
    log.write_bytes(content)
    for _ in range(2):
        if first is not None:
            with pytest.raises(StoreFault, match="wal is damaged"):
                first(store)
        with pytest.raises(StoreFault, match="wal is damaged"):
            await SqliteStore.open(store, TERMS)
    assert log.read_bytes() == content


async def test_damage_in_the_sums_of_the_commit_before_the_last_is_refused(
    tmp_path: Path, made: tuple[Path, Answers]
) -> None:
    """Both commits were lost, without a word: nothing continues wrong sums."""
    shutil.copytree(made[0] / "killed", tmp_path / "data")
    log = tmp_path / "data" / "rookery.db-wal"
    content = bytearray(log.read_bytes())
    page = int.from_bytes(content[8:12])
    last = last_commit_at(log)
    for place in range(8, 24):
        damaged = bytearray(content)
        damaged[last - (24 + page) + place] ^= 1
        log.write_bytes(damaged)
        with pytest.raises(StoreFault, match="wal is damaged"):
            await SqliteStore.open(log.with_name("rookery.db"), TERMS)


HEADS = [
    *[(f"bit {bit} of the header", bit // 8, 1 << bit % 8) for bit in range(0, 32 * 8, 3)],
    ("order of the checksums", 3, 1),
    *[(f"first {size} bytes", slice(size), None) for size in (4, 32, 512, 4096, 16384)],
]


@pytest.mark.parametrize(("_what", "place", "mask"), HEADS, ids=[each[0] for each in HEADS])
async def test_a_log_with_a_damaged_header_is_refused(
    tmp_path: Path,
    made: tuple[Path, Answers],
    _what: str,
    place: int | slice,
    mask: int | None,
) -> None:
    """SQLite reads nothing of it: a start lost all of its commits, without a word."""
    shutil.copytree(made[0] / "killed", tmp_path / "data")
    log = tmp_path / "data" / "rookery.db-wal"
    content = bytearray(log.read_bytes())
    if isinstance(place, slice):
        content[place] = bytes(len(content[place]))
    else:
        content[place] ^= mask or 0
    log.write_bytes(content)
    with pytest.raises(StoreFault, match="wal is damaged"):
        await SqliteStore.open(log.with_name("rookery.db"), TERMS)
    assert log.read_bytes() == content


async def test_an_empty_log_and_one_of_a_header_alone_are_opened(
    tmp_path: Path, made: tuple[Path, Answers]
) -> None:
    """A crash may leave them."""
    shutil.copytree(made[0] / "closed", tmp_path / "data")
    store = tmp_path / "data" / "rookery.db"
    for content in (b"", bytes(32), bytes(500)):
        store.with_name("rookery.db-wal").write_bytes(content)
        await (await SqliteStore.open(store, TERMS)).close()


async def without_tags(folder: Path, source: Path, rules: PolicySet, whole: Answers) -> str:
    """What comes of a row that the table of tags does not have."""
    shutil.copytree(source / "closed", folder)
    with closing(sqlite3.connect(folder / "rookery.db")) as db:
        db.execute(
            "DELETE FROM tags WHERE seq ="
            ' (SELECT max(seq) FROM events WHERE instr(raw, CAST(\'["h","tea"]\' AS BLOB)))'
        )
        db.commit()
    return await outcome(folder, rules, whole)


async def test_a_row_that_lost_its_tags_is_reported(
    tmp_path: Path,
    made: tuple[Path, Answers],
    rules: PolicySet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await without_tags(tmp_path / "checked", made[0], rules, made[1])
    assert found == "reported by the check of rows"

    async def untagged(*_: object) -> set[int]:
        return set()

    monkeypatch.setattr(SqliteStore, "_untagged", untagged)
    found = await without_tags(tmp_path / "unchecked", made[0], rules, made[1])
    assert found.startswith("SERVED"), "a relay that does not compare tags is found"


async def test_a_letter_of_a_signature_that_became_a_capital_is_reported(
    tmp_path: Path, made: tuple[Path, Answers], rules: PolicySet
) -> None:
    """One bit; in hex both are one number, and the signature holds."""
    folder = tmp_path / "data"
    shutil.copytree(made[0] / "closed", folder)
    with closing(sqlite3.connect(folder / "rookery.db")) as db:
        ((seq, raw),) = db.execute("SELECT seq, raw FROM events ORDER BY seq LIMIT 1")
        fields, _, signature = raw.rpartition(b'"sig"')
        capital = re.sub(rb"[a-f]", lambda found: found[0].upper(), signature, count=1)
        db.execute("UPDATE events SET raw = ? WHERE seq = ?", (fields + b'"sig"' + capital, seq))
        db.commit()
    assert await outcome(folder, rules, made[1]) == "reported by the check of rows"


@pytest.mark.parametrize("seed", range(tries(200, 40)))
def test_a_damaged_key_is_refused(tmp_path: Path, seed: int) -> None:
    """Another key would sign all groups again, as another relay."""
    chance, file = Random(seed), tmp_path / "relay.key"
    file.write_text(cast.owner.nsec + "\n")
    damage(file, chance)
    try:
        key = read_key_file(file.read_text("ascii"), str(file))
    except UnicodeDecodeError:  # serve names the file
        return
    except UserError as refusal:
        text = str(refusal)
    else:
        text = f"relay.key: {key.pubkey}"
        assert key.pubkey == cast.owner.pubkey
    assert "relay.key" in text

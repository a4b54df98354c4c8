"""A relay with many memories: how long a question takes, and what the index costs while writing.

Texts have the words of the conversations in random order. With meaning their vectors are random: to
compute 100,000 would take an hour, and a question costs as much with these.
"""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.client import Client
from relay.client.recall import recall
from relay.nostr import kinds
from tests import cast
from tests.harness.relay_program import Rookery, command
from tests.recall.retrieval import AGENT, MemoryRefused, indexed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.event import Event
    from tests.recall.dataset import Conversation

QUESTIONS: Final = 300
WRITTEN: Final = 20_000
"""Notes that are stored with the index, and without."""
ROUNDS: Final = 3
_SESSION: Final = 20
"""Notes of one."""
_BEGAN: Final = 1_700_000_000
_BETWEEN_S: Final = 300
_TICK: Final = os.sysconf("SC_CLK_TCK")
_NOT_SEARCHED: Final = "[search]\nkinds = [0]\n"


class Times(NamedTuple):
    """Of a question."""

    p50_ms: float
    p99_ms: float
    relay_ms: float
    """Of processor time; `client_ms` too."""
    client_ms: float


class Rates(NamedTuple):
    """Notes a second, and milliseconds of the relay's processor time for a thousand notes: medians
    of the rounds, with the index and without."""

    indexed: float
    plain: float
    indexed_cpu_ms: float
    plain_cpu_ms: float


def notes(conversations: Sequence[Conversation], count: int, seed: int = 1) -> list[Event]:
    chance = random.Random(seed)
    turns = [turn for talk in conversations for each in talk.sessions for turn in each.turns]
    words = [word for turn in turns for word in turn.text.split()]
    made = []
    for number in range(count):
        turn = turns[number % len(turns)]
        text = " ".join(chance.choices(words, k=len(turn.text.split())))
        tags = [["d", f"session-{seed}-{number // _SESSION}"]]
        at = _BEGAN + number * _BETWEEN_S
        made.append(AGENT.sign(kinds.CONVERSATION_NOTE, tags, f"{turn.speaker}: {text}", at))
    return made


async def questions_took(
    conversations: Sequence[Conversation], memories: int, *, by_meaning: bool
) -> Times:
    """Raises MemoryRefused."""
    asked = [question.text for talk in conversations for question in talk.questions]
    random.Random(1).shuffle(asked)
    with tempfile.TemporaryDirectory(prefix="rookery-recall-") as name:
        folder = Path(name) / "relay"
        async with Rookery(folder) as rookery:
            await rookery.init("--owner", cast.owner.npub, "--agent", AGENT.npub)
            file = Path(name) / "notes.jsonl"
            file.write_bytes(b"\n".join(note.raw for note in notes(conversations, memories)))
            code, printed = await command("import", str(file), "--data", str(folder))
            if code:
                raise MemoryRefused(printed)
            await rookery.start()
            async with Client(rookery.url, AGENT) as client:
                await indexed(client)
            if by_meaning:
                await rookery.stop()
                _put_vectors(folder / "search.db")
                rookery.set_up("search", "meaning = true")
                await rookery.start()
            async with Client(rookery.url, AGENT) as client:
                for question in asked[:20]:
                    await recall(client, question)
                took: list[float] = []
                relay, own = _cpu(rookery.pid), time.process_time()
                for question in asked[:QUESTIONS]:
                    began = time.perf_counter()
                    await recall(client, question)
                    took.append(time.perf_counter() - began)
                relay, own = _cpu(rookery.pid) - relay, time.process_time() - own
    each = 1000 / len(took)
    took.sort()
    return Times(
        1000 * took[len(took) // 2], 1000 * took[len(took) * 99 // 100], relay * each, own * each
    )


async def writing_took(conversations: Sequence[Conversation]) -> Rates:
    """Raises MemoryRefused."""
    rates: list[list[float]] = [[], []]
    cpu: list[list[float]] = [[], []]
    written = notes(conversations, WRITTEN)
    for number in range(2 * ROUNDS):
        # With, without, without, with: a machine that slows down slows both.
        way = (number + number // 2) % 2
        with tempfile.TemporaryDirectory(prefix="rookery-recall-") as name:
            async with Rookery(Path(name) / "relay") as rookery:
                await rookery.init("--owner", cast.owner.npub, "--agent", AGENT.npub)
                if way:
                    (rookery.folder / "policies/30-search.toml").write_text(_NOT_SEARCHED)
                await rookery.start()
                async with Client(rookery.url, AGENT) as client:
                    began, used = time.perf_counter(), _cpu(rookery.pid)
                    report = await client.publish_many(written)
                    rates[way].append(report.stored / (time.perf_counter() - began))
                    cpu[way].append(1e6 * (_cpu(rookery.pid) - used) / report.stored)
                if report.refused:
                    raise MemoryRefused(str(report.refused[0]))
    return Rates(*[median(each) for each in (*rates, *cpu)])


def _put_vectors(index: Path) -> None:
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("INSERT INTO vectors SELECT seq, randomblob(384) FROM texts")
        db.execute("INSERT OR REPLACE INTO meta SELECT 'vectors_upto', max(seq) FROM texts")


def _cpu(pid: int) -> float:
    """Seconds of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK

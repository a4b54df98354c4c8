"""The collection that is searched: a store of many events, filled once and kept in the cache.

Filled through the store's own door and not by a relay, which would verify each of a million
signatures. Words are as unequal as those of a language: the Nth is used 1/N as often.
"""

import asyncio
import hashlib
import json
import random
import shutil
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import orjson

from relay.lifecycle.rows import Found, Lookups, Stored, WritePlan
from relay.nostr.event import Event
from relay.nostr.filters import FilterTerms
from relay.nostr.nip77 import Items
from relay.storage.sqlite.store import SqliteStore
from tests.bench.loads import Question

MADE_BY = 1  # counted up when `events` changes
FIRST = 1_700_000_000  # created_at, one a second
BATCH = 2000
LENGTHS = (6, 10, 15, 20, 30, 60)  # words of an event
WORDS = 40_000
LIMIT = 20
QUESTIONS = 200
ONE_IN = {"0.1 %": 1000, "1 %": 100}
"""How rare the words of a question are."""
AUTHORS = [hashlib.sha256(b"author %d" % number).hexdigest() for number in range(100)]
"""Who wrote them, a hundredth each."""


def words() -> list[str]:
    chance = random.Random(1)
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "an", "er")]
    made: dict[str, None] = {}
    while len(made) < WORDS:
        made["".join(chance.choices(syllables, k=chance.randint(2, 4)))] = None
    return list(made)


def events(count: int) -> Iterator[Event]:
    chance = random.Random(MADE_BY)
    known = words()
    weights = list(accumulate(1 / (rank + 3) for rank in range(WORDS)))
    for number in range(count):
        said = chance.choices(known, cum_weights=weights, k=chance.choice(LENGTHS))
        fields: dict[str, Any] = {
            "id": hashlib.sha256(b"searched %d" % number).hexdigest(),
            "pubkey": chance.choice(AUTHORS),
            "created_at": FIRST + number,
            "kind": 1,
            "tags": [],
            "content": " ".join(said),
            "sig": "0" * 128,
        }
        yield Event(**fields, raw=orjson.dumps(fields))


def items(count: int, without: int) -> Items:
    """What negentropy compares of them, but for one event in `without`."""
    kept = [number for number in range(count) if number % without]
    ids = b"".join([hashlib.sha256(b"searched %d" % number).digest() for number in kept])
    return Items(array("Q", [FIRST + number for number in kept]), ids)


@dataclass(slots=True)
class Tally:
    """How many events have a word, and words that stand in one event."""

    counts: dict[str, int]
    together: list[list[str]]

    def note(self, event: Event, *, keep: bool) -> None:
        here = sorted(set(event.content.split()))
        for word in here:
            self.counts[word] = self.counts.get(word, 0) + 1
        if keep:
            self.together.append(here)

    def questions(self, count: int) -> dict[str, list[str]]:
        """Queries of words that about so many events have; each finds something."""
        chance = random.Random(2)
        rare = {
            name: {
                word
                for word, has in self.counts.items()
                if count / one_in / 1.5 < has < count / one_in * 1.5
            }
            for name, one_in in ONE_IN.items()
        }
        asked = {name: chance.choices(sorted(some), k=QUESTIONS) for name, some in rare.items()}
        pairs = []
        for here in self.together:
            usual = [word for word in here if self.counts[word] > count / 200]
            if len(usual) > 1:
                pairs.append(" ".join(chance.sample(usual, 2)))
        asked["two words"] = chance.choices(pairs, k=QUESTIONS)
        return asked


def filled(
    cache: Path, count: int, make: Callable[[Path], None], progress: Callable[[int, int], None]
) -> Path:
    """A folder that holds `data`, made by `make`, with so many events in its store."""
    folder = cache / f"searched-{count}-{MADE_BY}"
    if not (folder / "questions.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)
        tally = Tally({}, [])
        asyncio.run(fill(folder / "data" / "rookery.db", count, tally, progress))
        (folder / "questions.json").write_text(json.dumps(tally.questions(count)))
    return folder


async def fill(path: Path, count: int, tally: Tally, progress: Callable[[int, int], None]) -> None:
    store = await SqliteStore.open(path, FilterTerms(), synchronous="NORMAL")
    coming = events(count)
    done = 0
    while batch := list(islice(coming, BATCH)):

        def decide(found: Found, batch: list[Event] = batch) -> WritePlan:
            plan = WritePlan()
            for event in batch:
                found.last_seq += 1
                plan.adds[event.id] = Stored(found.last_seq, event, version=event.created_at)
            return plan

        await store.append(Lookups(frozenset(), frozenset(), frozenset()), decide)
        for number, event in enumerate(batch):
            tally.note(event, keep=not number % 100)
        done += len(batch)
        progress(done, count)
    await store.close()


def questions(folder: Path, name: str) -> list[Question]:
    """Searches for the best 20."""
    queries = json.loads((folder / "questions.json").read_text())[name]
    return [Question({"search": query, "limit": LIMIT}, LIMIT) for query in queries]

"""Signed events, made before any clock starts and kept between runs.

All events of a corpus have the same serialised length, so that the client may count by size.
`created_at` rises from `spread_s` before the signing to the signing; a corpus is signed anew after
`RENEW_S`, since relays refuse what is far from their clock.
"""

import hashlib
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from coincurve import PrivateKey, PublicKeyXOnly

from tests.bench import wire

RENEW_S = 20 * 86400
CHUNK = 2000
ID_AT = len(b'{"id":"')


@dataclass(frozen=True, slots=True)
class Shape:
    """What the events of one corpus look like."""

    name: str
    authors: int
    content: int  # characters
    words: int = 0  # different values of `t`; 0: no tags at all
    people: int = 0  # different values of `p`
    spread_s: int = 3600


# A tag each of t, p and e, as on a note that answers another.
NOTES = Shape("notes", authors=8, content=200, words=200, people=500)
ARCHIVE = Shape("archive", authors=100, content=200, words=200, people=500, spread_s=15 * 86400)
# A line of chat; with its frame about 400 bytes.
LINES = Shape("lines", authors=8, content=40)


def secret(number: int) -> bytes:
    return hashlib.sha256(b"rookery bench %d" % number).digest()


@cache
def public(number: int) -> str:
    return PublicKeyXOnly.from_secret(secret(number)).format().hex()


@cache
def prose() -> str:
    chance = random.Random(1)
    syllables = [a + b for a in "bcdfghjklmnprstv" for b in "aeiou"]
    words = ("".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(20_000))
    return " ".join(words)


def word(number: int) -> str:
    return f"word{number:04d}"


def person(number: int) -> str:
    return hashlib.sha256(b"person %d" % number).hexdigest()


def signed(job: tuple[Shape, int, int, int, int]) -> bytes:
    """A chunk of a corpus as JSON lines. Runs in the pool."""
    shape, seed, first, total, now = job
    chance = random.Random(f"{shape.name}:{seed}:{first}")
    text = prose()
    keys = {}
    lines = []
    for at in range(first, min(first + CHUNK, total)):
        author = chance.randrange(shape.authors)
        if author not in keys:
            keys[author] = PrivateKey(secret(author))
        start = chance.randrange(len(text) - shape.content)
        # The number makes every event, and so its id, another.
        content = f"{at:08d} {text[start : start + shape.content - 10]}."
        tags = []
        if shape.words:
            tags = [
                ["t", word(chance.randrange(shape.words))],
                ["p", person(chance.randrange(shape.people))],
                ["e", chance.randbytes(32).hex()],
            ]
        created_at = now - shape.spread_s + at * shape.spread_s // total
        pubkey = public(author)
        body = orjson.dumps([0, pubkey, created_at, 1, tags, content])
        digest = hashlib.sha256(body).digest()
        lines.append(
            orjson.dumps(
                {
                    "id": digest.hex(),
                    "pubkey": pubkey,
                    "created_at": created_at,
                    "kind": 1,
                    "tags": tags,
                    "content": content,
                    "sig": keys[author].sign_schnorr(digest, b"\0" * 32).hex(),
                }
            )
        )
    return b"\n".join(lines) + b"\n"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Signed events, as EVENT frames that are masked and ready to send."""

    frames: list[bytes]
    ids: list[bytes]  # hex
    path: Path  # their JSON, one a line
    digest: str  # of the file: what a kept store is named for

    def first(self, count: int) -> "Corpus":
        return replace(self, frames=self.frames[:count], ids=self.ids[:count])

    def events(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as lines:
            yield from map(orjson.loads, lines)


def load(
    shape: Shape, count: int, folder: Path, progress: Callable[[int, int], None], seed: int = 7
) -> Corpus:
    """The corpus of this shape, read from `folder` or signed now by all cores."""
    path = folder / f"{shape.name}-{count}-{seed}.jsonl"
    if not path.exists() or time.time() - path.stat().st_mtime > RENEW_S:
        now = int(time.time())
        jobs = [(shape, seed, first, count, now) for first in range(0, count, CHUNK)]
        fresh = path.with_suffix(f".{os.getpid()}")
        with multiprocessing.get_context("spawn").Pool() as pool, fresh.open("wb") as out:
            for done, chunk in enumerate(pool.imap(signed, jobs), 1):
                out.write(chunk)
                progress(done, len(jobs))
        fresh.replace(path)
    data = path.read_bytes()
    lines = data.splitlines()
    ids = [line[ID_AT : ID_AT + 64] for line in lines]
    assert len(set(ids)) == count, "events of one corpus are not all different"
    assert len(set(map(len, lines))) == 1, "events of one corpus differ in length"
    frames = []
    for at, line in enumerate(lines):
        frames.append(wire.frame(b'["EVENT",' + line + b"]"))
        if not at % 20_000:
            progress(at, count)
    return Corpus(frames, ids, path, hashlib.sha256(data).hexdigest()[:16])

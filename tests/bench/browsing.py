"""Pages of the web console on a relay with 100,000 events, as its owner and as anybody.

The server's part is what the relay used of a core, read from /proc around many requests of one
page: on a busy machine it says more than the time that a page took. One page at a time.
"""

import hashlib
import json
import random
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from relay.memory.anamnesis.records import Entry, entry_draft, timestamp_of
from relay.memory.nmem.records import Prompt, Source, prompt_draft
from relay.nostr.event import Event
from relay.nostr.keys import SecretKey
from tests.bench import corpus, searching, wire
from tests.bench.loads import LoadFault, Measure, percentile
from tests.bench.relays import Preset, Rookery, Running, Target

if TYPE_CHECKING:
    from tests.bench.rows import Bench

OWNER = SecretKey(corpus.secret(10_000))
AGENT = SecretKey(corpus.secret(0))
MEMBERS = 200
"""Of the group that is shown; who wrote the notes too."""
GROUP = "tea"
REPEATS = 20
INDEXED_S = 120.0
WATCHERS = 10
WATCH_S = 3.0
"""Between two requests of an open page of Live, as its script asks."""
JOINED, NOTES, REMEMBERED, CLAIMED = 1000, 0.25, 0.1, 0.02
"""Requests to join; the others as parts of all events: the rest are messages of groups."""


def member(number: int) -> SecretKey:
    return SecretKey(hashlib.sha256(b"member %d" % number).digest())


def events(count: int) -> Iterator[Event]:
    """Half a year of a team: one group has most of the messages, all by few of its members."""
    chance, now = random.Random(5), int(time.time())
    began = now - 180 * 86_400
    keys = [member(number) for number in range(MEMBERS)]
    words = searching.words()
    groups = [GROUP, *(f"group-{number}" for number in range(20))]
    for group in groups:
        yield OWNER.sign(9007, [["h", group]], "", began)
        yield OWNER.sign(9002, [["h", group], ["name", group], ["private"]], "", began)
        for key in keys if group == GROUP else keys[:20]:
            yield OWNER.sign(9000, [["h", group], ["p", key.pubkey]], "", began)
    for number, key in enumerate(keys):
        yield key.sign(0, [], json.dumps({"name": f"member {number}"}), began)

    def text() -> str:
        return " ".join(chance.choices(words[:4000], k=20))

    for number in range(JOINED):
        asks = member(MEMBERS + number)
        yield asks.sign(9021, [["h", GROUP]], "may I?", began + number)
        if number % 3:
            put = [["h", GROUP], ["p", asks.pubkey]]
            yield OWNER.sign(9000 if number % 2 else 9001, put, "", began + number + 1)
    remembered, claimed, notes = (int(count * part) for part in (REMEMBERED, CLAIMED, NOTES))
    for number in range(remembered):
        prompt = Prompt(f"session-{number // 100}", began + number, Source.USER, text())
        yield AGENT.sign(*prompt_draft(prompt))
    for number in range(claimed):
        at = timestamp_of(began + number)
        yield AGENT.sign(*entry_draft(Entry(text(), AGENT.pubkey, "place", at, tags=("a",))))
    left = count - remembered - claimed - notes
    for number in range(notes):
        yield chance.choice(keys).sign(1, [], text(), began + number)
    for number in range(left):
        group = GROUP if chance.random() < 0.7 else chance.choice(groups)
        key = keys[int(len(keys) * chance.random() ** 3) % 20]
        yield key.sign(9, [["h", group]], text(), began + 86_400 + number * 100 % (170 * 86_400))


def filled(bench: "Bench", target: Rookery) -> Path:
    """A folder that holds `data`; made once a day, since times count from now."""
    count = bench.scale.archive
    folder = bench.cache / f"browsed-{count}-{int(time.time()) // 86_400}"
    if not (folder / "done").exists():
        folder.mkdir(exist_ok=True)
        target.made(folder, Preset.OPEN)
        lines = folder / "events.jsonl"
        with lines.open("wb") as file:
            for number, event in enumerate(events(count)):
                file.write(event.raw + b"\n")
                if not number % 1000:
                    bench.progress("signing what is browsed", number, count)
        target.run(folder, "import", str(lines), "--data", str(folder / "data"))
        lines.unlink()
        (folder / "done").touch()
    return folder


@dataclass(slots=True)
class Browser:
    """One connection, kept alive, with the cookie of a session."""

    port: int
    connection: HTTPConnection
    cookie: str = ""

    def get(self, path: str) -> bytes:
        headers = {"Accept": "text/html", "Accept-Encoding": "gzip"}
        if self.cookie:
            headers["Cookie"] = self.cookie
        self.connection.request("GET", path, headers=headers)
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise LoadFault(f"{path}: {answer.status} {body[:200]!r}")
        return body

    def sign_in(self, who: SecretKey) -> None:
        path = "/console/sign-in"
        tags = [["u", f"http://{wire.HOST}:{self.port}{path}"], ["method", "POST"]]
        event = who.sign(27235, tags, "", int(time.time()))
        signed = f"Nostr {b64encode(event.raw).decode()}"
        self.connection.request("POST", path, headers={"Authorization": signed})
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise LoadFault(f"sign-in: {answer.status} {body[:200]!r}")
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]


@contextmanager
def browser(relay: Running, who: SecretKey | None) -> Iterator[Browser]:
    connection = HTTPConnection(wire.HOST, relay.port, timeout=60)
    try:
        made = Browser(relay.port, connection)
        if who is not None:
            made.sign_in(who)
        yield made
    finally:
        connection.close()


def pages(word: str) -> Mapping[str, str]:
    """Name → path; `word`: one that many texts have."""
    return {
        "home": "/",
        "groups": "/console/groups",
        "group": f"/console/group?id={GROUP}",
        "people": "/console/people",
        "person": f"/console/person?key={member(0).pubkey}",
        "memory": "/console/memory",
        "memory, search": f"/console/memory?q={word}",
        "nmem": "/console/nmem?session=session-3",
        "events": "/console/events",
        "events, search": f"/console/events?filter={quote(json.dumps({'search': word}))}",
        "policies": "/console/policies",
        "live": "/console/live",
        "health": "/console/health",
    }


class Cost(NamedTuple):
    """Of one page."""

    cpu_ms: float
    """What the relay used of a core; 0 where there is no /proc."""
    took_ms: float
    p95_ms: float
    size: int


def costs(folder: Path, target: Rookery) -> Mapping[str, Cost]:
    """Page → what it costs the owner; "home, anybody": without signing in."""
    found = {}
    asked = pages(searching.words()[7])
    with target.start(folder, Preset.OPEN) as relay:
        with browser(relay, OWNER) as owner:
            for name, path in asked.items():
                found[name] = cost(relay, owner, path, REPEATS)
        with browser(relay, None) as anybody:
            found["home, anybody"] = cost(relay, anybody, "/", REPEATS // 2)
    return found


def cost(relay: Running, reader: Browser, path: str, repeats: int) -> Cost:
    size, took = len(first(reader, path)), []
    before = relay.processor()
    for _ in range(repeats):
        began = time.perf_counter()
        reader.get(path)
        took.append(time.perf_counter() - began)
    used = relay.processor()
    cpu = 0.0 if before is None or used is None else (used - before) / repeats
    took.sort()
    return Cost(1000 * cpu, 1000 * percentile(took, 0.5), 1000 * percentile(took, 0.95), size)


def first(reader: Browser, path: str) -> bytes:
    """As soon as it comes: a search waits until everything is in its index."""
    deadline = time.perf_counter() + INDEXED_S
    while True:
        try:
            return reader.get(path)
        except LoadFault:
            if time.perf_counter() > deadline:
                raise
            time.sleep(1)


def first_page(bench: "Bench", target: Target) -> Measure:
    """ms of the relay's core for the first page of who is not signed in; beside: its bytes."""
    found = _costs(bench, target)["home, anybody"]
    return Measure(rate=found.cpu_ms, p50_ms=found.took_ms, beside=found.size)


def any_page(bench: "Bench", target: Target) -> Measure:
    """ms of the relay's core for the dearest page of an owner; beside: its bytes."""
    found = _costs(bench, target)
    for name, each in found.items():
        bench.progress(f"{name}: {each.cpu_ms:.0f} ms of a core, {each.size} bytes", 0, 1)
    dearest = max(found.values(), key=lambda each: each.cpu_ms)
    return Measure(rate=dearest.cpu_ms, p50_ms=dearest.took_ms, beside=dearest.size)


def _costs(bench: "Bench", target: Target) -> Mapping[str, Cost]:
    if not isinstance(target, Rookery):
        raise LoadFault("only this checkout has a console")
    return costs(filled(bench, target), target)


def watching(bench: "Bench", target: Target) -> Measure:
    """Part of a core, in %, that ten open pages of Live take of a relay that is otherwise idle."""
    if not isinstance(target, Rookery):
        raise LoadFault("only this checkout has a console")
    with target.start(filled(bench, target), Preset.OPEN) as relay, browser(relay, OWNER) as owner:
        one = cost(relay, owner, "/console/live", REPEATS)
    return Measure(rate=100 * WATCHERS * one.cpu_ms / 1000 / WATCH_S, beside=one.cpu_ms)


if __name__ == "__main__":  # every page, as a table
    import sys

    from tests.bench.rows import FULL, Bench

    def quiet(text: str, done: int, total: int) -> None:
        """No progress."""

    here = Path(sys.argv[1])
    here.mkdir(parents=True, exist_ok=True)
    ours = Rookery()
    for page, each in costs(filled(Bench(FULL, here, quiet), ours), ours).items():
        print(
            f"{page:16} {each.cpu_ms:7.1f} ms CPU, p50 {each.took_ms:.1f} ms,"
            f" p95 {each.p95_ms:.1f} ms, {each.size} bytes"
        )

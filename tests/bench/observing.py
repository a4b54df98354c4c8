"""What nmem costs a coding agent: a hook, a search among what was done, a cache made anew."""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from relay.client.nmem import Nmem
from relay.client.nmem.apply import put_all
from relay.client.nmem.database import Database
from relay.client.nmem.queries import Order, Scope, search
from relay.hook import SOCKET
from relay.memory.draft import Draft
from relay.memory.nmem.records import (
    Observation,
    Prompt,
    Session,
    Source,
    hash_in,
    observation_draft,
    prompt_draft,
    session_draft,
)
from relay.nostr.event import event_from_raw
from relay.nostr.keys import SecretKey
from tests.bench import corpus, searching, wire
from tests.bench.loads import LoadFault, Measure, percentile
from tests.bench.relays import Preset, Rookery, Target

if TYPE_CHECKING:
    from tests.bench.rows import Bench

AGENT = SecretKey(corpus.secret(0))
MADE_BY = 1  # counted up when `drafts` changes
FIRST = 1_700_000_000
OF_A_SESSION = 200  # observations
TYPES = ("command", "file_read", "file_edit", "search", "git_commit")
HOOKS, QUESTIONS = 200, 400
LAUNCH = "from relay.launcher import main; main()"  # the way of an installed `rookery`


def hooks(bench: "Bench", target: Target) -> Measure:
    """Of `rookery hook PostToolUse`, from the start of its process to its end; one after another.

    No relay is there. The keeper was started by the hook before.
    """
    with bench.folder() as home, _keeper(home) as environ:
        took = []
        for number in range(HOOKS):
            hook = {
                "session_id": "s",
                "cwd": str(home),
                "hook_event_name": "PostToolUse",
                "tool_name": "Edit",
                "tool_input": {"file_path": f"/w/{number}.py"},
                "tool_response": corpus.prose()[:4000],
            }
            took.append(_hooked(environ, "PostToolUse", hook))
        with closing(Database(home / "nmem.db")) as database, database.reading() as db:
            recorded = db.execute("SELECT count(*) FROM observations").fetchone()[0]
    if recorded != HOOKS:
        raise LoadFault(f"{recorded} hooks of {HOOKS} were recorded")
    return _measured(took)


@contextmanager
def _keeper(home: Path) -> Iterator[dict[str, str]]:
    settings = home / ".config/rookery/client.toml"
    settings.parent.mkdir(parents=True)
    # Plain, so that what was recorded can be counted: a key costs a hook nothing but at first.
    settings.write_text(f'[nmem]\ndb = "{home}/nmem.db"\n')
    with closing(Database(home / "nmem.db")):
        pass
    environ = {
        **os.environ,
        "HOME": str(home),
        "ROOKERY_KEY": AGENT.nsec,
        "ROOKERY_RELAY": "ws://127.0.0.1:1",
    }
    _hooked(environ, "SessionStart", {"session_id": "s", "cwd": str(home)})
    lock = (home / SOCKET).with_name("hook.lock")
    ends = time.monotonic() + 30
    while not (home / SOCKET).exists():
        if time.monotonic() > ends:
            raise LoadFault("no keeper was left behind")
        time.sleep(0.02)
    try:
        yield environ
    finally:
        os.kill(int(lock.read_text()), signal.SIGKILL)


def _hooked(environ: dict[str, str], event: str, hook: Mapping[str, object]) -> float:
    said = json.dumps(hook).encode()
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", LAUNCH, "hook", event], input=said, env=environ, check=True
    )
    return time.perf_counter() - began


def found(bench: "Bench", target: Target) -> Measure:
    """Searches of one to three words, blended, among all observations; without a relay."""
    chance, words = random.Random(MADE_BY), searching.words()
    weights = [1 / (rank + 3) for rank in range(len(words))]
    with bench.folder() as folder, closing(Database(folder / "nmem.db")) as database:
        events = [event_from_raw(line) for line in _signed(bench).open("rb")]
        put_all(database, events, AGENT.pubkey, frozenset(), batch=len(events))
        took = []
        for number in range(QUESTIONS):
            asked = " ".join(chance.choices(words, weights, k=1 + number % 3))
            began = time.perf_counter()
            with database.reading() as db:
                search(db, asked, Scope(), Order.BLENDED, FIRST, 20, 0)
            took.append(time.perf_counter() - began)
    return _measured(took)


def rebuilt(bench: "Bench", target: Target) -> Measure:
    """Seconds until a cache has all that a relay has."""
    if not isinstance(target, Rookery):
        raise LoadFault("only a folder of this checkout can be filled by import")
    events = _signed(bench)
    with bench.folder() as folder:
        target.made(folder, Preset.GROUP)
        shutil.copy(events, folder / "events.jsonl")
        target.run(folder, "import", "events.jsonl", "--data", str(folder / "data"))
        with target.start(folder, Preset.GROUP) as relay:
            url = f"ws://{wire.HOST}:{relay.port}"
            seconds, number = asyncio.run(_rebuilt(url, folder / "nmem.db"))
    if number != sum(1 for _ in drafts(bench.scale.archive)):
        raise LoadFault(f"the cache has {number} records")
    return Measure(rate=seconds)


async def _rebuilt(url: str, path: Path) -> tuple[float, int]:
    async with Nmem(url, AGENT, path) as memory:
        began = time.perf_counter()
        number = await memory.rebuild()
        return time.perf_counter() - began, number


def drafts(observations: int) -> Iterator[Draft]:
    """Sessions of a prompt and 200 observations each; words are as unequal as a language's."""
    chance, words = random.Random(MADE_BY), searching.words()
    weights = [1 / (rank + 3) for rank in range(len(words))]
    said = " ".join(chance.choices(words, weights, k=20 * OF_A_SESSION)).split()
    for number in range(observations // OF_A_SESSION):
        at = FIRST + number * 1000
        session = Session(f"session-{number}", f"project-{number % 20}", at)
        yield session_draft(session)
        chance.shuffle(said)
        prompt = prompt_draft(Prompt(session.id, at, Source.USER, " ".join(said[:20])))
        yield prompt
        for which in range(OF_A_SESSION):
            text = " ".join(said[which * 20 : which * 20 + 10])
            observation = Observation(
                session.id,
                at + which,
                TYPES[which % 5],
                "PostToolUse",
                text,
                "Bash",
                f"/w/{chance.randrange(3000)}.py" if which % 2 else None,
                None,
                hash_in(prompt.d),
            )
            yield observation_draft(observation, session.project)


def _signed(bench: "Bench") -> Path:
    count = bench.scale.archive
    path = bench.cache / f"nmem-{MADE_BY}-{count}.jsonl"
    if not path.exists():
        fresh = path.with_suffix(".part")
        with fresh.open("wb") as file:
            for number, draft in enumerate(drafts(count)):
                file.write(AGENT.sign(*draft).raw + b"\n")
                if number % 1000 == 0:
                    bench.progress("signing", number, count)
        fresh.rename(path)
    return path


def _measured(took: list[float]) -> Measure:
    ordered = sorted(took)
    p50, p99 = percentile(ordered, 0.5) * 1000, percentile(ordered, 0.99) * 1000
    return Measure(rate=len(took) / sum(took), p50_ms=p50, p99_ms=p99)

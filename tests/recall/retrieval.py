"""A conversation becomes an agent's memory at a relay, and is asked by every method there is.

A turn is told three times, as each system would: as a note of a session (kind 1988), which is what
a conversation is here and what `rookery memory search` finds; as an observation of nmem,
whose cache is then fetched from the relay; as an entry of Anamnesis. The records have the times of
the conversation, and questions are asked a day after its end.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relay.client import Client
from relay.client.anamnesis import Anamnesis
from relay.client.errors import QueryClosed
from relay.client.nmem import Nmem
from relay.client.nmem.queries import Order, Scope, search
from relay.client.recall import recall
from relay.memory.anamnesis.records import Entry, entry_draft, timestamp_of
from relay.memory.nmem.records import Observation, ObsType, observation_draft, session_draft
from relay.memory.nmem.records import Session as NmemSession
from relay.memory.transcripts.blocks import NoteText
from relay.memory.transcripts.notes import Thread
from relay.memory.transcripts.plan import Plan
from relay.nostr import kinds
from relay.nostr.keywords import any_of, keywords
from relay.storage.sqlite.minilm import MiniLM
from tests import cast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
    from pathlib import Path

    from relay.memory.draft import Draft
    from tests.recall.dataset import Conversation, Turn

AGENT: Final = cast.robot
HITS: Final = 200
"""Turns that a method may answer with."""
_DAY: Final = 86_400
_PROJECT: Final = "recall"
_SESSION: Final = "session-"


_PATIENCE_S: Final = 300
_RECORD_CHARS: Final = 8000
"""Of a turn: an entry of Anamnesis may have 10 KB."""


class Method(NamedTuple):
    """A way to ask."""

    name: str
    ask: Callable[[str], Awaitable[list[Found]]]
    """The hits, best first."""
    rate: float = 0.0
    """Turns a second that became findable by it, signatures included."""


class Rates(NamedTuple):
    """Turns a second until they are found, by system."""

    notes: float
    observations: float
    entries: float


class Found(NamedTuple):
    session: str
    text: str


class MemoryRefused(Exception):
    """The relay did not take what was to be remembered; the text has its first reason."""


@asynccontextmanager
async def methods_into(
    url: str, folder: Path, conversation: Conversation, vectors: Path | None = None
) -> AsyncIterator[tuple[Method, ...]]:
    """`folder`: for the cache of nmem. `vectors`: the index of a relay that compares meanings.

    Raises MemoryRefused.
    """
    turns = sum(len(session.turns) for session in conversation.sessions)
    async with Client(url, AGENT) as client:

        async def told(drafts: Iterable[Draft]) -> None:
            signed = (
                AGENT.sign(each.kind, each.tags, each.content, each.created_at) for each in drafts
            )
            report = await client.publish_many(signed)
            if report.refused:
                raise MemoryRefused(f"{conversation.name}: {report.refused[0]}")

        began = time.perf_counter()
        await told(_notes(conversation))
        await indexed(client)
        if vectors is not None:
            await compared(vectors)
        noted = time.perf_counter()
        nmem = Nmem(client, AGENT, folder / "nmem.db")
        async with nmem, Anamnesis(client, AGENT) as anamnesis:
            await told(_observations(conversation))
            await nmem.sync()
            observed = time.perf_counter()
            await told(_entries(conversation))
            await indexed(client)
            ended = time.perf_counter()
            rates = Rates(
                *(turns / took for took in (noted - began, observed - noted, ended - observed))
            )
            if vectors is not None:
                await compared(vectors)
            asked_at = conversation.ends_at + _DAY
            with closing(sqlite3.connect(":memory:")) as db:
                yield (
                    *_methods(client, nmem, anamnesis, asked_at, rates),
                    *_baselines(db, conversation),
                    *([] if vectors is None else [_embeddings(conversation)]),
                )


async def indexed(client: Client) -> None:
    """Wait until the relay's index of texts has what is stored. Raises MemoryRefused."""
    wanted = {"kinds": [kinds.CONVERSATION_NOTE], "search": "ready", "limit": 1}
    for _ in range(_PATIENCE_S):
        try:
            await client.query(wanted)
        except QueryClosed:
            await asyncio.sleep(1)
        else:
            return
    raise MemoryRefused("its index of texts does not get done")


async def compared(index: Path) -> None:
    """Wait until each text of the relay's index has its vector."""
    with closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True)) as db:
        while db.execute(  # noqa: ASYNC110  another process computes them
            "SELECT (SELECT count(*) FROM vectors) < (SELECT count(*) FROM texts)"
        ).fetchone()[0]:
            await asyncio.sleep(0.2)


def session_in(session_id: str) -> int:
    return int(session_id.removeprefix(_SESSION))


def _said(conversation: Conversation) -> Iterator[tuple[str, Turn, str]]:
    """The session's id, the turn, and what is stored of it."""
    for session in conversation.sessions:
        for turn in session.turns:
            yield f"{_SESSION}{session.number}", turn, f"{turn.speaker}: {turn.text}"


def _notes(conversation: Conversation) -> Iterator[Draft]:
    roles: dict[str, str] = {}
    threads: dict[str, Thread] = {}
    for id_, turn, text in _said(conversation):
        thread = threads.setdefault(id_, Thread(AGENT.pubkey, None, Plan(), []))
        role = roles.setdefault(turn.speaker, "assistant" if roles else "user")
        yield from thread.drafts({}, [NoteText(role, text)], id_, turn.at * 1000)[0]


def _observations(conversation: Conversation) -> Iterator[Draft]:
    for id_, turn, text in _said(conversation):
        said = Observation(id_, turn.at, ObsType.MARKER, "turn", text[:_RECORD_CHARS])
        yield observation_draft(said, _PROJECT)
    for session in conversation.sessions:
        if session.turns:
            times = session.turns[0].at, session.turns[-1].at
            yield session_draft(NmemSession(f"{_SESSION}{session.number}", _PROJECT, *times))


def _entries(conversation: Conversation) -> Iterator[Draft]:
    for id_, turn, text in _said(conversation):
        yield entry_draft(
            Entry(
                text[:_RECORD_CHARS],
                AGENT.pubkey,
                turn.speaker,
                timestamp_of(turn.at),
                context={"session": id_},
            )
        )


def _embeddings(conversation: Conversation) -> Method:
    """The nearest turns by the same model, as mem0 without a language model stores and finds."""
    model = MiniLM()
    said = [(text, id_) for id_, _, text in _said(conversation)]
    began = time.perf_counter()
    parts = [
        model.embed([text for text, _ in said[at : at + 32]]) for at in range(0, len(said), 32)
    ]
    rate = len(said) / (time.perf_counter() - began)

    async def by_cosine(question: str) -> list[Found]:
        asked = model.embed([question])[0]
        cosines = [float(cosine) for part in parts for cosine in part @ asked]
        nearest = sorted(range(len(said)), key=lambda number: -cosines[number])[:HITS]
        return [Found(said[number][1], said[number][0]) for number in nearest]

    return Method("embeddings alone (cosine)", by_cosine, rate)


def _baselines(lines: sqlite3.Connection, conversation: Conversation) -> tuple[Method, ...]:
    """`lines`: gets the turns in a full-text table, as anybody would have them."""
    began = time.perf_counter()
    lines.execute(
        "CREATE VIRTUAL TABLE turns USING fts5(text, session UNINDEXED, tokenize='porter')"
    )
    said = [(text, id_) for id_, _, text in _said(conversation)]
    lines.executemany("INSERT INTO turns VALUES (?, ?)", said)
    rate = len(said) / (time.perf_counter() - began)

    async def by_bm25(question: str) -> list[Found]:
        found = lines.execute(
            "SELECT session, text FROM turns WHERE turns MATCH ? ORDER BY rank LIMIT ?",
            (any_of(question), HITS),
        )
        return [Found(*row) for row in found]

    async def by_grep(question: str) -> list[Found]:
        """Lines with most of the words, the newest first of equals; `grep -i -o | sort | uniq`."""
        words = keywords(question)
        rows = lines.execute("SELECT session, text FROM turns ORDER BY rowid DESC").fetchall()
        counted = [(sum(word in row[1].casefold() for word in words), row) for row in rows]
        counted.sort(key=lambda each: -each[0])
        return [Found(*row) for count, row in counted[:HITS] if count]

    return Method("BM25 alone (FTS5)", by_bm25, rate), Method("grep, most words", by_grep)


def _methods(
    client: Client, nmem: Nmem, anamnesis: Anamnesis, now: int, rates: Rates
) -> tuple[Method, ...]:
    async def by_recall(question: str) -> list[Found]:
        answer = await recall(client, question, systems="D", limit=HITS, as_of=now)
        return [Found(hit.event.d, hit.text) for hit in answer.hits]

    async def by_all_words(question: str) -> list[Found]:
        wanted = {"kinds": [kinds.CONVERSATION_NOTE], "search": question, "limit": HITS}
        return [Found(event.d, event.content) for event in await client.query(wanted)]

    def in_the_cache(order: Order) -> Callable[[str], Any]:
        async def ask(question: str) -> list[Found]:
            # What Nmem.search does, at another time than now.
            with nmem.database.reading() as db:
                hits = search(db, any_of(question), Scope(), order, now, HITS, 0)
            return [Found(hit.session_id, hit.content) for hit in hits]

        return ask

    async def recalled(question: str) -> list[Found]:
        hits = await anamnesis.recall(question, as_of=now, limit=HITS)
        documents: list[Any] = [hit.document for hit in hits]
        return [Found(each["context"]["session"], each["content"]) for each in documents]

    return (
        Method("recall", by_recall, rates.notes),
        Method("relay, all words", by_all_words, rates.notes),
        Method("nmem, any word", in_the_cache(Order.RELEVANCE), rates.observations),
        Method("nmem, any word, blended", in_the_cache(Order.BLENDED), rates.observations),
        Method("anamnesis recall", recalled, rates.entries),
    )

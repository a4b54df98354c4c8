"""A conversation becomes an agent's memory at a relay, and is asked by every method there is.

A turn is told three times, as each system would: as a note of a session (kind 1988), which is what
a conversation is here and what `rookery memory search` finds; as an observation of nmem,
whose cache is then fetched from the relay; as an entry of Anamnesis. The records have the times of
the conversation, and questions are asked a day after its end.
"""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relay.client import Client
from relay.client.anamnesis import Anamnesis
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
from tests import cast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from relay.memory.draft import Draft
    from tests.recall.dataset import Conversation

AGENT: Final = cast.robot
HITS: Final = 200
"""Turns that a method may answer with."""
_DAY: Final = 86_400
_PROJECT: Final = "recall"
_SESSION: Final = "session-"


class Method(NamedTuple):
    """A way to ask."""

    name: str
    ask: Callable[[str], Awaitable[list[Found]]]
    """The hits, best first."""


class Found(NamedTuple):
    session: str
    text: str


class MemoryRefused(Exception):
    """The relay did not take what was to be remembered; the text has its first reason."""


@asynccontextmanager
async def methods_into(
    url: str, folder: Path, conversation: Conversation
) -> AsyncIterator[tuple[Method, ...]]:
    """`folder`: for the cache of nmem. Raises MemoryRefused."""
    async with Client(url, AGENT) as client:
        report = await client.publish_many(
            AGENT.sign(draft.kind, draft.tags, draft.content, draft.created_at)
            for draft in drafts(conversation)
        )
        if report.refused:
            raise MemoryRefused(f"{conversation.name}: {report.refused[0]}")
        nmem = Nmem(client, AGENT, folder / "nmem.db")
        async with nmem, Anamnesis(client, AGENT) as anamnesis:
            await nmem.sync()
            # The relay's index of texts follows its log: the first search waits for it.
            await client.query({"kinds": [kinds.CONVERSATION_NOTE], "search": "ready", "limit": 1})
            with closing(_lines(conversation)) as lines:
                yield (
                    *_methods(client, nmem, anamnesis, conversation.ends_at + _DAY),
                    *_baselines(lines),
                )


def session_in(session_id: str) -> int:
    return int(session_id.removeprefix(_SESSION))


def drafts(conversation: Conversation) -> Iterator[Draft]:
    roles: dict[str, str] = {}
    for session in conversation.sessions:
        id_ = f"{_SESSION}{session.number}"
        thread = Thread(AGENT.pubkey, None, Plan(), [])
        for turn in session.turns:
            text = f"{turn.speaker}: {turn.text}"
            role = roles.setdefault(turn.speaker, "assistant" if roles else "user")
            yield from thread.drafts({}, [NoteText(role, text)], id_, turn.at * 1000)[0]
            yield observation_draft(
                Observation(id_, turn.at, ObsType.MARKER, "turn", text), _PROJECT
            )
            yield entry_draft(
                Entry(
                    text,
                    AGENT.pubkey,
                    turn.speaker,
                    timestamp_of(turn.at),
                    context={"session": id_},
                )
            )
        if session.turns:
            times = session.turns[0].at, session.turns[-1].at
            yield session_draft(NmemSession(id_, _PROJECT, *times))


def _lines(conversation: Conversation) -> sqlite3.Connection:
    """The turns in a full-text table, as anybody would have them."""
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE turns USING fts5(text, session UNINDEXED, tokenize='porter')")
    db.executemany(
        "INSERT INTO turns VALUES (?, ?)",
        (
            (f"{turn.speaker}: {turn.text}", f"{_SESSION}{session.number}")
            for session in conversation.sessions
            for turn in session.turns
        ),
    )
    return db


def _baselines(lines: sqlite3.Connection) -> tuple[Method, ...]:
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

    return Method("BM25 alone (FTS5)", by_bm25), Method("grep, most words", by_grep)


def _methods(client: Client, nmem: Nmem, anamnesis: Anamnesis, now: int) -> tuple[Method, ...]:
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
        Method("recall", by_recall),
        Method("relay, all words", by_all_words),
        Method("nmem, any word", in_the_cache(Order.RELEVANCE)),
        Method("nmem, any word, blended", in_the_cache(Order.BLENDED)),
        Method("anamnesis recall", recalled),
    )

"""A conversation becomes an agent's memory at a relay, and is asked by every method there is.

A turn is told three times, as each system would: as a note of a session (kind 1988), which is what
a conversation is here and what `rookery memory search` finds; as an observation of nmem,
whose cache is then fetched from the relay; as an entry of Anamnesis. The records have the times of
the conversation, and questions are asked a day after its end.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relay.client import Client
from relay.client.anamnesis import Anamnesis
from relay.client.nmem import Nmem
from relay.client.nmem.queries import Order, Scope, search
from relay.memory.anamnesis.records import Entry, entry_draft, timestamp_of
from relay.memory.keywords import RESULTS_PER_KEYWORD, any_of, keywords, merged
from relay.memory.nmem.records import Observation, ObsType, observation_draft, session_draft
from relay.memory.nmem.records import Session as NmemSession
from relay.memory.transcripts.blocks import NoteText
from relay.memory.transcripts.notes import Thread
from relay.memory.transcripts.plan import Plan
from relay.nostr import kinds
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
    ask: Callable[[str], Awaitable[list[str]]]
    """The session id of each hit, best first."""


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
            yield _methods(client, nmem, anamnesis, conversation.ends_at + _DAY)


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


def _methods(client: Client, nmem: Nmem, anamnesis: Anamnesis, now: int) -> tuple[Method, ...]:
    async def found(query: str, limit: int) -> list[Any]:
        wanted = {"kinds": [kinds.CONVERSATION_NOTE], "search": query, "limit": limit}
        return await client.query(wanted)

    async def by_all_words(question: str) -> list[str]:
        return [event.d for event in await found(question, HITS)]

    async def by_any_word(question: str) -> list[str]:
        words = keywords(question)
        answers = await asyncio.gather(*(found(word, RESULTS_PER_KEYWORD) for word in words))
        sessions = {event.id: event.d for answer in answers for event in answer}
        order = merged([[event.id for event in answer] for answer in answers])
        return [sessions[id_] for id_ in order[:HITS]]

    def in_the_cache(order: Order) -> Callable[[str], Any]:
        async def ask(question: str) -> list[str]:
            # What Nmem.search does, at another time than now.
            with nmem.database.reading() as db:
                hits = search(db, any_of(question), Scope(), order, now, HITS, 0)
            return [hit.session_id for hit in hits]

        return ask

    async def recalled(question: str) -> list[str]:
        hits = await anamnesis.recall(question, as_of=now, limit=HITS)
        contexts: list[Any] = [hit.document.get("context") for hit in hits]
        return [context["session"] for context in contexts]

    return (
        Method("relay, all words", by_all_words),
        Method("relay, any word", by_any_word),
        Method("nmem, any word", in_the_cache(Order.RELEVANCE)),
        Method("nmem, any word, blended", in_the_cache(Order.BLENDED)),
        Method("anamnesis recall", recalled),
    )

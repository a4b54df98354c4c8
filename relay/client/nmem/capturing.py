"""Capturing: what happens is recorded: a row in the cache at once, an event for the relay later.

The rows are written by relay.client.nmem.writing. Secrets leave a text before that (M-30).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from relay.client.nmem import reading
from relay.client.nmem.finding import Finding, NotFound, one_of
from relay.client.nmem.hooks import take_hook
from relay.client.nmem.summaries import cleaned
from relay.client.nmem.writing import (
    begin_session,
    end_session,
    event_id_of,
    newest_observation,
    newest_prompt,
    newest_session,
    note_task,
    record_observation,
    record_pin,
    record_prompt,
    session_in,
)
from relay.errors import Invalid
from relay.memory.fields import compact
from relay.memory.nmem.checks import MAX_PROMPT
from relay.memory.nmem.records import Observation, ObsType, Prompt, Session, Source
from relay.memory.nmem.secrets import SecretFilter
from relay.memory.nmem.summary import summary_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.client.client import Client
    from relay.client.nmem.cipher import CacheKey
    from relay.memory.nmem.summary import Summary
    from relay.nostr.keys import SecretKey

    Result = TypeVar("Result")

MARKED_BY: Final = "AgentMarker"
"""The `source_event` of a marker (M-29)."""


class Capturing(Finding):
    """The part of Nmem that records, and finds."""

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        db_path: Path | str,
        key: CacheKey | str | None = None,
        *,
        secrets: SecretFilter | None = None,
        group: str | None = None,
    ) -> None:
        """`relay`: a URL, or a client that is open for at least as long. `key`: encrypts the cache.
        `group`: whose members may read what is recorded; None: its author and the owner."""
        super().__init__(relay, signer, db_path, key)
        self._secrets = SecretFilter() if secrets is None else secrets
        self._group = group

    async def hook(self, payload: str | Mapping[str, object]) -> str:
        """Record what a hook of a coding agent says, in JSON or read from it; what the agent is
        told, if anything. Raises Invalid.
        """
        text = payload if isinstance(payload, str) else compact(payload)
        told = await asyncio.to_thread(
            take_hook,
            self.database,
            text,
            None,
            self._client.now(),
            Path.home(),
            self._secrets,
            self._group,
        )
        return told.answer

    async def session(self, id: str, project: str = "unknown") -> Session:
        """The session, begun now if it is not known. Raises Invalid for an empty id."""
        if not id:
            raise Invalid("a session must have an id")

        def begun(db: Any) -> Session:
            begin_session(db, Session(id, project, self._client.now()), self._group)
            session = session_in(db, id)
            assert session is not None
            return session

        return await self._writing(begun)

    async def end_session(
        self, id: str, summary: Summary | Mapping[str, object] | None = None
    ) -> Session:
        """Close it with what it holds (M-04, M-06). `summary`: as of M-05. Raises NotFound, and
        Invalid for a summary that is none."""
        now = self._client.now()
        given = summary_from(summary) if isinstance(summary, Mapping) else summary
        said = None if given is None else cleaned(given, self._secrets)
        ended = await self._writing(lambda db: end_session(db, id, now, self._group, said))
        if ended is None:
            raise NotFound(f"session not found: {id}")
        return ended

    async def prompt(self, session: str, text: str, source: str = Source.USER) -> int | None:
        """The number of the new prompt; None: it was there. Raises NotFound, and Invalid for
        another source than `user` and `agent`."""
        said = self._secrets.filtered(text, MAX_PROMPT).text
        prompt = Prompt(session, self._client.now(), one_of(Source, source, "source"), said)

        def record(db: Any) -> int | None:
            _known(db, session)
            return record_prompt(db, prompt, self._group)

        return await self._writing(record)

    async def observe(
        self,
        session: str,
        obs_type: str,
        content: str,
        *,
        source_event: str = "",
        tool_name: str | None = None,
        file_path: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> int | None:
        """The number of the new observation; None: it was there. Raises NotFound."""
        said = self._secrets.filtered(content)
        facts = self._secrets.freed(dict(metadata or {}))
        if said.is_redacted:
            facts["redacted"] = True
        path = None if file_path is None else self._secrets.filtered(file_path).text

        def record(db: Any) -> int | None:
            known = _known(db, session)
            observation = Observation(
                session,
                self._client.now(),
                obs_type,
                source_event,
                said.text,
                tool_name,
                path,
                facts or None,
                newest_prompt(db, session),
            )
            return record_observation(db, observation, known.project, self._group)

        return await self._writing(record)

    async def mark(self, text: str, project: str = "unknown") -> int:
        """Remember a text for good; the number of its observation.

        It stands in the project's newest session, or in one of its own.
        """

        def record(db: Any) -> int:
            now = self._client.now()
            newest = newest_session(db, project)
            session = str(uuid4()) if newest is None else newest
            begin_session(db, Session(session, project, now), self._group)
            said = self._secrets.filtered(text)
            observation = Observation(
                session,
                now,
                ObsType.MARKER,
                MARKED_BY,
                said.text,
                metadata={"redacted": True} if said.is_redacted else None,
            )
            number = record_observation(db, observation, project, self._group)
            if number is None:  # the same text in the same second
                return newest_observation(db, session, said.text)
            return number

        return await self._writing(record)

    async def pin(self, id: int) -> None:
        """Keep an observation for good. Raises NotFound."""
        await self._pin(id, is_pinned=True)

    async def unpin(self, id: int) -> None:
        """Raises NotFound."""
        await self._pin(id, is_pinned=False)

    async def queue_task(
        self,
        prompt: str,
        project: str | None = None,
        cwd: str | None = None,
        not_before: int | None = None,
    ) -> int:
        """Note something to be done, on this machine only; its number. `not_before`: Unix
        seconds."""
        said = self._secrets.filtered(prompt).text
        at = self._client.now()
        return await self._writing(lambda db: note_task(db, said, project, cwd, at, not_before))

    async def _pin(self, number: int, *, is_pinned: bool) -> None:
        def record(db: Any) -> None:
            if not reading.get(db, [number]):
                raise NotFound(f"observation {number} not found")
            target = event_id_of(db, number, self._signer)
            record_pin(db, number, target, self._client.now(), self._group, is_pinned=is_pinned)

        await self._writing(record)

    async def _writing(self, work: Callable[[Any], Result]) -> Result:
        def run() -> Result:
            with self.database.transaction() as db:
                return work(db)

        return await asyncio.to_thread(run)


def _known(db: Any, session_id: str) -> Session:
    session = session_in(db, session_id)
    if session is None:
        raise NotFound(f"session not found: {session_id}")
    return session

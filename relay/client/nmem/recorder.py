"""NmemRecorder: the writing half of Nmem: a row in the cache at once, an event for the relay later.

`relay.client.nmem.updates` writes the rows. Secrets are removed before that (M-30).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from relay.client.nmem import queries
from relay.client.nmem.adoption import Adoption
from relay.client.nmem.apply import drop_other_sources
from relay.client.nmem.hooks import record_hook
from relay.client.nmem.reader import NmemReader, NotFound, one_of
from relay.client.nmem.sources import Sources
from relay.client.nmem.summaries import cleaned
from relay.client.nmem.updates import (
    add_task,
    begin_session,
    end_session,
    event_id_of,
    markers_of,
    newest_observation,
    newest_prompt,
    newest_session,
    own_session_in,
    record_observation,
    record_pin,
    record_prompt,
)
from relay.errors import Invalid
from relay.memory.fields import compact
from relay.memory.junk import Sieve, without_echo
from relay.memory.nmem.checks import MAX_PROMPT
from relay.memory.nmem.records import Observation, ObsType, Prompt, Session, Source
from relay.memory.nmem.summary import summary_from
from relay.memory.secrets import SecretFilter
from relay.nostr.keys import public_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack

    from relay.client.client import Client
    from relay.client.nmem.cipher import CacheKey
    from relay.memory.nmem.summary import Summary
    from relay.nostr.keys import SecretKey

    Result = TypeVar("Result")

MARKED_BY: Final = "AgentMarker"
"""The `source_event` of a marker (M-29)."""


class NmemRecorder(NmemReader):
    """The part of Nmem that records."""

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        db_path: Path | str,
        key: CacheKey | str | None = None,
        *,
        secrets: SecretFilter | None = None,
        group: str | None = None,
        agents: Iterable[str] = (),
        home_relay: str | None = None,
    ) -> None:
        """`relay`: a URL, or an open client that outlives this object. `key`: encrypts the cache.
        `group`: its members may read the records, and theirs are fetched; None: only author and
        owner. `agents`: others whose records are fetched (npub or 64 hex). `home_relay`: see
        NmemReader. Raises Invalid."""
        super().__init__(relay, signer, db_path, key, home_relay)
        self._sources = Sources(group, frozenset(map(public_key, agents)))
        self._secrets = SecretFilter() if secrets is None else secrets
        self.sieve = Sieve(self._secrets)
        self._group = group
        self._adopt = Adoption(self._secrets, group).adopt

    async def _open(self, opening: AsyncExitStack) -> None:
        await super()._open(opening)
        await asyncio.to_thread(drop_other_sources, self.database, self._sources)

    async def hook(self, payload: str | Mapping[str, object]) -> str:
        """Record the payload of a coding agent's hook; returns the context for the agent, if any.
        Raises Invalid."""
        text = payload if isinstance(payload, str) else compact(payload)
        result = await asyncio.to_thread(
            record_hook,
            self.database,
            text,
            None,
            self._client.now(),
            Path.home(),
            self._secrets,
            self._group,
        )
        return result.answer

    async def session(self, id: str, project: str = "unknown") -> Session:
        """The session, created now if unknown. Raises Invalid for an empty id."""
        if not id:
            raise Invalid("a session must have an id")

        def create(db: Any) -> Session:
            begin_session(db, Session(id, project, self._client.now()), self._group)
            session = own_session_in(db, id)
            assert session is not None
            return session

        return await self._write(create)

    async def end_session(
        self, id: str, summary: Summary | Mapping[str, object] | None = None
    ) -> Session:
        """End a session (M-04, M-06). `summary`: see M-05. Raises NotFound, and Invalid for an
        invalid summary."""
        now = self._client.now()
        given = summary_from(summary) if isinstance(summary, Mapping) else summary
        filtered = None if given is None else cleaned(given, self._secrets)
        ended = await self._write(lambda db: end_session(db, id, now, self._group, filtered))
        if ended is None:
            raise NotFound(f"session not found: {id}")
        return ended

    async def prompt(self, session: str, text: str, source: str = Source.USER) -> int | None:
        """Id of the new prompt; None: it exists already. Raises NotFound, and Invalid for a source
        other than `user` and `agent`."""
        filtered = self._secrets.filtered(without_echo(text), MAX_PROMPT).text
        prompt = Prompt(session, self._client.now(), one_of(Source, source, "source"), filtered)

        def record(db: Any) -> int | None:
            _existing_session(db, session)
            return record_prompt(db, prompt, self._group)

        return await self._write(record)

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
        """Id of the new observation; None: it exists already. Raises NotFound."""
        filtered = self._secrets.filtered(without_echo(content))
        facts = self._secrets.redacted(dict(metadata or {}))
        if filtered.is_redacted:
            facts["redacted"] = True
        path = None if file_path is None else self._secrets.filtered(file_path).text

        def record(db: Any) -> int | None:
            known = _existing_session(db, session)
            now = self._client.now()
            observation = Observation(
                session,
                now,
                obs_type,
                source_event,
                filtered.text,
                tool_name,
                path,
                facts or None,
                newest_prompt(db, session, now),
            )
            return record_observation(db, observation, known.project, self._group)

        return await self._write(record)

    async def mark(self, text: str, project: str = "unknown") -> int:
        """Store a text permanently; returns the id of its observation, or of a marker of the
        project that says the same. Raises Invalid if all of it was recalled.

        It belongs to the project's newest session, or to a new one.
        """

        def record(db: Any) -> int:
            now = self._client.now()
            markers = markers_of(db, project)
            left = self.sift(text, markers)
            if left is None:
                known = markers.get(self.kept_out[-1].known)
                if known is None:
                    raise Invalid("nothing is left to mark: all of it was recalled")
                return known
            newest = newest_session(db, project)
            session = str(uuid4()) if newest is None else newest
            begin_session(db, Session(session, project, now), self._group)
            observation = Observation(
                session,
                now,
                ObsType.MARKER,
                MARKED_BY,
                left,
                metadata=None if left == without_echo(text) else {"redacted": True},
            )
            number = record_observation(db, observation, project, self._group)
            if number is None:  # the same text in the same second
                return newest_observation(db, session, left)
            return number

        return await self._write(record)

    async def pin(self, id: int) -> None:
        """Exclude an observation from expiry. Raises NotFound."""
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
        """Store a task on this machine only; returns its id. `not_before`: Unix seconds."""
        filtered = self._secrets.filtered(prompt).text
        at = self._client.now()
        return await self._write(lambda db: add_task(db, filtered, project, cwd, at, not_before))

    async def _pin(self, number: int, *, is_pinned: bool) -> None:
        def record(db: Any) -> None:
            if number < 1 or not queries.get(db, [number]):
                raise NotFound(f"observation {number} not found")
            target = event_id_of(db, number, self._signer)
            record_pin(db, number, target, self._client.now(), self._group, is_pinned=is_pinned)

        await self._write(record)

    async def _write(self, work: Callable[[Any], Result]) -> Result:
        def run() -> Result:
            with self.database.transaction() as db:
                return work(db)

        return await asyncio.to_thread(run)


def _existing_session(db: Any, session_id: str) -> Session:
    session = own_session_in(db, session_id)
    if session is None:
        raise NotFound(f"session not found: {session_id}")
    return session

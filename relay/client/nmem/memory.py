"""Nmem: what coding agents did, said and wanted kept, on this machine and at the relay.

    async with Nmem("ws://127.0.0.1:7777", key, Path("~/.local/share/rookery/nmem.db")) as nmem:
        await nmem.sync()
        for found in await nmem.search("dedupe"):
            print(found.id, found.content)

MEMORY.md §5. All of it works while the relay is away: records wait in the cache until `sync`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from relay.client.connection import Client
from relay.client.errors import ClientError, Unanswered
from relay.client.link import Pace
from relay.client.nmem import forgetting, reading, rebuilding, sync
from relay.client.nmem.cipher import CacheKey
from relay.client.nmem.database import Database
from relay.client.nmem.forgetting import Purge, Removed
from relay.client.nmem.hooks import take_hook
from relay.client.nmem.importing import Reader, event_id_of, import_file
from relay.client.nmem.reading import Order, Scope
from relay.client.nmem.taking import bind
from relay.client.nmem.writing import (
    begin_session,
    end_session,
    newest_prompt,
    record_observation,
    record_pin,
    record_prompt,
    session_in,
)
from relay.errors import Invalid, UserError
from relay.memory.fields import compact
from relay.memory.nmem.checks import MAX_PROMPT
from relay.memory.nmem.records import Observation, ObsType, Prompt, Session, Source
from relay.memory.nmem.secrets import SecretFilter
from relay.memory.nmem.summary import summary_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self

    from relay.client.nmem.importing import Imported
    from relay.client.nmem.reading import Counts, Found, FoundPrompt
    from relay.client.nmem.sync import Synced
    from relay.client.nmem.taking import Progress
    from relay.memory.nmem.summary import Summary
    from relay.nostr.keys import SecretKey

    Result = TypeVar("Result")

_Option = TypeVar("_Option", Source, Order)

MARKED_BY: Final = "AgentMarker"
"""The `source_event` of a marker (M-29)."""
_RELAY_S: Final = 10.0
"""How long the relay is waited for."""


class NotFound(ClientError):
    """The cache has no such row."""


class Nmem:
    """Used as `async with`. Every method may raise CacheUnusable and OSError."""

    def __init__(
        self, relay: Client | str, signer: SecretKey, db_path: Path | str,
        key: CacheKey | str | None = None, *, secrets: SecretFilter | None = None,
        group: str | None = None,
    ) -> None:
        """`relay`: a URL, or a client that is open for at least as long. `key`: encrypts the cache.
        `group`: whose members may read what is recorded; None: its author and the owner."""
        self._signer = signer
        if isinstance(relay, Client):
            self._client, self._owns_client = relay, False
        else:
            self._client = Client(relay, signer, pace=Pace(), may_be_away=True)
            self._owns_client = True
        self._path = Path(db_path)
        self._key = _cache_key(key)
        self._secrets = SecretFilter() if secrets is None else secrets
        self._group = group
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            self.database = await asyncio.to_thread(Database, self._path, self._key)
            opening.callback(self.database.close)
            await asyncio.to_thread(bind, self.database, self.pubkey)
            if self._owns_client:
                await opening.enter_async_context(self._client)
            self._closing = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._closing.aclose()

    @property
    def url(self) -> str:
        """Of the relay."""
        return self._client.url

    @property
    def pubkey(self) -> str:
        """Who records, 64 hex."""
        return self._signer.pubkey

    @property
    def is_online(self) -> bool:
        return self._client.is_connected

    # -- recorded ---------------------------------------------------------------------------------

    async def hook(self, payload: str | Mapping[str, object]) -> str:
        """Record what a hook of a coding agent says, in JSON or read from it; what the agent is
        told, if anything. Raises Invalid.
        """
        text = payload if isinstance(payload, str) else compact(payload)
        told = await asyncio.to_thread(
            take_hook, self.database, text, None, self._client.now(), Path.home(),
            self._secrets, self._group,
        )  # fmt: skip
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
        said = summary_from(summary) if isinstance(summary, Mapping) else summary
        ended = await self._writing(lambda db: end_session(db, id, now, self._group, said))
        if ended is None:
            raise NotFound(f"session not found: {id}")
        return ended

    async def prompt(self, session: str, text: str, source: str = Source.USER) -> int | None:
        """The number of the new prompt; None: it was there. Raises NotFound, and Invalid for
        another source than `user` and `agent`."""
        said = self._secrets.filtered(text, MAX_PROMPT).text
        prompt = Prompt(session, self._client.now(), _one_of(Source, source, "source"), said)

        def record(db: Any) -> int | None:
            _known(db, session)
            return record_prompt(db, prompt, self._group)

        return await self._writing(record)

    async def observe(
        self, session: str, obs_type: str, content: str, *, source_event: str = "",
        tool_name: str | None = None, file_path: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> int | None:
        """The number of the new observation; None: it was there. Raises NotFound."""
        said = self._secrets.filtered(content)
        facts = {**(metadata or {}), **({"redacted": True} if said.is_redacted else {})}

        def record(db: Any) -> int | None:
            known = _known(db, session)
            observation = Observation(
                session, self._client.now(), obs_type, source_event, said.text, tool_name,
                file_path, facts or None, newest_prompt(db, session),
            )  # fmt: skip
            return record_observation(db, observation, known.project, self._group)

        return await self._writing(record)

    async def mark(self, text: str, project: str = "unknown") -> int:
        """Remember a text for good; the number of its observation.

        It stands in the project's newest session, or in one of its own.
        """

        def record(db: Any) -> int:
            now = self._client.now()
            found = db.execute(
                "SELECT id FROM sessions WHERE project = ? ORDER BY started_at DESC, id LIMIT 1",
                (project,),
            ).fetchone()
            session = str(uuid4()) if found is None else found[0]
            begin_session(db, Session(session, project, now), self._group)
            said = self._secrets.filtered(text)
            observation = Observation(
                session, now, ObsType.MARKER, MARKED_BY, said.text,
                metadata={"redacted": True} if said.is_redacted else None,
            )
            number = record_observation(db, observation, project, self._group)
            if number is None:  # the same text in the same second
                number = db.execute(
                    "SELECT max(id) FROM observations WHERE session_id = ? AND content = ?",
                    (session, said.text),
                ).fetchone()[0]
            return int(number)

        return await self._writing(record)

    async def pin(self, id: int) -> None:
        """Keep an observation for good. Raises NotFound."""
        await self._pin(id, is_pinned=True)

    async def unpin(self, id: int) -> None:
        """Raises NotFound."""
        await self._pin(id, is_pinned=False)

    async def queue_task(
        self, prompt: str, project: str | None = None, cwd: str | None = None,
        not_before: int | None = None,
    ) -> int:
        """Note something to be done, on this machine only; its number. `not_before`: Unix
        seconds."""
        said = self._secrets.filtered(prompt).text
        row = (self._client.now(), not_before, project, cwd, said)

        def note(db: Any) -> int:
            return int(
                db.execute(
                    "INSERT INTO _rk_tasks (queued_at, not_before, project, cwd, prompt)"
                    " VALUES (?, ?, ?, ?, ?)", row,
                ).lastrowid
            )  # fmt: skip

        return await self._writing(note)

    # -- found ------------------------------------------------------------------------------------

    async def search(
        self, query: str, *, project: str | None = None, obs_type: str | None = None,
        limit: int = 20, offset: int = 0, order_by: str = Order.RELEVANCE,
        before: int | None = None, after: int | None = None,
    ) -> list[Found]:
        """Observations with these words (M-26). Times are Unix seconds. Raises Invalid for an
        order that is none."""
        scope, now = Scope(project, obs_type, before, after), self._client.now()
        order = _one_of(Order, order_by, "order_by")
        return await self._reading(
            lambda db: reading.search(db, query, scope, order, now, limit, offset)
        )

    async def get(self, ids: Iterable[int]) -> list[Found]:
        """In the order asked for, without those that are not there."""
        return await self._reading(lambda db: reading.get(db, ids))

    async def timeline(self, anchor: int, before: int = 5, after: int = 5) -> list[Found]:
        """What came before and after an observation, with itself. Raises NotFound."""
        found = await self._reading(lambda db: reading.timeline(db, anchor, before, after))
        if found is None:
            raise NotFound("anchor observation not found")
        return found

    async def summaries(
        self, project: str | None = None, limit: int = 10, *, before: int | None = None,
        after: int | None = None,
    ) -> list[Session]:
        """Sessions that came to something, the newest first."""
        scope = Scope(project=project, before=before, after=after)
        return await self._reading(lambda db: reading.summaries(db, scope, limit))

    async def recent(
        self, project: str | None = None, limit: int = 30, *, before: int | None = None,
        after: int | None = None,
    ) -> list[Found]:
        """What is worth most to who works on the project, of each file the best (M-27)."""
        scope, now = Scope(project=project, before=before, after=after), self._client.now()
        return await self._reading(lambda db: reading.recent(db, scope, now, limit))

    async def trace(
        self, session_id: str, *, before: int | None = None, after: int | None = None
    ) -> tuple[Session, list[FoundPrompt], list[Found]]:
        """A session, what was said and what was done in it. Raises NotFound."""
        scope = Scope(before=before, after=after)
        found = await self._reading(lambda db: reading.trace(db, session_id, scope))
        if found is None:
            raise NotFound(f"session not found: {session_id}")
        return found

    async def file_history(
        self, file_path: str, limit: int = 10, *, before: int | None = None,
        after: int | None = None,
    ) -> list[Found]:
        """What was done to a file, the newest first."""
        scope = Scope(before=before, after=after)
        return await self._reading(lambda db: reading.file_history(db, file_path, scope, limit))

    async def commits_of(self, file_path: str, limit: int = 50) -> list[Found]:
        """Commits and pushes of sessions that had changed the file, the newest first."""
        return await self._reading(lambda db: reading.commits_of(db, file_path, limit))

    async def context(self, project: str, before: int | None = None) -> str:
        """What an agent on the project is told (M-28); `before`: was told then."""
        now = self._client.now()
        return await self._reading(lambda db: reading.context_of(db, project, now, before))

    async def counts(self) -> Counts:
        return await self._reading(reading.counts)

    async def last_session(self) -> Session | None:
        """The one that began last."""
        return await self._reading(reading.last_session)

    async def deletions_waiting(self) -> int:
        """Of what was purged, how much the relay was not told yet: as requests, of many each."""
        return await self._reading(reading.deletions_waiting)

    async def refused(self) -> list[tuple[str, str]]:
        """(`d`, the relay's reason) of what it does not take."""
        return await self._reading(reading.refused)

    async def authors(self) -> list[str]:
        """Whose memory it is, 64 hex each."""
        found = await self._reading(reading.authors)
        return sorted({author or self.pubkey for author in found})

    # -- kept alike -------------------------------------------------------------------------------

    async def sync(self, progress: Progress | None = None) -> Synced:
        """Send what waits, fetch what others wrote. Raises UserError when the relay is away."""
        await self._relay_there()
        sent = await sync.send(self._client, self._signer, self.database, progress)
        fetched = await sync.fetch(self._client, self._signer, self.database, progress)
        return replace(sent, fetched=fetched.fetched, deleted=fetched.deleted)

    async def send(self, wait_s: float | None = None) -> Synced:
        """Send what waits, and fetch nothing. Raises UserError when the relay is away, for so
        long."""
        await self._relay_there(wait_s)
        return await sync.send(self._client, self._signer, self.database)

    async def rebuild(self, progress: Progress | None = None) -> int:
        """Make the cache anew from the relay; the number of its records. Raises UserError when
        the relay is away."""
        await self._relay_there()
        await sync.send(self._client, self._signer, self.database)
        events = await sync.everything(self._client, self._signer, progress)
        owners = await sync.owners_at(self._client)
        return await asyncio.to_thread(
            rebuilding.rebuild, self.database, self._key, events, self.pubkey, owners
        )

    async def import_file(
        self, path: Path | str, key: CacheKey | str | None = None,
        progress: Progress | None = None,
    ) -> Imported:
        """Take in a database of nmem itself (M-12). Raises CacheUnusable."""
        reader = Reader(self._signer, self._secrets, self._group)
        return await asyncio.to_thread(
            import_file, self.database, Path(path), _cache_key(key), reader, self._client.now(),
            progress,
        )

    async def sweep(self, now: int | None = None) -> Removed:
        """What is too old leaves the cache (M-25)."""
        at = self._client.now() if now is None else now
        return await asyncio.to_thread(forgetting.sweep, self.database, at)

    async def purge(
        self, *, before: int | None = None, project: str | None = None,
        session: str | None = None, id: int | None = None, obs_type: str | None = None,
        older_than: int | None = None, search: str | None = None, confirm: bool = False,
    ) -> Removed:
        """What oneself recorded and all of this holds for, is deleted, also at the relay (soon);
        without `confirm` it is only counted. `older_than`: seconds. Raises UserError without any
        condition."""
        now = self._client.now()
        bounds = [time for time in (before, None if older_than is None else now - older_than)
                  if time is not None]  # fmt: skip
        wanted = Purge(min(bounds, default=None), project, session, id, obs_type, search)
        if not wanted.is_bounded:
            raise UserError("say what to purge: a purge without a condition would take all", code=2)

        def run(db: Any) -> Removed:
            return forgetting.purge(db, wanted, now, is_confirmed=confirm)

        return await (self._writing(run) if confirm else self._reading(run))

    async def rebuild_index(self) -> None:
        """Make the full-text index anew."""

        def run(db: Any) -> None:
            db.execute("INSERT INTO observations_fts(observations_fts) VALUES ('rebuild')")
            db.execute("INSERT INTO prompts_fts(prompts_fts) VALUES ('rebuild')")

        await self._writing(run)

    # -- inside -----------------------------------------------------------------------------------

    async def _pin(self, number: int, *, is_pinned: bool) -> None:
        def record(db: Any) -> None:
            row = db.execute(
                "SELECT 1 FROM _rk_observations WHERE observation_id = ?", (number,)
            ).fetchone()
            if row is None:
                raise NotFound(f"observation {number} not found")
            target = event_id_of(db, number, self._signer)
            record_pin(
                db, number, target, self._client.now(), self._group, is_pinned=is_pinned
            )

        await self._writing(record)

    async def _relay_there(self, wait_s: float | None = None) -> None:
        try:
            await self._client.connected(deadline_s=_RELAY_S if wait_s is None else wait_s)
        except Unanswered:
            raise UserError(
                f"{self._client.url} does not answer; what is recorded waits for it in"
                f" {self._path}"
            ) from None
        if self._client.login_refusal:
            raise UserError(
                f"{self._client.url} refused the login of {self._signer.npub}:"
                f" {self._client.login_refusal}"
            )

    async def _reading(self, work: Callable[[Any], Result]) -> Result:
        def run() -> Result:
            with self.database.reading() as db:
                return work(db)

        return await asyncio.to_thread(run)

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


def _cache_key(key: CacheKey | str | None) -> CacheKey | None:
    return CacheKey(key) if isinstance(key, str) else key


def _one_of(options: type[_Option], value: str, name: str) -> _Option:
    try:
        return options(value)
    except ValueError:
        raise Invalid(f"{name} must be {' or '.join(options)}") from None

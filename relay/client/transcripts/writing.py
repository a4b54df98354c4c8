"""Transcripts: sessions on their way to a relay. What is stored is not sent again."""

from __future__ import annotations

import asyncio
import platform
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relay.client.bulk_publish import async_iter
from relay.client.errors import Incomparable, PublishRefused, QueryClosed, Unanswered
from relay.client.information import limit_in
from relay.client.transcripts.envelopes import MAX_INNER, room_inside
from relay.client.transcripts.files import session_file
from relay.client.transcripts.reading import Reading
from relay.client.transcripts.results import Delivered, ImportResult
from relay.client.transcripts.telling import Telling, pieces_of, some
from relay.client.writer import Outcome, Written
from relay.errors import Invalid, Prefix
from relay.memory.transcripts.lines import opening, raw_lines
from relay.memory.transcripts.plan import CHUNK, Paths, Plan
from relay.memory.transcripts.records import (
    SessionState,
    Status,
    changed,
    state_draft,
    state_of,
)
from relay.memory.transcripts.stripping import KEEP_ALL
from relay.memory.transcripts.transcript import Transcript
from relay.memory.unreadable import next_created_at
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterable,
        AsyncIterator,
        Callable,
        Collection,
        Iterator,
        Sequence,
    )

    from relay.client.transcripts.files import SessionFile
    from relay.memory.draft import Draft
    from relay.memory.transcripts.stripping import Stripping
    from relay.nostr.event import Event

_BATCH: Final = 512
"""Events that are signed in one go, in a thread."""
_ONE_BY_ONE: Final = 64
"""Lines of a running session that are on their way at a time."""
_NARROW: Final = 400_000
"""A relay that takes messages of so many bytes takes any piece: one byte of a text may be six."""
_PAUSE_S: Final = 0.1
_ABOUT_WHO: Final = frozenset({Prefix.RESTRICTED, Prefix.BLOCKED, Prefix.AUTH_REQUIRED})


@dataclass(frozen=True, slots=True)
class _Compared:
    """What a relay has of a file."""

    lacking: Collection[bytes] | None
    """Ids; None: everything."""
    known: int
    others: int
    """See ImportResult."""


_NOTHING_THERE: Final = _Compared(None, 0, 0)


@dataclass(slots=True)
class _There:
    """What envelopes hold."""

    ids: set[bytes] = field(default_factory=set)
    introduced: set[str] = field(default_factory=set)
    """Sessions of which something was said."""

    def add(self, event: Event) -> None:
        self.ids.add(bytes.fromhex(event.id))
        if event.kind == kinds.SESSION_STATE:
            self.introduced.add(event.d)


class Transcripts(Reading):
    """Sessions of coding agents, in MEMORY.md's own forms (§3)."""

    _there: _There | None = None
    """None: not asked for yet."""

    async def import_file(
        self,
        path: Path | str,
        session: str | None = None,
        paths: str = Paths.TOKENS.value,
        group: str | None = None,
        chunk: int = CHUNK,
        *,
        max_inner: int | None = None,
        stripping: Stripping = KEEP_ALL,
    ) -> ImportResult:
        """All of a file; what the relay has of it is not sent again (D-14).

        `paths`: `token` or `raw`. `max_inner`: bytes of an event inside an envelope. Raises
        Invalid for other paths, UserError for what is no session file; else as `import_session`.
        """
        try:
            spelt = Paths(paths)
        except ValueError:
            raise Invalid("paths: must be token or raw") from None
        file = await asyncio.to_thread(session_file, Path(path))
        plan = Plan(session, group, spelt, chunk, None, stripping)
        return await self.import_session(file, await self.fitted(plan, max_inner))

    async def import_session(
        self, file: SessionFile, plan: Plan, told: Callable[[int], None] = lambda read: None
    ) -> ImportResult:
        """… with a plan that fits the relay (`fitted`). `told`: how many bytes are done.

        Raises PublishRefused when the relay takes nothing from this key; Unanswered: begin again,
        it goes on where it was.
        """
        session = plan.session or file.session
        telling = Telling(file, self._signer, plan)
        compared = await self._compared(telling, session)
        sent = Delivered()
        if compared.lacking is None or compared.lacking:
            events = telling.events(compared.lacking)
            # Alone: who may not write hears it once, not for each line.
            await self._send(await asyncio.to_thread(some, events, 1), sent)
            _checked(sent)
            await self._send(_ahead(events, lambda: told(telling.tally.read)), sent)
        tally = telling.tally
        told(tally.read)
        with suppress(PublishRefused):  # the session is there all the same
            await self.introduce(session, tally.title, file.opening.base or "", plan.group)
        return ImportResult(
            session,
            tally.lines,
            tally.notes,
            tally.archive,
            sent.stored,
            compared.known + sent.duplicates,
            tuple(sent.refused),
            compared.others,
        )

    def convert(
        self, data: bytes, stem: str, plan: Plan | None = None, *, now_ms: int = 0
    ) -> list[Draft]:
        """The events of a file in memory, as `import_file` makes them. Asks no relay.

        `now_ms`: the time of a file that has none.
        """
        script = Transcript(
            self.pubkey, opening(raw_lines(data)), stem=stem, now_ms=now_ms, plan=plan
        )
        return [draft for raw in raw_lines(data) for draft in script.drafts(raw)]

    async def fitted(self, plan: Plan, max_inner: int | None = None) -> Plan:
        """The plan, with events no larger than this relay and an envelope take (D-17, D-30)."""
        most = await self._most_bytes()
        if self._is_sealed:
            inner = MAX_INNER if max_inner is None else max_inner
            return replace(plan, max_event=inner if most is None else min(inner, room_inside(most)))
        if most is None or most >= _NARROW:
            return plan
        return replace(plan, max_event=most - len('["EVENT",]'))

    async def deliver(self, drafts: Sequence[Draft]) -> Delivered:
        """Lines of a running session, which wait on disk while the relay is away (with a folder).

        Raises PublishRefused when the relay takes nothing from this key.
        """
        if len(drafts) > _ONE_BY_ONE and self.is_online:
            done = Delivered()
            events = await asyncio.to_thread(lambda: [self.signed(draft) for draft in drafts])
            with suppress(Unanswered):  # all of it goes the slow way, what the relay has too
                await self._send(events, done)
                return _checked(done)
        done = Delivered()
        for at in range(0, len(drafts), _ONE_BY_ONE):
            few = [self._as_sent(self.signed(draft)) for draft in drafts[at : at + _ONE_BY_ONE]]
            answers = await asyncio.gather(*map(self._writer.send, few), return_exceptions=True)
            for answer in answers:
                match answer:
                    case Written(_, Outcome.STORED):
                        done.stored += 1
                    case Written(_, Outcome.DUPLICATE):
                        done.duplicates += 1
                    case Written(_, Outcome.QUEUED):
                        done.queued += 1
                    case PublishRefused():
                        done.refused.append(answer)
                    case BaseException():
                        raise answer
            _checked(done)
        return done

    async def settled(self, patience_s: float) -> None:
        """Until nothing waits on disk any more, or the relay is away, or so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                # Asked again and again: other programs send what is in that file too.
                while self.is_online and await self.waiting():  # noqa: ASYNC110
                    await asyncio.sleep(_PAUSE_S)

    async def state(self, session: str, **fields: Any) -> SessionState:
        """Say how a session is: fields of SessionState, the others as they were (D-27). `status`
        also by its name. Raises Invalid."""
        last = await self._last_state(session)
        known = None if last is None else state_of(last)
        if not isinstance(known, SessionState):
            known = SessionState(session)
        said = changed(known, fields)
        await self._say(said, last, None if last is None else last.tag("h"))
        return said

    async def introduce(
        self, session: str, title: str, cwd: str, group: str | None, status: Status = Status.DONE
    ) -> None:
        """Say what a session is, unless anything was said of it. Raises PublishRefused."""
        if self._is_sealed:
            is_known = session in (await self._sealed_once()).introduced
        else:
            is_known = await self._last_state(session) is not None
        if not is_known:
            state = SessionState(
                session,
                title=title,
                cwd=cwd,
                status=status,
                hostname=platform.node(),
                home_dir=str(Path.home()),
                backend="claude",
                cli_session=session,
            )
            await self._say(state, None, group)

    def _as_sent(self, event: Event) -> Event:
        return self._envelopes.sealed(event, self._client.now()) if self._is_sealed else event

    async def _send(self, events: Sequence[Event] | AsyncIterable[Event], done: Delivered) -> None:
        if self._is_sealed:
            events = self._all_sealed(events)
        report = await self._client.publish_many(events)
        done.stored += report.stored
        done.duplicates += report.duplicates
        done.refused += report.refused

    async def _all_sealed(
        self, events: Sequence[Event] | AsyncIterable[Event]
    ) -> AsyncIterator[Event]:
        async for event in async_iter(events):
            yield self._as_sent(event)
            if self._there is not None:
                self._there.add(event)

    async def _compared(self, telling: Telling, session: str) -> _Compared:
        wanted: dict[str, Any] = {
            "kinds": [kinds.CONVERSATION_NOTE, kinds.SOURCE_DATA],
            "authors": [self.pubkey],
        }
        if self._is_sealed:
            there = (await self._sealed_once()).ids
            if not there:
                return _NOTHING_THERE
            ours = frozenset(pieces_of((await asyncio.to_thread(telling.ids)).ids))
            return _Compared(ours - there, len(ours & there), 0)
        if not await self._client.query({**wanted, "#d": [session], "limit": 1}):
            return _NOTHING_THERE
        told = await asyncio.to_thread(telling.ids)
        wanted["#d"] = sorted(told.sessions)
        try:
            items = await asyncio.to_thread(told.items)
            difference = await self._client.reconcile(wanted, items)
        except (Incomparable, QueryClosed):
            there = {bytes.fromhex(event.id) async for event in self._client.query_all(wanted)}
            ours = frozenset(pieces_of(told.ids))
            return _Compared(ours - there, len(ours & there), len(there - ours))
        known = len(told) - len(difference.have)
        return _Compared(difference.have, known, len(difference.need))

    async def _sealed_once(self) -> _There:
        """What one's envelopes hold: fetched once, since that takes all of them, then kept up."""
        if self._there is None:
            there = _There()
            for event in await self._inside({"authors": [self.pubkey]}):
                there.add(event)
            self._there = there
        return self._there

    async def _last_state(self, session: str) -> Event | None:
        wanted = {"kinds": [kinds.SESSION_STATE], "authors": [self.pubkey], "#d": [session]}
        found = await (self._inside(wanted) if self._is_sealed else self.read(wanted))
        return max(found, key=lambda event: event.created_at, default=None)

    async def _say(self, state: SessionState, last: Event | None, group: str | None) -> None:
        def said(at: int) -> Draft:
            draft = state_draft(state, at)
            return draft if group is None else draft._replace(tags=[*draft.tags, ["h", group]])

        if self._is_sealed:
            at = next_created_at(self._client.now(), None if last is None else last.created_at)
            event = self.signed(said(at))
            await self._writer.send(self._as_sent(event))
            if self._there is not None:
                self._there.add(event)
        else:
            if last is not None:
                self._writer.note_stored(last)
            await self.write(kinds.SESSION_STATE, state.session, said)

    async def _most_bytes(self) -> int | None:
        """Of a message; None: the relay does not say."""
        return limit_in(await self._information(), "max_message_length")


def _checked(done: Delivered) -> Delivered:
    """Raises a refusal that holds for all that this key writes."""
    for refusal in done.refused:
        if refusal.prefix in _ABOUT_WHO:
            raise refusal
    return done


async def _ahead(events: Iterator[Event], told: Callable[[], None]) -> AsyncIterator[Event]:
    """Signed in a thread, a batch ahead of what is sent."""
    coming = asyncio.create_task(asyncio.to_thread(some, events, _BATCH))
    try:
        while batch := await coming:
            coming = asyncio.create_task(asyncio.to_thread(some, events, _BATCH))
            for event in batch:
                yield event
            told()
    finally:
        await asyncio.wait([coming])  # a thread cannot be stopped; it ends with its batch

"""Transcripts: sends sessions to a relay. Stored events are not sent again."""

from __future__ import annotations

import asyncio
import platform
import sys
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from relay.client.bulk_publish import async_iter
from relay.client.errors import (
    ABOUT_AUTHOR,
    TEMPORARY,
    ClientError,
    Incomparable,
    PublishRefused,
    QueryClosed,
    Unanswered,
)
from relay.client.information import limit_in
from relay.client.paging import MAX_READ_BYTES
from relay.client.responses import filters_of
from relay.client.transcripts.envelopes import MAX_INNER, room_inside
from relay.client.transcripts.files import session_file
from relay.client.transcripts.reader import TranscriptsReader
from relay.client.transcripts.results import Delivered, ImportResult
from relay.client.transcripts.session_events import SessionEvents, split_ids, take, title_of
from relay.client.writer import Outcome, Written
from relay.errors import Invalid
from relay.memory.draft import Draft
from relay.memory.transcripts.classic import stored_thread
from relay.memory.transcripts.copies import line_in
from relay.memory.transcripts.lines import Eol, raw_lines, session_facts
from relay.memory.transcripts.moved import without_branch
from relay.memory.transcripts.paths import is_absolute
from relay.memory.transcripts.plan import CHUNK, Layout, Paths, Plan
from relay.memory.transcripts.records import (
    SessionState,
    Status,
    changed,
    state_draft,
    state_of,
)
from relay.memory.transcripts.sources import Source, source_of
from relay.memory.transcripts.stripping import HIDE_MACHINE, KEEP_ALL, Part
from relay.memory.transcripts.transcript import Transcript
from relay.memory.unreadable import next_created_at
from relay.nostr import kinds
from relay.nostr.event import Address

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterable,
        AsyncIterator,
        Callable,
        Collection,
        Iterator,
        Mapping,
        Sequence,
    )

    from relay.client.transcripts.files import SessionFile
    from relay.client.transcripts.session_events import Copied
    from relay.memory.transcripts.plan import StoredThread
    from relay.memory.transcripts.stripping import Stripping
    from relay.nostr.event import Event

    Line = TypeVar("Line", Draft, Event)

_BATCH: Final = 512
"""Events signed per batch, in a thread."""
_WINDOW: Final = 64
"""Lines of a running session in flight."""
_ANY_CHUNK: Final = 400_000
"""A relay with this message limit accepts any chunk: one byte of text may become six."""
_PAUSE_S: Final = 0.1
_FEW_NOTES: Final = 20
"""Newest notes read to detect the layout: a line rarely has more notes, of which only one has
`source-data`."""
_LOOKED_UP: Final = 200
"""Lines per query."""
_LINES: Final = (kinds.CONVERSATION_NOTE, kinds.SOURCE_DATA)
_DELETED_AT_ONCE: Final = 500
"""Events that one request to delete names."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What a relay has of a file."""

    missing: Collection[bytes] | None
    """Ids; None: all."""
    known: int
    others: int
    """See ImportResult."""

    def beside(self, notes: int) -> _Comparison:
        """Counts `notes` more as known: stored notes for which the file's plan makes no events."""
        return _Comparison(self.missing, self.known + notes, max(self.others - notes, 0))


_NOTHING_STORED: Final = _Comparison(None, 0, 0)


@dataclass(slots=True)
class _EnvelopeContent:
    """Content of one's envelopes."""

    ids: set[bytes] = field(default_factory=set)
    states: dict[str, Event] = field(default_factory=dict)
    """Session → its newest state."""

    def add(self, event: Event) -> None:
        self.ids.add(bytes.fromhex(event.id))
        if event.kind == kinds.SESSION_STATE:
            known = self.states.get(event.d)
            if known is None or known.created_at < event.created_at:
                self.states[event.d] = event


class Transcripts(TranscriptsReader):
    """Sessions of coding agents at a relay: see the package."""

    _envelope_content: _EnvelopeContent | None = None
    """None: not fetched yet."""
    _named: dict[str, str] | None = None
    """See `note_renamed`; as many as files are imported or followed. None: no file was."""

    def note_renamed(self, session: str, named: str) -> None:
        """A file whose lines name the session `named` is stored as `session`, because that id is
        another file's. What was forgotten of `named` is not sent as `session` either. Not for an
        id that the user gave."""
        if self._named is None:
            self._named = {}
        self._named[session] = named

    def _named_by(self, session: str) -> str:
        """The session that the lines name of what is stored as `session`."""
        return session if self._named is None else self._named.get(session, session)

    async def import_file(
        self,
        path: Path | str,
        session: str | None = None,
        paths: str = Paths.TOKENS.value,
        group: str | None = None,
        chunk: int = CHUNK,
        *,
        max_inner: int | None = None,
        stripping: Stripping | None = None,
        layout: Layout = Layout.ARCHIVE,
    ) -> ImportResult:
        """Import a file; events the relay has are not sent again (D-14).

        `paths`: `token` or `raw`. `max_inner`: bytes of an event inside an envelope. `stripping`:
        None hides the machine from a group. Raises Invalid for other `paths`, UserError for an
        invalid session file; else as `import_session`.
        """
        try:
            path_style = Paths(paths)
        except ValueError:
            raise Invalid("paths: must be token or raw") from None
        file = await asyncio.to_thread(session_file, Path(path))
        if session is None and file.is_of_sub_agent:
            session = file.path.stem
            self.note_renamed(session, file.session)
        if stripping is None:
            stripping = KEEP_ALL if group is None else HIDE_MACHINE
        homes = (str(Path.home()),)
        plan = Plan(session, group, path_style, chunk, None, stripping, layout, homes=homes)
        return await self.import_session(file, await self.fitted(plan, max_inner))

    async def import_session(
        self, file: SessionFile, plan: Plan, on_progress: Callable[[int], None] = lambda read: None
    ) -> ImportResult:
        """Import with a plan that fits the relay (`fitted`). `on_progress`: called with the bytes
        done.

        Raises PublishRefused if the relay accepts nothing from this key; Unanswered: call it again
        to continue.
        """
        session = plan.session or file.session
        plan = replace(plan, origin=await self.origin_of(session))
        if (stored := await self.thread_of(session, plan.group)) is not None:
            plan = replace(plan, layout=Layout.CLASSIC, stored=stored)
        session_events = SessionEvents(file, self._signer, plan)
        is_chosen = self._named_by(session) != file.session  # by the user
        copied = {} if is_chosen else session_events.copied
        compared = await self._compared(session_events, session)
        if stored is not None:
            compared = compared.beside(stored.notes)
        compared = await self._without_moved(session_events, compared)
        sent = Delivered()
        if compared.missing is None or compared.missing:
            events = session_events.events(compared.missing)
            async with (
                aclosing(_ahead(events, lambda: on_progress(session_events.tally.read))) as ahead,
                aclosing(self._not_forgotten(ahead, sent, copied)) as left,
            ):
                # The first event alone: a key without permission gets one refusal instead of one
                # per line.
                if (first := await anext(left, None)) is not None:
                    await self._send([first], sent)
                    _raise_author_refusal(sent)
                    # Before the other lines: an interrupted import may go on in another directory.
                    title = await asyncio.to_thread(session_events.title)
                    with suppress(PublishRefused):  # the session is imported anyway
                        cwd = file.opening.base or ""
                        await self.introduce(session, title, cwd, plan, copied=copied)
                    await self._send(left, sent)
        tally = session_events.tally
        on_progress(tally.read)
        if (custom_title := title_of(tally.custom_title)) and not sent.forgotten:
            await self._name(session, custom_title)
        return ImportResult(
            session,
            tally.lines,
            tally.notes,
            tally.archive,
            sent.stored,
            compared.known + sent.duplicates,
            tuple(sent.refused),
            compared.others,
            0 if Part.SECRETS in plan.stripping.parts else tally.secrets,
            sent.forgotten,
        )

    def convert(
        self, data: bytes, stem: str, plan: Plan | None = None, *, now_ms: int = 0
    ) -> list[Draft]:
        """The events of a file in memory, as `import_file` makes them. Needs no relay.

        `now_ms`: time of a file without times.
        """
        converter = Transcript(
            self.pubkey, session_facts(raw_lines(data)), stem=stem, now_ms=now_ms, plan=plan
        )
        return [draft for raw in raw_lines(data) for draft in converter.drafts(raw)]

    async def fitted(self, plan: Plan, max_inner: int | None = None) -> Plan:
        """The plan, limited to event sizes that relay and envelopes accept (D-17, D-30)."""
        most = await self._max_message()
        if self._uses_envelopes:
            inner = MAX_INNER if max_inner is None else max_inner
            return replace(plan, max_event=inner if most is None else min(inner, room_inside(most)))
        if most is None or (most >= _ANY_CHUNK and plan.layout is Layout.ARCHIVE):
            return plan
        return replace(plan, max_event=most - len('["EVENT",]'))

    async def deliver(
        self, drafts: Sequence[Draft], copied: Mapping[str, Copied] = MappingProxyType({})
    ) -> Delivered:
        """Send lines of a running session; queued on disk while offline (with a folder). `copied`:
        see `Tally`.

        Raises PublishRefused if the relay accepts nothing from this key.
        """
        done = Delivered()
        if self.is_online:  # else they are queued, and looked at before they are sent
            try:
                kept = self._not_forgotten(async_iter(drafts), done, copied)
                drafts = [line async for line in kept]
            except ClientError:
                done = Delivered()
        forgotten = done.forgotten
        left: Iterator[Event] = (self._outgoing(self.signed(draft)) for draft in drafts)
        if len(drafts) > _WINDOW and self.is_online:
            events = await asyncio.to_thread(lambda: [self.signed(draft) for draft in drafts])
            try:
                await self._send(events, done)
            except Unanswered:  # each event is sent through the spool
                done = Delivered(forgotten=forgotten)
            else:
                _raise_author_refusal(done)
                left = iter(_refused_for_now(done))
        while few := take(left, _WINDOW):
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
            _raise_author_refusal(done)
        return done

    async def wait_until_sent(self, patience_s: float) -> None:
        """Wait until nothing is queued, the relay is unreachable, or `patience_s` has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                # Polled: other programs send from the same spool.
                while self.is_online and await self.waiting():  # noqa: ASYNC110
                    await asyncio.sleep(_PAUSE_S)

    async def state(self, session: str, **fields: Any) -> SessionState:
        """Publish the state of a session: given fields of SessionState, others unchanged (D-27).
        `status` may be its name. Raises Invalid."""
        last = await self._last_state(session)
        known = None if last is None else state_of(last)
        if not isinstance(known, SessionState):
            known = SessionState(session)
        draft_at = changed(known, fields)
        await self._publish_state(draft_at, last, None if last is None else last.tag("h"))
        return draft_at

    async def introduce(
        self,
        session: str,
        title: str,
        cwd: str,
        plan: Plan,
        status: Status = Status.DONE,
        copied: Collection[str] = (),
    ) -> None:
        """Publish the state of a session unless there is one; if it or a session it was `copied`
        from was forgotten, without the title, which may be of those lines. Raises
        PublishRefused."""
        hides = Part.MACHINE in plan.stripping.parts
        if await self._last_state(session) is None:
            asks = not self._uses_envelopes
            if asks and await self._forgotten_until(session, *copied) is not None:
                title = ""
            state = SessionState(
                session,
                title=title,
                cwd="" if hides else cwd,
                status=status,
                hostname="" if hides else platform.node(),
                home_dir="" if hides else str(Path.home()),
                backend="claude",
                cli_session=self._named_by(session),
            )
            await self._publish_state(state, None, plan.group)

    async def _name(self, session: str, custom_title: str) -> None:
        """Unless somebody has named it already."""
        last = await self._last_state(session)
        known = None if last is None else state_of(last)
        if isinstance(known, SessionState) and known.custom_title is None:
            with suppress(PublishRefused):
                await self.state(session, custom_title=custom_title)

    async def forget(self, session: str, events: Sequence[Event]) -> PublishRefused | None:
        """Delete these of one's own events, which should be all of the session's. Whatever this key
        wrote of it until now is not sent again under this id, from any folder or in any layout:
        those would be other events. Envelopes are neither deleted nor kept out. Raises as `delete`
        does. Returns the refusal of what keeps the session out when its group has ended, or when
        this key has left it."""
        # A clock ahead may have dated its lines.
        at = max([self._client.now(), *(event.created_at for event in events)])
        tags = [["a", self._state_address(session)], ["k", str(kinds.SESSION_STATE)]]
        states = [event for event in events if event.kind == kinds.SESSION_STATE]
        of_group = [["e", state.id] for state in states if state.tag("h") is not None]
        await self.publish(Draft(kinds.DELETION, [*of_group, *tags], "", at))
        refusal = None
        if of_group:
            # A relay may keep a request in the group of what it deletes, to end with it. This one
            # deletes nothing any more. It is not the only one: of a key that the relay no longer
            # knows it may be refused.
            try:
                await self.publish(Draft(kinds.DELETION, tags, "", at))
            except PublishRefused as refused:
                refusal = refused
        for start in range(0, len(events), _DELETED_AT_ONCE):
            await self.delete(events[start : start + _DELETED_AT_ONCE])
        return refusal

    def _state_address(self, session: str) -> str:
        return str(Address(self.pubkey, kinds.SESSION_STATE, session))

    async def _forgotten_until(self, *sessions: str) -> int | None:
        """Date of the newest request to delete this key's state of one of the sessions, or of one
        that its file names (`note_renamed`): `forget` sends one. Raises QueryClosed, Unanswered."""
        ids = {*sessions, *map(self._named_by, sessions)}
        wanted = {
            "kinds": [kinds.DELETION],
            "authors": [self.pubkey],
            "#a": sorted(map(self._state_address, ids)),
        }
        found = await self.queued(wanted)
        try:
            query = self._query if self._folder is None else self._query_while_connected
            found += await query(filters_of((wanted,)))
        except QueryClosed as closed:
            if closed.prefix in TEMPORARY:
                raise
            # A key that may write only.
        return max((deletion.created_at for deletion in found), default=None)

    async def _not_forgotten(
        self, lines: AsyncIterable[Line], done: Delivered, copied: Mapping[str, Copied]
    ) -> AsyncGenerator[Line]:
        """Lines written after their session was forgotten, and the one that they were `copied`
        from; the others are counted. Those for envelopes are all left: the question would name
        their session. Raises QueryClosed, Unanswered."""
        until: dict[str, int | None] = {}
        asks = not self._uses_envelopes
        async for line in lines:
            origins: dict[str, Copied] = dict(copied)  # a thread may add to it
            for id_ in (line.d, *origins):  # a line may name another session than its file
                if id_ not in until:
                    until[id_] = await self._forgotten_until(id_) if asks else None
            if _is_after(line, until[line.d]) and all(
                _is_after(line, each.until(until[id_])) for id_, each in origins.items()
            ):
                yield line
            else:
                done.forgotten += 1

    async def _unsendable(self, waiting: Sequence[Event]) -> set[str]:
        lines = [event for event in waiting if event.kind in _LINES]
        until = {d: await self._forgotten_until(d) for d in {line.d for line in lines}}
        return {line.id for line in lines if not _is_after(line, until[line.d])}

    async def origin_of(self, session: str) -> str | None:
        """The directory of a session's first import by this key, if known."""
        last = await self._last_state(session)
        state = None if last is None else state_of(last)
        cwd = state.cwd.rstrip("/") if isinstance(state, SessionState) else ""
        return cwd if is_absolute(cwd) else None  # other programs may write `.`

    async def thread_of(self, session: str, group: str | None) -> StoredThread | None:
        """The session's notes, if this key stored it in the classic layout only."""
        wanted: dict[str, Any] = {"authors": [self.pubkey], "#d": [session]}
        archive = {**wanted, "kinds": [kinds.SOURCE_DATA], "limit": 1}
        if self._uses_envelopes or await self._client.query(archive):
            return None
        wanted["kinds"] = [kinds.CONVERSATION_NOTE]
        some = await self._client.query({**wanted, "limit": _FEW_NOTES})
        if not any(note.tag("source-data") for note in some):
            return None
        notes = [note async for note in self._client.query_all(wanted) if note.tag("h") == group]
        return stored_thread(notes)

    async def without_moved(self, drafts: Sequence[Draft]) -> list[Draft]:
        """The drafts without lines that are stored as they were on another branch.

        Notes do not contain the branch, so a line whose note is known is looked up by that note.
        """
        of_note: dict[str, list[Draft]] = {}
        for draft in drafts:
            if draft.kind == kinds.SOURCE_DATA and draft.tags[0][0] == "e":
                of_note.setdefault(draft.tags[0][1], []).append(draft)
        known: set[int] = set()
        ids = list(of_note)
        step = self._looked_up
        for at in range(0, len(ids), step):
            wanted = {
                "kinds": [kinds.SOURCE_DATA],
                "authors": [self.pubkey],
                "#e": ids[at : at + step],
            }
            read = self._in_envelopes if self._uses_envelopes else self.read
            stored: dict[str, list[Source]] = {}
            for event in await read(wanted):
                source = source_of(event)
                if isinstance(source, Source):
                    stored.setdefault(event.tag("e") or "", []).append(source)
            for id_, sources in stored.items():
                ours = "".join(map(_source_data, of_note[id_]))
                line, faults = line_in(sources)
                if line.eol is Eol.NONE and _eol(of_note[id_][0]) is not Eol.NONE:
                    continue  # it was the last line once
                if not faults and without_branch(line.text) == without_branch(ours):
                    known |= {id(draft) for draft in of_note[id_]}
        return [draft for draft in drafts if id(draft) not in known]

    @property
    def _looked_up(self) -> int:
        """Lines per query; no limit with envelopes, because each query must fetch all of them."""
        return sys.maxsize if self._uses_envelopes else _LOOKED_UP

    async def _without_moved(
        self, session_events: SessionEvents, compared: _Comparison
    ) -> _Comparison:
        missing = compared.missing
        if not missing or not compared.known:
            return compared
        lines = session_events.lines_of_known_notes(missing)
        known: set[bytes] = set()
        while some := await asyncio.to_thread(lambda: list(islice(lines, self._looked_up))):
            drafts = [draft for line in some for draft in line]
            left = {id(draft) for draft in await self.without_moved(drafts)}
            known |= {session_events.id_of(draft) for draft in drafts if id(draft) not in left}
        others = max(compared.others - len(known), 0)
        return _Comparison(set(missing) - known, compared.known + len(known), others)

    def _outgoing(self, event: Event) -> Event:
        return self._envelopes.sealed(event, self._client.now()) if self._uses_envelopes else event

    async def _send(self, events: Sequence[Event] | AsyncIterable[Event], done: Delivered) -> None:
        if self._uses_envelopes:
            events = self._in_new_envelopes(events)
        report = await self._client.publish_many(events)
        done.stored += report.stored
        done.duplicates += report.duplicates
        done.refused += report.refused

    async def _in_new_envelopes(
        self, events: Sequence[Event] | AsyncIterable[Event]
    ) -> AsyncIterator[Event]:
        async for event in async_iter(events):
            yield self._outgoing(event)
            if self._envelope_content is not None:
                self._envelope_content.add(event)

    async def _compared(self, session_events: SessionEvents, session: str) -> _Comparison:
        wanted: dict[str, Any] = {
            "kinds": [kinds.CONVERSATION_NOTE, kinds.SOURCE_DATA],
            "authors": [self.pubkey],
        }
        if self._uses_envelopes:
            stored_ids = (await self._load_envelope_content()).ids
            if not stored_ids:
                return _NOTHING_STORED
            ours = frozenset(split_ids((await asyncio.to_thread(session_events.ids)).ids))
            return _Comparison(ours - stored_ids, len(ours & stored_ids), 0)
        if not await self._client.query({**wanted, "#d": [session], "limit": 1}):
            return _NOTHING_STORED
        of_file = await asyncio.to_thread(session_events.ids)
        wanted["#d"] = sorted(of_file.sessions or {session})
        try:
            items = await asyncio.to_thread(of_file.items)
            difference = await self._client.reconcile(wanted, items)
        except (Incomparable, QueryClosed):
            stored = self._client.query_all(wanted, most_bytes=MAX_READ_BYTES)
            stored_ids = {bytes.fromhex(event.id) async for event in stored}
            ours = frozenset(split_ids(of_file.ids))
            return _Comparison(ours - stored_ids, len(ours & stored_ids), len(stored_ids - ours))
        known = len(of_file) - len(difference.have)
        return _Comparison(difference.have, known, len(difference.need))

    async def _load_envelope_content(self) -> _EnvelopeContent:
        """Content of one's envelopes: fetched once, since that needs all of them, then kept
        current."""
        if self._envelope_content is None:
            stored_ids = _EnvelopeContent()
            for event in await self._in_envelopes({"authors": [self.pubkey]}):
                stored_ids.add(event)
            self._envelope_content = stored_ids
        return self._envelope_content

    async def _last_state(self, session: str) -> Event | None:
        if self._uses_envelopes:
            return (await self._load_envelope_content()).states.get(session)
        wanted = {"kinds": [kinds.SESSION_STATE], "authors": [self.pubkey], "#d": [session]}
        found = await self.read(wanted)
        return max(found, key=lambda event: event.created_at, default=None)

    async def _publish_state(
        self, state: SessionState, last: Event | None, group: str | None
    ) -> None:
        def draft_at(at: int) -> Draft:
            draft = state_draft(state, at)
            return draft if group is None else draft._replace(tags=[*draft.tags, ["h", group]])

        if self._uses_envelopes:
            at = next_created_at(self._client.now(), None if last is None else last.created_at)
            event = self.signed(draft_at(at))
            await self._writer.send(self._outgoing(event))
            if self._envelope_content is not None:
                self._envelope_content.add(event)
        else:
            if last is not None:
                self._writer.note_stored(last)
            await self.write(kinds.SESSION_STATE, state.session, draft_at)

    async def _max_message(self) -> int | None:
        """The relay's message limit in bytes; None: it names none."""
        return limit_in(await self._information(), "max_message_length")


def _is_after(line: Draft | Event, forgotten: int | None) -> bool:
    return forgotten is None or line.created_at > forgotten


def _source_data(draft: Draft) -> str:
    return next(tag[1] for tag in draft.tags if tag[0] == "source-data")


def _eol(draft: Draft) -> Eol:
    return Eol(next((tag[1] for tag in draft.tags if tag[0] == "eol"), Eol.LF))


def _refused_for_now(done: Delivered) -> list[Event]:
    """Takes the temporary refusals out of `done`; their events."""
    refused, done.refused = done.refused, []
    for refusal in refused:
        if refusal.prefix not in TEMPORARY:
            done.refused.append(refusal)
    return [refusal.event for refusal in refused if refusal.prefix in TEMPORARY]


def _raise_author_refusal(done: Delivered) -> Delivered:
    """Raises a refusal that applies to everything this key writes."""
    for refusal in done.refused:
        if refusal.prefix in ABOUT_AUTHOR:
            raise refusal
    return done


async def _ahead(events: Iterator[Event], on_batch: Callable[[], None]) -> AsyncGenerator[Event]:
    """Events signed in a thread, one batch ahead of sending."""
    next_batch = asyncio.create_task(asyncio.to_thread(take, events, _BATCH))
    try:
        while batch := await next_batch:
            next_batch = asyncio.create_task(asyncio.to_thread(take, events, _BATCH))
            for event in batch:
                yield event
            on_batch()
    finally:
        await asyncio.wait([next_batch])  # a thread cannot be cancelled; it ends with its batch

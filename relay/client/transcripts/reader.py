"""TranscriptsReader: files, conversations, lists and searches; plain, and from envelopes."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from sys import getsizeof
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import structs

from relay.client.errors import AnswerTooLong, QueryClosed
from relay.client.memory import MemoryClient
from relay.client.paging import MAX_READ_BYTES
from relay.client.responses import filters_of
from relay.client.transcripts.envelopes import Envelopes
from relay.client.transcripts.results import (
    Conversation,
    Detail,
    Incomplete,
    Listed,
    NoSession,
    Row,
    SeveralAuthors,
    is_listed,
)
from relay.errors import Prefix
from relay.memory.transcripts.assembly import assembled
from relay.memory.transcripts.display import note_of
from relay.memory.transcripts.order import order_of, ordered
from relay.memory.transcripts.paths import Directory
from relay.memory.transcripts.records import SessionState, state_of
from relay.memory.transcripts.sources import bare
from relay.memory.transcripts.token_usage import usage_in
from relay.memory.transcripts.view import lines_of_notes
from relay.nostr import kinds
from relay.nostr.pns import derive

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from relay.client.client import Client
    from relay.memory.transcripts.assembly import Assembly
    from relay.memory.transcripts.display import Note
    from relay.memory.transcripts.lines import Fields
    from relay.memory.transcripts.token_usage import Usage
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.nostr.pns import Channel

_MAX_IDS: Final = 200
"""Ids in a filter; for more, all lines of the session are read."""
_MAX_PATH: Final = 4_096
"""Bytes, as on Linux."""
_MAX_KEPT: Final = 2**31
"""Bytes in memory of the lines of one session's file."""
_LINE_SIZE: Final = 1_000
"""Bytes in memory of a line beside its texts."""
_LAST_NOTES: Final = 64
"""Number of last notes checked for their source lines."""


class TranscriptsReader(MemoryClient):
    """The reading half of Transcripts. Raises QueryClosed, Unanswered; unreadable records are
    skipped."""

    NAME: ClassVar[str] = "transcripts"

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        pns: Channel | None = None,
        *,
        folder: Path | None = None,
    ) -> None:
        """`pns`: the channel for writing, from `relay.nostr.pns.derive`. Reads also look into it,
        or else into that of `signer`."""
        super().__init__(relay, signer, folder=folder)
        self._uses_envelopes = pns is not None
        self._envelopes = Envelopes(derive(signer) if pns is None else pns)

    async def assembly(self, session: str, author: str | None = None) -> Assembly:
        """Everything stored of a session's file. `author`: 64 hex; None: one's own lines, else
        those of the only author. Raises NoSession, SeveralAuthors."""
        notes: dict[str, object] = {"kinds": [kinds.CONVERSATION_NOTE], "#d": [session]}
        lines = {**notes, "kinds": [kinds.SOURCE_DATA]}
        for read in (self.read, self._in_envelopes):
            # What others wrote under this id must not decide what is asked for of one's own.
            for whose in [self.pubkey, None] if author is None else [author]:
                of: dict[str, object] = {} if whose is None else {"authors": [whose]}
                is_bare = whose is not None and self._folder is None and read == self.read
                archive, last = await asyncio.gather(
                    (self._bare_lines if is_bare else read)({**lines, **of}),
                    read({**notes, **of, "limit": _LAST_NOTES}),
                )
                events = archive + last if archive else await read({**notes, **of})
                if not events or (author is None and whose and not _writers(events)):
                    continue
                chosen = self._of_author(session, events, whose)
                found = await asyncio.to_thread(assembled, chosen)
                return replace(found, author=chosen[0].pubkey)
        raise NoSession(session)

    async def export(
        self,
        session: str,
        cwd: Path | str | None = None,
        git_branch: str | None = None,
        *,
        allow_gaps: bool = False,
        author: str | None = None,
    ) -> bytes:
        """The file. `cwd`: working folder to write into it; None: the original.

        Raises Incomplete, NoSession, SeveralAuthors; UserError if a working folder is needed and
        unknown.
        """
        assembly = await self.assembly(session, author)
        original = await self.directory_of(session, assembly.author)
        if not assembly.lines:
            raise NoSession(session, "archive of session")
        if assembly.faults and not allow_gaps:
            raise Incomplete(session, assembly)
        where = original if cwd is None else str(cwd)
        lines = assembly.file(None if where is None else Directory(where), git_branch)
        return await asyncio.to_thread(b"".join, lines)

    async def _bare_lines(self, wanted: Mapping[str, object]) -> list[Event]:
        """The lines of one author, bounded by what is kept of them. Raises AnswerTooLong."""
        found: list[Event] = []
        size = 0
        pages = self.all_of(wanted, most_bytes=MAX_READ_BYTES)
        async with aclosing(pages):  # type: ignore[type-var]
            async for events in pages:
                page = list(map(bare, events))
                size += sum(map(_size_of, page))
                if size > _MAX_KEPT:
                    raise AnswerTooLong(_MAX_KEPT, "bytes in pages")
                found += page
        return found

    async def directory_of(self, session: str, author: str) -> str | None:
        """The session's working folder, if this author (64 hex) has named it: it stands in the
        lines."""
        wanted = {"kinds": [kinds.SESSION_STATE], "#d": [session], "authors": [author]}
        states = map(state_of, await self._in_either(wanted))
        known = (state.cwd for state in states if isinstance(state, SessionState) and state.cwd)
        # One that is longer is no folder, and each line that names it would have all of it.
        return next((cwd for cwd in known if len(cwd.encode()) <= _MAX_PATH), None)

    async def messages(
        self, session: str, since_order: tuple[int, int, str] | None = None
    ) -> list[Note]:
        """The notes in order: one's own, if there are any. `since_order`: only notes after it, see
        `order_of`."""
        events = await self._notes_of(session)
        return [
            note_of(event)
            for event in ordered(events).events
            if since_order is None or order_of(event) > since_order
        ]

    async def conversation(self, session: str, detail: Detail = Detail.TYPES) -> Conversation:
        """The notes, one's own if there are any, in the order of their replies (D-25), and lines
        beside them."""
        events = await self._notes_of(session)
        chain = ordered(events)
        wanted = [
            event
            for event in chain.events
            if detail is Detail.LINES or (detail is Detail.TYPES and not event.content)
        ]
        lines = await self._lines_of(session, wanted) if wanted else {}
        return Conversation(list(map(note_of, chain.events)), chain.notice, lines)

    async def _notes_of(self, session: str) -> list[Event]:
        """What others wrote under the id of an own session is no part of it, and is not fetched."""
        wanted: dict[str, object] = {"kinds": [kinds.CONVERSATION_NOTE], "#d": [session]}
        own = {**wanted, "authors": [self.pubkey]}
        found = await self.read(own)
        if not found and self._uses_envelopes:
            # A key that may read plain sessions only has none.
            found = await self._in_envelopes_beside([session], own)
        return found or await self._in_either(wanted)

    async def _lines_of(self, session: str, notes: Sequence[Event]) -> dict[str, Fields]:
        """The lines that begin with these notes."""
        authors = {note.pubkey for note in notes}
        author = self.pubkey if self.pubkey in authors or not authors else notes[0].pubkey
        wanted: dict[str, object] = {"kinds": [kinds.SOURCE_DATA], "#d": [session]}
        if authors:
            wanted["authors"] = sorted(authors)
        if len(notes) <= _MAX_IDS:
            wanted["#e"] = [note.id for note in notes]
        where, archive = await asyncio.gather(
            self.directory_of(session, author), self._in_either(wanted)
        )
        return await asyncio.to_thread(lines_of_notes, notes, archive, where or ".")

    async def sessions(self, *, include_deleted: bool = False) -> list[Listed]:
        """Newest first. Reads the notes of all sessions that this key may read."""
        wanted = {"kinds": [kinds.SESSION_STATE, kinds.CONVERSATION_NOTE]}
        rows: dict[tuple[str, str], Row] = {}

        def add(events: Iterable[Event]) -> None:
            for event in events:
                rows.setdefault((event.d, event.pubkey), Row()).add(event)

        if self._folder is None:
            # Not all of them in memory at once.
            found = self.all_of(wanted, most_bytes=MAX_READ_BYTES)
            async with aclosing(found) as pages:  # type: ignore[type-var]
                async for events in pages:
                    add(events)
        else:
            add(await self.read(wanted))
        add(await self._in_envelopes_beside(rows, wanted))
        listed = [row.listed(*key) for key, row in rows.items()]
        return sorted(
            (row for row in listed if include_deleted or is_listed(row)),
            key=lambda row: (-row.last_ms, row.session, row.author),
        )

    async def follow(self, session: str) -> AsyncIterator[Note]:
        """The notes of a session in order, then new ones by their authors as they arrive: others
        may store notes under its id. From one's own first note on only one's own; without any
        note, the first that arrives tells the author."""
        wanted: dict[str, object] = {"kinds": [kinds.CONVERSATION_NOTE], "#d": [session]}
        sealed = structs.replace(self._envelopes.wanted, limit=0)
        async with self._client.subscribe(
            {**wanted, "limit": 0}, sealed, keeps_newest=False
        ) as events:
            seen, authors = set(), set()
            for note in await self.messages(session):
                seen.add(note.id)
                authors.add(note.author)
                yield note
            async for event in events:
                is_sealed = event.kind == kinds.ENVELOPE
                for inner in await self._envelopes.opened([event]) if is_sealed else [event]:
                    is_note = inner.kind == kinds.CONVERSATION_NOTE and inner.d == session
                    if not is_note or inner.id in seen:
                        continue
                    if inner.pubkey == self.pubkey or not authors:
                        authors = {inner.pubkey}
                    if inner.pubkey in authors:
                        seen.add(inner.id)
                        yield note_of(inner)

    async def usage(self, session: str) -> Usage | None:
        """Token usage, from the session's last record of it (D-28). Raises NoSession,
        SeveralAuthors."""
        return usage_in((await self.assembly(session)).lines)

    async def search(
        self, query: str, session: str | None = None, group: str | None = None, limit: int = 50
    ) -> list[Note]:
        """Notes with these words, best first.

        Envelopes (D-34), and notes on a relay without NIP-50 (`searches`), are scanned here.
        """
        wanted: dict[str, Any] = {"kinds": [kinds.CONVERSATION_NOTE]}
        if session is not None:
            wanted["#d"] = [session]
        if group is not None:
            wanted["#h"] = [group]
        words = [word.strip('"').casefold() for word in query.split()]

        def matching(events: Iterable[Event]) -> list[Event]:
            return [
                event for event in events if all(word in event.content.casefold() for word in words)
            ]

        if await self.searches():
            notes = await self._client.query({**wanted, "search": query, "limit": limit})
            found = await self._undeleted(notes)
        else:
            found = matching(await self.read(wanted))
        found += matching(await self._in_envelopes_beside(found, wanted))
        return [note_of(event) for event in found[:limit]]

    async def _in_envelopes(self, wanted: Mapping[str, object]) -> list[Event]:
        """Matching events in envelopes, newest first."""
        (filter_,) = filters_of((wanted,))
        inside = await self._envelopes.opened(await self.read(self._envelopes.wanted))
        return [event for event in inside if filter_.matches(event)][: filter_.limit]

    async def _in_envelopes_beside(
        self, plain: Collection[object], wanted: Mapping[str, object]
    ) -> list[Event]:
        """As `_in_envelopes`; none for a key that may read plain sessions only."""
        try:
            return await self._in_envelopes(wanted)
        except QueryClosed as closed:
            if not plain or closed.prefix != Prefix.RESTRICTED:
                raise
            return []

    async def _in_either(self, wanted: Mapping[str, object]) -> list[Event]:
        """Plain events, else those in envelopes, which must all be fetched."""
        return await self.read(wanted) or await self._in_envelopes(wanted)

    def _of_author(self, session: str, events: list[Event], author: str | None) -> list[Event]:
        """The events of one author."""
        writers = _writers(events)
        if author is None and self.pubkey in writers:
            author = self.pubkey
        if author is None and len(writers) > 1:
            raise SeveralAuthors(session, writers)
        if author is None:
            author = next(iter(writers), events[0].pubkey)
        return [event for event in events if event.pubkey == author]


def _size_of(line: Event) -> int:
    """Estimated bytes in memory of an event with few tags."""
    return _LINE_SIZE + sum(getsizeof(text) for tag in line.tags for text in tag[1:])


def _writers(events: Iterable[Event]) -> set[str]:
    """Authors of lines, which are more than notes."""
    return {
        event.pubkey
        for event in events
        if event.kind == kinds.SOURCE_DATA or event.has_tag("source-data")
    }

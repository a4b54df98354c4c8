"""SessionEvents: the signed events of one session file.

Blocks; call it in a thread.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.client.sync import items_of
from relay.memory.secrets import SecretFilter
from relay.memory.transcripts.lines import copied_from, inner, line_of, name_in
from relay.memory.transcripts.stripping import ONLY_SECRETS, strip
from relay.nostr import kinds
from relay.nostr.event import id_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from relay.client.transcripts.files import SessionFile
    from relay.memory.draft import Draft
    from relay.memory.transcripts.lines import Fields
    from relay.memory.transcripts.plan import Plan
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.nostr.nip77 import Items

_TITLE: Final = 80
"""Characters."""
_MAX_ORIGINS: Final = 16
"""Sessions that lines of a file were copied from, of which the relay is asked: a fork has one.
Lines that were copied from further ones are sent."""


class Copied(NamedTuple):
    """The lines of a file that were copied from one session."""

    newest: int
    """Date, seconds."""
    written: int
    """Date of the newest one that has the date of its original."""

    def until(self, forgotten: int | None) -> int | None:
        """Date of the newest line of the file that is forgotten, if what the session wrote until
        `forgotten` is."""
        return self.newest if forgotten is not None and self.written <= forgotten else forgotten


@dataclass(slots=True)
class Tally:
    """Counts so far."""

    lines: int = 0
    read: int = 0
    """Bytes."""
    notes: int = 0
    archive: int = 0
    title: str = ""
    """The first words of a user; empty until there are any."""
    custom_title: str = ""
    """See `Transcript.custom_title`."""
    secrets: int = 0
    """Lines of the file that hold what looks like a secret, and that stripping takes out."""
    copied: dict[str, Copied] = field(default_factory=dict)
    """By the session they were copied from."""

    def add(self, raw: bytes, drafts: Sequence[Draft]) -> None:
        self.lines += 1
        self.read += len(raw)
        if SecretFilter.finds_known(raw):  # a search of the raw line is fast, and finds too much
            self.secrets += bool(strip(line_of(0, raw), ONLY_SECRETS).stripped)
        if b'"forkedFrom"' in raw and drafts:
            self._add_copied(line_of(0, raw).fields or {}, drafts[-1].created_at)
        for draft in drafts:
            if draft.kind == kinds.SOURCE_DATA:
                self.archive += 1
                continue
            self.notes += 1
            if not self.title and ["role", "user"] in draft.tags:
                self.title = title_of(draft.content)

    def _add_copied(self, fields: Fields, at: int) -> None:
        origin = copied_from(fields)
        if origin is None or (origin not in self.copied and len(self.copied) == _MAX_ORIGINS):
            return
        before = self.copied[origin].newest if origin in self.copied else 0
        newest = max(before, at)
        # Claude's SDK gives copies ids of their own, and the last one the time of the fork.
        is_dated = name_in(fields, "uuid") == name_in(inner(fields, "forkedFrom"), "messageUuid")
        self.copied[origin] = Copied(newest, newest if is_dated else before)


def title_of(content: str) -> str:
    """The first line with words, shortened. Lines in `<…>` are added by programs."""
    lines = (" ".join(line.split()) for line in content.splitlines())
    line = next((line for line in lines if line and not line.startswith("<")), "")
    return line if len(line) <= _TITLE else f"{line[: _TITLE - 1].rstrip()}…"


@dataclass(slots=True)
class SessionIds:
    """The event ids of a file, for reconciliation."""

    sessions: set[str] = field(default_factory=set)
    """Values of `d`: a line may name another session than its file."""
    times: array[int] = field(default_factory=lambda: array("Q"))
    ids: bytearray = field(default_factory=bytearray)
    """32 bytes each."""

    def __len__(self) -> int:
        return len(self.times)

    def items(self) -> Items:
        return items_of(self.times, self.ids)


def split_ids(ids: bytes | bytearray) -> Iterator[bytes]:
    return (bytes(ids[at : at + 32]) for at in range(0, len(ids), 32))


class SessionEvents:
    """One file, author and plan."""

    def __init__(self, file: SessionFile, signer: SecretKey, plan: Plan) -> None:
        self._signer = signer
        self._file = file
        self._plan = plan
        self.copied: dict[str, Copied] = {}
        """See `Tally`. `ids` and `events` add to it, before they yield an event of the line."""
        self.tally = Tally()
        """Counts of the last pass of `ids` or `events`."""

    def ids(self) -> SessionIds:
        """A pass without signing."""
        ids = SessionIds()
        self.tally = Tally(copied=self.copied)
        for draft in self._drafts(self.tally):
            ids.sessions.add(draft.d)
            ids.times.append(draft.created_at)
            ids.ids += self.id_of(draft)
        return ids

    def title(self) -> str:
        """The first words of a user."""
        tally = Tally()
        for _ in self._lines(tally):
            if tally.title:
                break
        return tally.title

    def lines_of_known_notes(self, missing: Collection[bytes]) -> Iterator[list[Draft]]:
        """The archive events of each line, if they are missing and its first note is not."""
        for drafts in self._lines(Tally()):
            if (
                drafts
                and drafts[0].kind == kinds.CONVERSATION_NOTE
                and drafts[-1].kind == kinds.SOURCE_DATA
                and self.id_of(drafts[-1]) in missing
                and self.id_of(drafts[0]) not in missing
            ):
                yield [draft for draft in drafts if draft.kind == kinds.SOURCE_DATA]

    def events(self, wanted: Collection[bytes] | None) -> Iterator[Event]:
        """A pass that signs the wanted events; None: all."""
        self.tally = Tally(copied=self.copied)
        for draft in self._drafts(self.tally):
            if wanted is None or self.id_of(draft) in wanted:
                yield self._signer.sign(*draft)

    def _drafts(self, tally: Tally) -> Iterator[Draft]:
        return chain.from_iterable(self._lines(tally))

    def _lines(self, tally: Tally) -> Iterator[list[Draft]]:
        converter = self._file.converter(self._signer.pubkey, self._plan)
        for raw in self._file.lines():
            drafts = converter.drafts(raw)
            tally.add(raw, drafts)
            tally.notes = converter.notes  # with those that are stored already
            tally.custom_title = converter.custom_title
            yield drafts

    def id_of(self, draft: Draft) -> bytes:
        data = id_bytes(
            self._signer.pubkey, draft.created_at, draft.kind, draft.tags, draft.content
        )
        return sha256(data).digest()


def take(events: Iterator[Event], number: int) -> list[Event]:
    """The next `number` events; empty at the end."""
    return list(islice(events, number))

"""Spool: signed events not yet accepted by the relay, on disk, in the order of writing.

It is the only copy of what was written offline, so `put` is durable when it returns. Sending twice
is safe, since events are identified by id: after a crash between OK and `done` an event is sent
again. Several programs of one user may share the file.

A version that holds edits of a record is stored together with the version that it is based on. The
edits are the differences between the two; they are applied to the version that another machine
stored meanwhile. They are stored in no other form. Beside it is when each was made, also those of
the versions that it replaced: a deletion that is learned of later is for the older ones.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from relay.client.errors import IN_THE_FUTURE, ClientError
from relay.client.local_file import Damaged, LocalFile, kept_event
from relay.errors import EVENT_BANNED, Prefix
from relay.nostr import kinds
from relay.nostr.nip09 import address_hash, targets_of

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.nip09 import Target

MOST: Final = 100_000
"""Events; then SpoolFull is raised."""
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE waiting (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL UNIQUE,
    raw      BLOB NOT NULL,
    refusal  TEXT,
    base     BLOB,
    dates    BLOB,
    refused_at INTEGER
);
CREATE INDEX to_send ON waiting (position) WHERE refusal IS NULL
"""
_FIRST: Final = b""
"""`base` of the first version of a record. NULL: the event is sent as it is."""


class SpoolFull(ClientError):
    """The spool accepts no more events."""


class SpoolDamaged(ClientError):
    """The file cannot be read. It is left unchanged: it is the only copy."""


class Waiting(NamedTuple):
    """An event to be sent."""

    event: Event
    has_edits: bool
    """Whether it is a version whose edits may have to be applied to another version."""
    base: Event | None
    """The version that it is based on; None: it is the first one."""
    dates: Mapping[str, int]
    """See `edit_dates`."""
    position: int
    """In the file, see `Spool.to_send`."""


class Refused(NamedTuple):
    """An event that the relay refused, or that must not be sent, and the reason."""

    event: Event
    reason: str
    """Text of the OK message, or of the error."""

    @property
    def may_end(self) -> bool:
        """Whether the relay may take it later: its author is listed, admitted or unbanned, a policy
        changed, or its date has passed."""
        prefix, _, text = self.reason.partition(": ")
        if prefix == Prefix.INVALID:
            return text.startswith("created_at: ") and IN_THE_FUTURE in text
        is_about_author = prefix in (Prefix.RESTRICTED, Prefix.BLOCKED)
        return is_about_author and text not in ("deleted", EVENT_BANNED)


class Spool:
    """One file. Its methods block briefly (call them in a thread) and may raise SpoolDamaged, and
    OSError for a full or missing disk."""

    def __init__(self, path: Path, *, most: int = MOST) -> None:
        self._path = path
        self._most = most
        with self._translated_damage():
            self._file = LocalFile(path, _SCHEMA, _VERSION)
        with self._transaction() as file:
            columns = {name for _, name, *_ in file.execute("PRAGMA table_info(waiting)")}
            for name, type_ in (("base", "BLOB"), ("dates", "BLOB"), ("refused_at", "INTEGER")):
                if name not in columns:  # of an earlier program, which may still share the file
                    file.execute(f"ALTER TABLE waiting ADD COLUMN {name} {type_}")

    def close(self) -> None:
        self._file.close()

    def put(
        self,
        event: Event,
        *,
        has_edits: bool = False,
        base: Event | None = None,
        dates: Mapping[str, int] | None = None,
    ) -> bool:
        """Durable when it returns; an event already waiting is not added twice. See `Waiting`.

        A version with edits replaces the one that it is based on, if that one waits; returns
        whether it did. What a kind 5 names leaves the file. Raises SpoolFull.
        """
        made = {} if dates is None else dates
        replaced = has_dropped = False
        with self._transaction() as file:
            if event.kind == kinds.DELETION:
                has_dropped = _drop(file, targets_of(event))
            if _count_waiting(file) >= self._most:
                raise SpoolFull(
                    f"{self._most:,} writes wait for the relay in {self._path}; the spool is full"
                )
            made_of = None if not has_edits else _FIRST if base is None else base.raw
            if has_edits and base is not None and (row := _with_edits(file, base.id)) is not None:
                replaced, (made_of, before) = True, row
                made = {name: at or before.get(name, 0) for name, at in made.items()}
                file.execute("DELETE FROM waiting WHERE id = ?", (base.id,))
            file.execute(
                # An event refused before is tried again.
                "INSERT INTO waiting (id, raw, base, dates) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET refusal = NULL, refused_at = NULL",
                (event.id, event.raw, made_of, _dates_kept(made)),
            )
        if replaced or has_dropped:
            self._file.erase_soon()
        return replaced

    def drop(self, targets: Iterable[Target]) -> None:
        """Remove what was deleted, waiting or refused."""
        with self._transaction() as file:
            has_dropped = _drop(file, list(targets))
        if has_dropped:
            self._file.erase_soon()

    def bases(self, ids: Iterable[str]) -> list[Event]:
        """The versions that these, which wait, are based on."""
        with self._transaction() as file:
            rows = [_with_edits(file, id_) for id_ in ids]
            return [kept_event(row[0]) for row in rows if row is not None and row[0]]

    def left_of(self, ids: Iterable[str]) -> set[str]:
        """Those that still wait to be sent."""
        with self._transaction() as file:
            found = "SELECT 1 FROM waiting WHERE id = ? AND refusal IS NULL"
            return {id_ for id_ in ids if file.execute(found, (id_,)).fetchone() is not None}

    def __len__(self) -> int:
        """Number of events to be sent."""
        with self._transaction() as file:
            return _count_waiting(file)

    def waiting(self, number: int = MOST) -> list[Event]:
        """The first `number` of the events to be sent."""
        return [each.event for each in self.to_send(number)]

    def to_send(self, number: int, after: int = 0) -> list[Waiting]:
        """As `waiting`, with what is needed to send them; those behind the position `after`."""
        with self._transaction() as file:
            rows = file.execute(
                "SELECT raw, base, dates, position FROM waiting"
                " WHERE refusal IS NULL AND position > ? ORDER BY position LIMIT ?",
                (after, number),
            )
            return [
                Waiting(
                    kept_event(raw),
                    base is not None,
                    kept_event(base) if base else None,
                    _dates_in(dates),
                    position,
                )
                for raw, base, dates, position in rows
            ]

    def deletions(self) -> list[Event]:
        """The kind 5s that are to be sent."""
        with self._transaction() as file:
            rows = file.execute(
                # In a text a quote is escaped, so this is no part of one.
                "SELECT raw FROM waiting WHERE refusal IS NULL"
                """ AND instr(raw, CAST('"kind":5,' AS BLOB)) ORDER BY position"""
            )
            found = [kept_event(raw) for (raw,) in rows]
        return [event for event in found if event.kind == kinds.DELETION]

    def done(self, ids: Iterable[str]) -> None:
        """Remove events: accepted by the relay, or given up."""
        with self._transaction() as file:
            file.executemany("DELETE FROM waiting WHERE id = ?", [(id_,) for id_ in ids])
        self._file.erase_soon()

    def refuse(self, event_id: str, reason: str) -> None:
        """Mark an event as refused: kept with the reason, and not sent again."""
        with self._transaction() as file:
            file.execute(
                "UPDATE waiting SET refusal = ?,"
                " refused_at = coalesce(refused_at, strftime('%s', 'now')) WHERE id = ?",
                (reason, event_id),
            )

    def send_again(self, ids: Iterable[str]) -> None:
        """Those that were refused wait to be sent."""
        with self._transaction() as file:
            query = "UPDATE waiting SET refusal = NULL WHERE id = ?"
            file.executemany(query, [(id_,) for id_ in ids])

    def put_refused(self, event: Event, reason: str) -> None:
        """Add an event that is never sent; durable when it returns."""
        with self._transaction() as file:
            file.execute(
                "INSERT OR IGNORE INTO waiting (id, raw, refusal, refused_at)"
                " VALUES (?, ?, ?, strftime('%s', 'now'))",
                (event.id, event.raw, reason),
            )

    def refused(self) -> list[Refused]:
        with self._transaction() as file:
            rows = file.execute(
                "SELECT raw, refusal FROM waiting WHERE refusal IS NOT NULL ORDER BY position"
            )
            return [Refused(kept_event(raw), reason) for raw, reason in rows]

    def long_refused(self, least_s: int) -> set[str]:
        """Ids of those that were refused for the first time at least so long ago."""
        with self._transaction() as file:
            query = (
                "SELECT id FROM waiting WHERE refusal IS NOT NULL"
                " AND refused_at <= strftime('%s', 'now') - ?"
            )
            return {id_ for (id_,) in file.execute(query, (least_s,))}

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._translated_damage(), self._file.transaction() as connection:
            yield connection

    @contextmanager
    def _translated_damage(self) -> Iterator[None]:
        try:
            yield
        except Damaged as damaged:
            raise SpoolDamaged(
                f"{self._path} holds writes not yet sent to the relay, and cannot be read:"
                f" {damaged}; move the file away to continue without them"
            ) from damaged


def _drop(file: sqlite3.Connection, targets: Sequence[Target]) -> bool:
    """Whether there were any. A deletion stays: a deletion of it has no effect (NIP-09)."""
    until = {(name, author): at for name, author, at in targets}
    gone = [
        (event.id,)
        for (raw,) in (file.execute("SELECT raw FROM waiting") if until else ())
        if (event := kept_event(raw)).kind != kinds.DELETION
        and any(
            event.created_at <= until.get((name, event.pubkey), -1)
            for name in (event.id, address_hash(event))
        )
    ]
    file.executemany("DELETE FROM waiting WHERE id = ?", gone)
    return bool(gone)


def _count_waiting(file: sqlite3.Connection) -> int:
    number: int = file.execute("SELECT count(*) FROM waiting WHERE refusal IS NULL").fetchone()[0]
    return number


def _with_edits(file: sqlite3.Connection, event_id: str) -> tuple[bytes, dict[str, int]] | None:
    """The base of a waiting version with edits, and their dates; None: there is no such version."""
    row = file.execute(
        "SELECT base, dates FROM waiting WHERE id = ? AND refusal IS NULL AND base IS NOT NULL",
        (event_id,),
    ).fetchone()
    return None if row is None else (row[0], _dates_in(row[1]))


def _dates_kept(dates: Mapping[str, int]) -> bytes | None:
    kept = {name: at for name, at in dates.items() if at > 0}
    return orjson.dumps(kept) if kept else None


def _dates_in(kept: bytes | None) -> dict[str, int]:
    """Raises Damaged."""
    try:
        return {} if kept is None else orjson.loads(kept)
    except ValueError as error:
        raise Damaged("the dates in it are unreadable") from error

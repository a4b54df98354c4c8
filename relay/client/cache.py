"""Cache: the relay's last answers, on disk, read while the relay is unreachable.

Only a copy: a file that is damaged, incomplete, of another version, or of another relay or key is
deleted and created again.

What was deleted is noted, without its text: an answer that the relay gave before, or that a relay
gives which does not know of the deletion, is not taken in again.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from relay.client.local_file import Damaged, LocalFile
from relay.errors import Invalid
from relay.nostr.event import event_from
from relay.nostr.nip09 import EVER, Target, address_hash, has_versions, version_target

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

    Result = TypeVar("Result")

_VERSION: Final = 2
_SCHEMA: Final = """
CREATE TABLE about (copy_of TEXT NOT NULL);
CREATE TABLE events (
    id         TEXT PRIMARY KEY,
    pubkey     TEXT NOT NULL,
    kind       INTEGER NOT NULL,
    address    TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    raw        BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_kind ON events (kind, pubkey);
CREATE INDEX by_address ON events (address, created_at);
CREATE TABLE deleted (
    position INTEGER PRIMARY KEY,
    name     TEXT NOT NULL,
    author   TEXT NOT NULL,
    until    INTEGER NOT NULL,
    UNIQUE (name, author)
)
"""
MOST_DELETED: Final = 20_000
"""Ids and addresses; of more the oldest are forgotten, whose deletion a relay has taken since."""
_DROP: Final = (
    "DELETE FROM events WHERE (id = ?1 OR address = ?1) AND pubkey = ?2 AND created_at <= ?3"
)


class Cache:
    """One file. Its methods block briefly (call them in a thread) and may raise OSError."""

    def __init__(self, path: Path, copy_of: str) -> None:
        """`copy_of`: identifies relay and key."""
        self.path = path
        self._copy_of = copy_of
        self._unwritten: dict[tuple[str, str], int] = {}
        """Name, author → `until` of deletions that could not be written: the disk may be full."""
        self._lock = Lock()
        """Of `_unwritten`."""
        self._file = self._opened()

    def close(self) -> None:
        with suppress(OSError):
            self.retry()
        self._file.close()

    def retry(self) -> None:
        """Delete what could not be deleted before; so does every other use of the file."""
        with self._lock:
            left = [Target(*key, until) for key, until in self._unwritten.items()]
        if not left:
            return
        if self._run_once(_deletion(left)):
            self._file.erase_soon()
        with self._lock:
            for target in left:
                if self._unwritten.get(target[:2]) == target.until:
                    del self._unwritten[target[:2]]

    def matching(self, *filters: Filter) -> list[Event]:
        """Events that match any of the filters, newest first, ties lowest id first."""

        def read(file: sqlite3.Connection) -> dict[str, Event]:
            found: dict[str, Event] = {}
            for filter_ in filters:
                matching = (e for e in _candidates(file, filter_) if filter_.matches(e))
                of_filter = self._without_unwritten(matching)
                of_filter.sort(key=newest_first)
                found.update((event.id, event) for event in of_filter[: filter_.limit])
            return found

        return sorted(self._run(read).values(), key=newest_first)

    def page(self, after: str, number: int) -> list[Event]:
        """The next events in order of their ids. `after`: the last one before; empty: none."""

        def read(file: sqlite3.Connection) -> list[Event]:
            rows = file.execute(
                "SELECT raw FROM events WHERE id > ? ORDER BY id LIMIT ?", (after, number)
            )
            return [_checked_event(raw) for (raw,) in rows]

        return self._run(read)

    def change(self, add: Iterable[Event], drop: Iterable[Event]) -> None:
        """Atomic. Of a record, the versions older than these go too; what was deleted is not
        added."""
        added = list(add)
        older = [version_target(event) for event in added if has_versions(event)]
        replaced = [(name, author, until - 1) for name, author, until in older]
        dropped = [
            target
            for event in drop
            for target in ((event.id, event.pubkey, event.created_at), version_target(event))
        ]

        def write(file: sqlite3.Connection) -> int:
            gone = file.executemany(_DROP, [*dropped, *replaced]).rowcount
            rows = [
                (e.id, e.pubkey, e.kind, address_hash(e), e.created_at, e.raw)
                for e in _undeleted(file, added)
            ]
            file.executemany("INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
            return gone

        if self._run(write):
            self._file.erase_soon()

    def delete(self, targets: Iterable[Target]) -> None:
        """Drop these, and do not take them in again."""
        named = list(targets)
        try:
            gone = self._run(_deletion(named))
        except OSError:
            self._note_unwritten(named)
            raise
        if gone:
            self._file.erase_soon()

    def deletions(self, author: str) -> list[tuple[str, int]]:
        """Name (see `Target`) and date of each deletion of a record by its author."""
        found = "SELECT name, until FROM deleted WHERE author = ? AND until < ?"
        return self._run(lambda file: file.execute(found, (author, EVER)).fetchall())

    def deleted_until(self, author: str, name: str) -> int | None:
        """Date of the last known deletion of a record; None: there is none."""

        def read(file: sqlite3.Connection) -> int | None:
            found = "SELECT until FROM deleted WHERE name = ? AND author = ?"
            row = file.execute(found, (name, author)).fetchone()
            return None if row is None else int(row[0])

        return self._run(read)

    def _note_unwritten(self, targets: Sequence[Target]) -> None:
        with self._lock:
            for *key, until in targets:
                known = self._unwritten.pop((key[0], key[1]), until)
                self._unwritten[key[0], key[1]] = max(until, known)
            for oldest in list(self._unwritten)[:-MOST_DELETED]:
                del self._unwritten[oldest]

    def undelete(self, targets: Iterable[Target]) -> None:
        """Take them in again when a relay gives them: it will not delete them."""
        named = [(name, author) for name, author, _ in targets]
        with self._lock:
            for key in named:
                self._unwritten.pop(key, None)

        def write(file: sqlite3.Connection) -> None:
            file.executemany("DELETE FROM deleted WHERE name = ? AND author = ?", named)

        self._run(write)

    def undeleted(self, events: Iterable[Event]) -> list[Event]:
        """Those that were not deleted, in the same order."""
        given = list(events)
        if not given:
            return given
        return self._without_unwritten(self._run(lambda file: _undeleted(file, given)))

    def _without_unwritten(self, events: Iterable[Event]) -> list[Event]:
        with self._lock:
            until = self._unwritten.copy()
        return _after(until, events)

    def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        with suppress(OSError):
            self.retry()
        return self._run_once(work)

    def _run_once(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            with self._file.transaction() as file:
                return work(file)
        except Damaged:
            self._file.close()
            self._file = self._recreated()
            with self._file.transaction() as file:
                return work(file)

    def _opened(self) -> LocalFile:
        try:
            return _opened(self.path, self._copy_of)
        except Damaged:
            return self._recreated()

    def _recreated(self) -> LocalFile:
        for end in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                self.path.with_name(self.path.name + end).unlink()
        return _opened(self.path, self._copy_of)


def _deletion(targets: Sequence[Target]) -> Callable[[sqlite3.Connection], int]:
    """Writes it; gives how many rows it deleted."""

    def write(file: sqlite3.Connection) -> int:
        gone = file.executemany(_DROP, targets).rowcount
        file.executemany(
            "INSERT OR REPLACE INTO deleted (name, author, until) VALUES (?1, ?2, max(?3,"
            " coalesce((SELECT until FROM deleted WHERE name = ?1 AND author = ?2), 0)))",
            targets,
        )
        file.execute(
            "DELETE FROM deleted WHERE position <= (SELECT max(position) FROM deleted) - ?",
            (MOST_DELETED,),
        )
        return gone

    return write


def origin_of(path: Path) -> str | None:
    """`copy_of` of the cache in a file; None: there is none, or it cannot be read."""
    if not path.exists():
        return None
    try:
        file = LocalFile(path, _SCHEMA, _VERSION, may_lag=True)
    except (Damaged, OSError):
        return None
    try:
        with file.transaction() as connection:
            row = connection.execute("SELECT copy_of FROM about").fetchone()
    except (Damaged, OSError):
        return None
    finally:
        file.close()
    return None if row is None else str(row[0])


def newest_first(event: Event) -> tuple[int, str]:
    """Sort key of NIP-01: newest first, ties lowest id first."""
    return -event.created_at, event.id


def _undeleted(file: sqlite3.Connection, events: Sequence[Event]) -> list[Event]:
    if file.execute("SELECT 1 FROM deleted LIMIT 1").fetchone() is None:
        return list(events)
    names = {name for event in events for name in (event.id, address_hash(event))}
    rows = file.execute(
        "SELECT name, author, until FROM deleted WHERE name IN (SELECT value FROM json_each(?))",
        (_json_list(names),),
    )
    return _after({(name, author): at for name, author, at in rows}, events)


def _after(until: Mapping[tuple[str, str], int], events: Iterable[Event]) -> list[Event]:
    """Those that are newer than the deletions that name them."""
    if not until:
        return list(events)
    return [
        event
        for event in events
        if all(
            event.created_at > until.get((name, event.pubkey), -1)
            for name in (event.id, address_hash(event))
        )
    ]


def _candidates(file: sqlite3.Connection, filter_: Filter) -> Iterator[Event]:
    rows = file.execute(
        "SELECT raw FROM events WHERE (?1 IS NULL OR kind IN (SELECT value FROM json_each(?1)))"
        " AND (?2 IS NULL OR pubkey IN (SELECT value FROM json_each(?2)))"
        " AND (?3 IS NULL OR id IN (SELECT value FROM json_each(?3)))",
        (_json_list(filter_.kinds), _json_list(filter_.authors), _json_list(filter_.ids)),
    )
    for (raw,) in rows:
        yield _checked_event(raw)


def _checked_event(raw: bytes) -> Event:
    """Raises Damaged for one that its id does not fit: a disk that alters bits is told by nothing
    else, and its signature is not verified again."""
    try:
        return event_from(orjson.loads(raw))
    except (ValueError, Invalid) as error:
        raise Damaged("an event in it was changed") from error


def _json_list(values: Collection[int] | Collection[str] | None) -> str | None:
    return None if values is None else orjson.dumps(list(values)).decode()


def _opened(path: Path, copy_of: str) -> LocalFile:
    file = LocalFile(path, _SCHEMA, _VERSION, may_lag=True)
    try:
        with file.transaction() as connection:
            about = connection.execute("SELECT copy_of FROM about").fetchall()
            if not about:
                connection.execute("INSERT INTO about VALUES (?)", (copy_of,))
            elif about != [(copy_of,)]:
                raise Damaged("it is a copy of another relay or key")
    except BaseException:
        file.close()
        raise
    return file

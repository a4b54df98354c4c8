"""Spool: signed events that the relay has not taken yet, on disk, in the order of their writing.

It is the only copy of what was written offline, so each `put` is on disk when it returns. Sending
twice is safe, since a relay knows an event by its id: whoever dies between OK and `done` sends it
again. Several programs of one user may share the file.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from relay.client.errors import ClientError
from relay.client.local_file import Damaged, LocalFile, kept_event

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from relay.nostr.event import Event

MOST: Final = 100_000
"""Events; an agent that is offline for so long is told so."""
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE waiting (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL UNIQUE,
    raw      BLOB NOT NULL,
    refusal  TEXT
);
CREATE INDEX to_send ON waiting (position) WHERE refusal IS NULL
"""


class SpoolFull(ClientError):
    """So much waits for the relay that no more is taken."""


class SpoolDamaged(ClientError):
    """The file cannot be read. It is left as it is: nothing else has what is in it."""


class Refused(NamedTuple):
    """What the relay will not take, and why."""

    event: Event
    reason: str
    """In the words of OK."""


class Spool:
    """One file. Its methods block for a moment (call them in a thread), and may raise SpoolDamaged
    and, for a disk that is full or gone, OSError."""

    def __init__(self, path: Path, *, most: int = MOST) -> None:
        self._path = path
        self._most = most
        with self._damage_named():
            self._file = LocalFile(path, _SCHEMA, _VERSION)

    def close(self) -> None:
        self._file.close()

    def put(self, event: Event) -> None:
        """On disk when it returns; an event that waits already is not taken twice.

        Raises SpoolFull.
        """
        with self._transaction() as file:
            if _number_waiting(file) >= self._most:
                raise SpoolFull(
                    f"{self._most:,} writes wait for the relay in {self._path}; no more are taken"
                )
            file.execute(
                # One that was refused before is to be tried again.
                "INSERT INTO waiting (id, raw) VALUES (?, ?)"
                " ON CONFLICT (id) DO UPDATE SET refusal = NULL",
                (event.id, event.raw),
            )

    def __len__(self) -> int:
        """Events that wait to be sent."""
        with self._transaction() as file:
            return _number_waiting(file)

    def waiting(self, number: int = MOST) -> list[Event]:
        """The first `number` of those to be sent."""
        with self._transaction() as file:
            rows = file.execute(
                "SELECT raw FROM waiting WHERE refusal IS NULL ORDER BY position LIMIT ?",
                (number,),
            )
            return [kept_event(raw) for (raw,) in rows]

    def done(self, ids: Iterable[str]) -> None:
        """The relay has them, or they are given up."""
        with self._transaction() as file:
            file.executemany("DELETE FROM waiting WHERE id = ?", [(id_,) for id_ in ids])

    def refuse(self, event_id: str, reason: str) -> None:
        """The relay will not take it: kept with the reason, and sent no more."""
        with self._transaction() as file:
            file.execute("UPDATE waiting SET refusal = ? WHERE id = ?", (reason, event_id))

    def refused(self) -> list[Refused]:
        with self._transaction() as file:
            rows = file.execute(
                "SELECT raw, refusal FROM waiting WHERE refusal IS NOT NULL ORDER BY position"
            )
            return [Refused(kept_event(raw), reason) for raw, reason in rows]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._damage_named(), self._file.transaction() as connection:
            yield connection

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except Damaged as damaged:
            raise SpoolDamaged(
                f"{self._path} holds writes that the relay has not taken, and cannot be read:"
                f" {damaged}; move it away to go on without them"
            ) from damaged


def _number_waiting(file: sqlite3.Connection) -> int:
    number: int = file.execute("SELECT count(*) FROM waiting WHERE refusal IS NULL").fetchone()[0]
    return number

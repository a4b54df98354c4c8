"""When records are sent again that the relay refused for a reason that may have ended."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.client.nmem.sync import MAY_END
from relay.client.nmem.updates import about, set_about
from relay.memory.fields import compact

if TYPE_CHECKING:
    from relay.client.client import Client
    from relay.client.nmem.database import Database

_RETRIED: Final = "retried"
"""In `_rk_about`: when refused records were sent last, and a hash of what then held."""
_DAY: Final = 86_400
_HOUR: Final = 3_600
"""A relay's document may change with each request."""


async def are_due(client: Client, database: Database, settings: str, now: int) -> bool:
    """Whether refused records are due: a day after the last time, or when the relay, its document
    or the settings have changed. Notes that they are sent. Raises CacheUnusable, OSError."""
    if not await asyncio.to_thread(_are_there, database):
        return False
    document = await client.information_or_empty()
    held = sha256(compact([client.url, settings, document]).encode()).hexdigest()
    return await asyncio.to_thread(_noted, database, held, now)


def last_refusal(database: Database) -> str:
    """The reason of the newest refused record; empty: there is none."""
    with database.reading() as db:
        found = db.execute(
            "SELECT refusal FROM _rk_outbox WHERE refusal IS NOT NULL"
            " ORDER BY position DESC LIMIT 1"
        ).fetchone()
        return "" if found is None else str(found[0])


def _are_there(database: Database) -> bool:
    with database.reading() as db:
        query = f"SELECT 1 FROM _rk_outbox WHERE {MAY_END} LIMIT 1"  # noqa: S608  text of ours
        return db.execute(query).fetchone() is not None


def _noted(database: Database, held: str, now: int) -> bool:
    with database.transaction() as db:
        at, _, last = (about(db, _RETRIED) or "").partition(" ")
        if at and 0 <= now - int(at) < (_HOUR if held != last else _DAY):
            return False
        set_about(db, {_RETRIED: f"{now} {held}"})
        return bool(at)  # the first time they have just been refused

"""Synchronises cache and relay: sends waiting records, fetches those of others (M-11)."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from relay.client.errors import (
    TEMPORARY,
    ClientError,
    Incomparable,
    PublishRefused,
    QueryClosed,
    Unanswered,
    Unreachable,
)
from relay.client.information import owners_in, reads_prefixes
from relay.client.nmem.apply import drop_deleted, put_all, set_event_id
from relay.client.sync import items_of
from relay.errors import Prefix
from relay.memory.draft import Draft
from relay.memory.nmem.checks import PIN
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from relay.client.client import Client
    from relay.client.nmem.apply import Progress
    from relay.client.nmem.database import Database
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

_SEND_BATCH: Final = 256
_FETCH_BATCH: Final = 500
"""Ids per REQ."""
_TEMPORARY: Final = TEMPORARY | {Prefix.AUTH_REQUIRED}
"""Temporary refusals: the record is sent again later."""
_OF_MEMORY: Final = [kinds.APP_DATA, kinds.APP_RECORD]
_TAGGED: Final[Mapping[str, object]] = {"kinds": _OF_MEMORY, "#t": ["nmem"]}
"""Every record of nmem except pins."""


@dataclass(frozen=True, slots=True)
class Synced:
    """Result of `sync`, in records."""

    sent: int = 0
    refused: int = 0
    """Refused by the relay in this run; kept with the reason."""
    waiting: int = 0
    """Not sent: connection lost, or temporarily refused."""
    fetched: int = 0
    deleted: int = 0
    """Deleted at the relay by their author."""


# -- sending --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record in the outbox."""

    position: int
    draft: Draft


async def send(
    client: Client, signer: SecretKey, database: Database, progress: Progress | None = None
) -> Synced:
    """Sign and send the outbox in order. Raises CacheUnusable, OSError."""
    sent = refused = waiting = after = 0
    while True:
        batch = await asyncio.to_thread(waiting_after, database, after)
        if not batch:
            return Synced(sent, refused, waiting)
        after = batch[-1].position
        events = await asyncio.to_thread(_signed, signer, batch)
        answers = await asyncio.gather(*map(client.publish, events), return_exceptions=True)
        done: list[tuple[Waiting, Event]] = []
        refusals: list[tuple[Waiting, str]] = []
        for each, event, answer in zip(batch, events, answers, strict=True):
            match answer:
                case PublishRefused(prefix=Prefix.DUPLICATE):
                    done.append((each, event))  # a newer version is stored
                case PublishRefused() if answer.prefix not in _TEMPORARY:
                    refusals.append((each, str(answer)))
                case ClientError():
                    waiting += 1
                case BaseException():
                    raise answer
                case _:
                    done.append((each, event))
        await asyncio.to_thread(record_answers, database, done, refusals)
        sent, refused = sent + len(done), refused + len(refusals)
        if progress is not None:
            progress(len(done))
        if any(isinstance(answer, (Unanswered, Unreachable)) for answer in answers):
            waiting += len(await asyncio.to_thread(waiting_after, database, after, -1))
            return Synced(sent, refused, waiting)


def _signed(signer: SecretKey, batch: Sequence[Waiting]) -> list[Event]:
    return [signer.sign(*each.draft) for each in batch]


def waiting_after(database: Database, position: int, number: int = _SEND_BATCH) -> list[Waiting]:
    """The first `number` records after a position; -1: all."""
    with database.reading() as db:
        rows = db.execute(
            "SELECT position, kind, tags, content, created_at FROM _rk_outbox"
            " WHERE refusal IS NULL AND position > ? ORDER BY position LIMIT ?",
            (position, number),
        )
        return [
            Waiting(row[0], Draft(row[1], orjson.loads(row[2]), row[3], row[4])) for row in rows
        ]


def record_answers(
    database: Database,
    done: Sequence[tuple[Waiting, Event]],
    refused: Sequence[tuple[Waiting, str]],
) -> None:
    """Record what the relay accepted, and what it refused with its reason."""
    with database.transaction() as db:
        for each, event in done:
            set_event_id(db, event)
            db.execute("DELETE FROM _rk_outbox WHERE position = ?", (each.position,))
        db.executemany(
            "UPDATE _rk_outbox SET refusal = ? WHERE position = ?",
            [(why, each.position) for each, why in refused],
        )


# -- fetching -------------------------------------------------------------------------------------


async def fetch(
    client: Client, signer: SecretKey, database: Database, progress: Progress | None = None
) -> Synced:
    """Fetch records missing in the cache, and apply deletions.

    Raises QueryClosed, Unanswered, CacheUnusable, OSError.
    """
    records, pins, authors = await asyncio.to_thread(_known, database)
    document = await client.information_or_empty()
    owners = owners_in(document)  # owners may pin records of others (M-07)
    events, missing = await _missing(client, records)
    keys = {signer.pubkey, *authors, *owners, *(event.pubkey for event in events)}
    at_relay = await _pins(client, document, keys)
    events += [event for event in at_relay if event.id not in pins and event.id not in records]
    missing += pins - {event.id for event in at_relay}
    fetched = await asyncio.to_thread(
        put_all, database, events, signer.pubkey, owners, progress=progress
    )
    deleted = await _deletions_of(client, missing)
    dropped = await asyncio.to_thread(drop_deleted, database, deleted)
    return Synced(fetched=fetched, deleted=dropped)


async def fetch_all(
    client: Client,
    signer: SecretKey,
    document: Mapping[str, object],
    progress: Progress | None = None,
) -> list[Event]:
    """Every nmem record that this key may read. `document`: the relay information document.

    Raises QueryClosed, Unanswered.
    """
    found: list[Event] = []
    # Most records are one's own, and queries by author take half the time.
    async for events in client.query_pages({"kinds": _OF_MEMORY, "authors": [signer.pubkey]}):
        found += [event for event in events if event.d.startswith("nmem:")]
        if progress is not None:
            progress(len(events))
    others, _ = await _missing(client, {event.id: event.created_at for event in found})
    known = {event.id for event in found}
    keys = {event.pubkey for event in others} | owners_in(document)
    pins = [event for event in await _pins(client, document, keys) if event.id not in known]
    if progress is not None:
        progress(len(others) + len(pins))
    return found + others + pins


async def _missing(client: Client, known: Mapping[str, int]) -> tuple[list[Event], list[str]]:
    """Records at the relay not in `known` (id → `created_at`), and known ids missing there."""
    items = items_of(array("Q", known.values()), b"".join(bytes.fromhex(id_) for id_ in known))
    try:
        difference = await client.reconcile(_TAGGED, items)
    except (Incomparable, QueryClosed):
        at_relay: dict[str, Event] = {}
        async for events in client.query_pages(_TAGGED):
            at_relay.update((event.id, event) for event in events)
        new = [event for id_, event in at_relay.items() if id_ not in known]
        return new, [id_ for id_ in known if id_ not in at_relay]
    needed = [id_.hex() for id_ in difference.need]
    return await _with_ids(client, needed), [id_.hex() for id_ in difference.have]


async def _pins(
    client: Client, document: Mapping[str, object], keys: Collection[str]
) -> list[Event]:
    """Pins, which have no common tag. Without prefix queries (G-09): those of these authors."""
    wanted: dict[str, object] = {"kinds": [kinds.APP_DATA], "authors": sorted(keys)}
    if reads_prefixes(document, kinds.APP_DATA):
        wanted = {"kinds": [kinds.APP_DATA], "#d": [PIN]}
    elif not keys:
        return []
    found: list[Event] = []
    async for events in client.query_pages(wanted):
        found += [event for event in events if event.d.startswith(PIN)]
    return found


async def _with_ids(client: Client, ids: Sequence[str]) -> list[Event]:
    events: list[Event] = []
    for start in range(0, len(ids), _FETCH_BATCH):
        part = list(ids[start : start + _FETCH_BATCH])
        events += await client.query({"ids": part, "kinds": _OF_MEMORY})
    return events


async def _deletions_of(client: Client, ids: Sequence[str]) -> list[tuple[str, str]]:
    """Those deleted by a kind 5, with its author. Events merely missing at the relay are kept."""
    deletions: list[tuple[str, str]] = []
    for start in range(0, len(ids), _FETCH_BATCH):
        part = list(ids[start : start + _FETCH_BATCH])
        for event in await client.query({"kinds": [kinds.DELETION], "#e": part}):
            deletions += [(id_, event.pubkey) for id_ in event.tag_values("e")]
    wanted = set(ids)
    return [each for each in deletions if each[0] in wanted]


def _known(database: Database) -> tuple[dict[str, int], set[str], set[str]]:
    """Records known to the relay (id → `created_at`), pins, and other authors."""
    with database.reading() as db:
        records = dict(
            db.execute(
                "SELECT event_id, created_at FROM _rk_observations WHERE event_id IS NOT NULL"
                " UNION ALL SELECT event_id, created_at FROM _rk_prompts WHERE event_id IS NOT NULL"
                " UNION ALL SELECT event_id, created_at FROM _rk_sessions"
                " WHERE event_id IS NOT NULL"
                " UNION ALL SELECT event_id, created_at FROM _rk_passed_over"
            ).fetchall()
        )
        pins = db.execute("SELECT event_id FROM _rk_pins WHERE event_id IS NOT NULL").fetchall()
        authors = db.execute("SELECT DISTINCT author FROM _rk_sessions WHERE author <> ''")
        return records, {id_ for (id_,) in pins}, {author for (author,) in authors}

"""A cache and the relay become alike: what waits is sent, what others wrote is fetched. M-11."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from relay.client.errors import (
    ClientError,
    Incomparable,
    PublishRefused,
    QueryClosed,
    Unanswered,
    Unreachable,
)
from relay.client.information import owners_in, reads_prefixes
from relay.client.nmem.taking import drop_deleted, note_event, put_all
from relay.client.sync import items_of
from relay.errors import Prefix
from relay.memory.draft import Draft
from relay.memory.nmem.checks import PIN
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from relay.client.client import Client
    from relay.client.nmem.database import Database
    from relay.client.nmem.taking import Progress
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

_SENT_AT_ONCE: Final = 256
_ASKED_AT_ONCE: Final = 500
"""Ids of one REQ."""
_PASSING: Final = frozenset({Prefix.ERROR, Prefix.RATE_LIMITED, Prefix.AUTH_REQUIRED})
"""Refusals that say nothing about the record: it is sent again another time."""
_OF_MEMORY: Final = [kinds.APP_DATA, kinds.APP_RECORD]
_TAGGED: Final[Mapping[str, object]] = {"kinds": _OF_MEMORY, "#t": ["nmem"]}
"""Every record of nmem but pins."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What `sync` did, in records."""

    sent: int = 0
    refused: int = 0
    """By the relay, this time: kept, with the reason."""
    waiting: int = 0
    """Not sent: the relay went away, or put them off."""
    fetched: int = 0
    deleted: int = 0
    """Somebody had the relay delete them."""


# -- sent -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record in the outbox."""

    position: int
    draft: Draft


async def send(
    client: Client, signer: SecretKey, database: Database, progress: Progress | None = None
) -> Synced:
    """Sign and send what waits, in its order. Raises CacheUnusable, OSError."""
    sent = refused = waiting = after = 0
    while True:
        batch = await asyncio.to_thread(waiting_after, database, after)
        if not batch:
            return Synced(sent, refused, waiting)
        after = batch[-1].position
        events = await asyncio.to_thread(_signed, signer, batch)
        answers = await asyncio.gather(*map(client.publish, events), return_exceptions=True)
        done: list[tuple[Waiting, Event]] = []
        not_taken: list[tuple[Waiting, str]] = []
        for each, event, answer in zip(batch, events, answers, strict=True):
            match answer:
                case PublishRefused(prefix=Prefix.DUPLICATE):
                    done.append((each, event))  # a newer version is stored
                case PublishRefused() if answer.prefix not in _PASSING:
                    not_taken.append((each, str(answer)))
                case ClientError():
                    waiting += 1
                case BaseException():
                    raise answer
                case _:
                    done.append((each, event))
        await asyncio.to_thread(settle, database, done, not_taken)
        sent, refused = sent + len(done), refused + len(not_taken)
        if progress is not None:
            progress(len(done))
        if any(isinstance(answer, (Unanswered, Unreachable)) for answer in answers):
            waiting += len(await asyncio.to_thread(waiting_after, database, after, -1))
            return Synced(sent, refused, waiting)


def _signed(signer: SecretKey, batch: Sequence[Waiting]) -> list[Event]:
    return [signer.sign(*each.draft) for each in batch]


def waiting_after(database: Database, position: int, number: int = _SENT_AT_ONCE) -> list[Waiting]:
    """Those behind a position, the first `number` of them; -1: all."""
    with database.reading() as db:
        rows = db.execute(
            "SELECT position, kind, tags, content, created_at FROM _rk_outbox"
            " WHERE refusal IS NULL AND position > ? ORDER BY position LIMIT ?",
            (position, number),
        )
        return [
            Waiting(row[0], Draft(row[1], orjson.loads(row[2]), row[3], row[4])) for row in rows
        ]


def settle(
    database: Database,
    done: Sequence[tuple[Waiting, Event]],
    refused: Sequence[tuple[Waiting, str]],
) -> None:
    """Note what the relay has taken, and what it never will, with its reason."""
    with database.transaction() as db:
        for each, event in done:
            note_event(db, event)
            db.execute("DELETE FROM _rk_outbox WHERE position = ?", (each.position,))
        db.executemany(
            "UPDATE _rk_outbox SET refusal = ? WHERE position = ?",
            [(why, each.position) for each, why in refused],
        )


# -- fetched --------------------------------------------------------------------------------------


async def fetch(
    client: Client, signer: SecretKey, database: Database, progress: Progress | None = None
) -> Synced:
    """Take in what the relay has and the cache lacks, and what was deleted there.

    Raises QueryClosed, Unanswered, CacheUnusable, OSError.
    """
    records, pins, authors = await asyncio.to_thread(_known, database)
    said = await client.information_or_empty()
    owners = owners_in(said)  # who pins what others wrote (M-07)
    events, gone = await _missing(client, records)
    people = {signer.pubkey, *authors, *owners, *(event.pubkey for event in events)}
    there = await _pins(client, said, people)
    events += [event for event in there if event.id not in pins and event.id not in records]
    gone += pins - {event.id for event in there}
    fetched = await asyncio.to_thread(
        put_all, database, events, signer.pubkey, owners, progress=progress
    )
    deleted = await _deleted_of(client, gone)
    dropped = await asyncio.to_thread(drop_deleted, database, deleted)
    return Synced(fetched=fetched, deleted=dropped)


async def everything(
    client: Client,
    signer: SecretKey,
    said: Mapping[str, object],
    progress: Progress | None = None,
) -> list[Event]:
    """Every record of nmem that this key may read. `said`: by the relay of itself (NIP-11).

    Raises QueryClosed, Unanswered.
    """
    found: list[Event] = []
    # Most are one's own, and a relay finds those of one author in half the time.
    async for events in client.query_pages({"kinds": _OF_MEMORY, "authors": [signer.pubkey]}):
        found += [event for event in events if event.d.startswith("nmem:")]
        if progress is not None:
            progress(len(events))
    others, _ = await _missing(client, {event.id: event.created_at for event in found})
    known = {event.id for event in found}
    people = {event.pubkey for event in others} | owners_in(said)
    pins = [event for event in await _pins(client, said, people) if event.id not in known]
    if progress is not None:
        progress(len(others) + len(pins))
    return found + others + pins


async def _missing(client: Client, known: Mapping[str, int]) -> tuple[list[Event], list[str]]:
    """Records at the relay beyond those known (id → `created_at`), and ids that it lacks."""
    items = items_of(array("Q", known.values()), b"".join(bytes.fromhex(id_) for id_ in known))
    try:
        difference = await client.reconcile(_TAGGED, items)
    except (Incomparable, QueryClosed):
        there: dict[str, Event] = {}
        async for events in client.query_pages(_TAGGED):
            there.update((event.id, event) for event in events)
        new = [event for id_, event in there.items() if id_ not in known]
        return new, [id_ for id_ in known if id_ not in there]
    needed = [id_.hex() for id_ in difference.need]
    return await _with_ids(client, needed), [id_.hex() for id_ in difference.have]


async def _pins(client: Client, said: Mapping[str, object], people: Collection[str]) -> list[Event]:
    """Pins, which have no tag of their own. At a relay that does not read `:` at the end of a `#d`
    as a prefix (G-09): those of these people."""
    wanted: dict[str, object] = {"kinds": [kinds.APP_DATA], "authors": sorted(people)}
    if reads_prefixes(said, kinds.APP_DATA):
        wanted = {"kinds": [kinds.APP_DATA], "#d": [PIN]}
    elif not people:
        return []
    found: list[Event] = []
    async for events in client.query_pages(wanted):
        found += [event for event in events if event.d.startswith(PIN)]
    return found


async def _with_ids(client: Client, ids: Sequence[str]) -> list[Event]:
    events: list[Event] = []
    for start in range(0, len(ids), _ASKED_AT_ONCE):
        part = list(ids[start : start + _ASKED_AT_ONCE])
        events += await client.query({"ids": part, "kinds": _OF_MEMORY})
    return events


async def _deleted_of(client: Client, ids: Sequence[str]) -> list[tuple[str, str]]:
    """Those that a kind 5 names, each with who asked. What the relay merely lacks stays here."""
    asked: list[tuple[str, str]] = []
    for start in range(0, len(ids), _ASKED_AT_ONCE):
        part = list(ids[start : start + _ASKED_AT_ONCE])
        for event in await client.query({"kinds": [kinds.DELETION], "#e": part}):
            asked += [(id_, event.pubkey) for id_ in event.tag_values("e")]
    wanted = set(ids)
    return [each for each in asked if each[0] in wanted]


def _known(database: Database) -> tuple[dict[str, int], set[str], set[str]]:
    """Records that the relay told of or took (id → `created_at`), pins, and others who wrote."""
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

"""Synchronises cache and relay: sends waiting records, fetches those of others (M-11)."""

from __future__ import annotations

import asyncio
from array import array
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from relay.client.errors import (
    IN_THE_FUTURE,
    TEMPORARY,
    AnswerTooLong,
    ClientError,
    Incomparable,
    PublishRefused,
    QueryClosed,
    Unanswered,
    Unreachable,
)
from relay.client.information import GROUPS, lists_nip, owners_in, reads_prefixes
from relay.client.nmem.apply import (
    SOURCES,
    drop_deleted,
    drop_refused,
    put_all,
    set_event_id,
)
from relay.client.nmem.updates import (
    ONESELF,
    about,
    date_deletion,
    session_deletions,
    set_about,
)
from relay.client.paging import MAX_READ_BYTES, PageSize
from relay.client.sync import items_of
from relay.client.withdrawn import withdrawn
from relay.errors import EVENT_BANNED, Prefix
from relay.memory.draft import Draft
from relay.memory.fence import name_in
from relay.memory.fields import compact
from relay.memory.nmem.checks import PIN
from relay.nostr import kinds
from relay.nostr.event import MADE_FROM, Address, Event, object_in, weight_of

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Mapping,
        Sequence,
    )

    from relay.client.client import Client
    from relay.client.nmem.apply import Progress
    from relay.client.nmem.database import Database
    from relay.client.nmem.sources import Sources
    from relay.nostr.keys import SecretKey

_SEND_BATCH: Final = 256
_FETCH_BATCH: Final = 500
"""Ids per REQ."""
_DELETIONS_AT_ONCE: Final = 100
"""Of sessions, per query."""
_MAX_HELD: Final = 2**31
"""Bytes of memory for one's own records that a rebuild fetches, and for those of others, as
`weight_of` estimates it: 400,000 records."""
_MAX_COLLECTED: Final = 2**25
"""Bytes of the records of others that are fetched before they are put into the cache together, in
the order of their dates."""
_PUT_S: Final = 10.0
"""After so long they are put too: one that is interrupted on a slow line keeps what it has."""
_DELETED: Final = "blocked: deleted"
"""The refusal of `PublishRefused.is_deleted`, as earlier versions kept it."""
MAY_END: Final = (
    "(refusal LIKE 'restricted:%' OR refusal LIKE 'blocked:%'"
    f" AND refusal NOT IN ('{_DELETED}', 'blocked: {EVENT_BANNED}'))"
)
"""Condition on the outbox: refused until the operator lists, admits or unbans the author, or
changes a policy."""
_WAS_EARLY: Final = f"(refusal LIKE 'invalid: created_at: %{IN_THE_FUTURE}%' AND created_at <= ?)"
"""Condition on the outbox: refused for a date that has passed. The clock was ahead."""
_TEMPORARY: Final = TEMPORARY | {Prefix.AUTH_REQUIRED}
"""Temporary refusals: the record is sent again later."""
_OF_MEMORY: Final = [kinds.APP_DATA, kinds.APP_RECORD]


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
    """Deleted at the relay by their author, or refused there because they are deleted."""
    removed: int = 0
    """Records of others that the relay no longer gives to this key."""


# -- sending --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """A record in the outbox."""

    position: int
    draft: Draft


async def send(
    client: Client,
    signer: SecretKey,
    database: Database,
    progress: Progress | None = None,
    *,
    retries: bool = False,
) -> Synced:
    """Sign and send the outbox in order, also what was dated too far ahead and no longer is.
    `retries`: also what the relay refused for a reason that may have ended. Raises CacheUnusable,
    OSError."""
    sent = refused = waiting = dropped = after = 0
    with suppress(ClientError):  # then the deletions wait too, or this key may not read
        await _date_deletions(client, signer, database)
    while True:
        now = client.now()
        batch = await asyncio.to_thread(waiting_after, database, after, retries=retries, now=now)
        if not batch:
            return Synced(sent, refused, waiting, deleted=dropped)
        after = batch[-1].position
        events = await asyncio.to_thread(_signed, signer, batch)
        answers = await asyncio.gather(
            *(_publish(client, signer, event) for event in events), return_exceptions=True
        )
        done: list[tuple[Waiting, Event]] = []
        refusals: list[tuple[Waiting, str]] = []
        deleted: list[tuple[Waiting, Event]] = []
        for each, event, answer in zip(batch, events, answers, strict=True):
            match answer:
                case PublishRefused(is_deleted=True) if event.kind != kinds.DELETION:
                    deleted.append((each, event))
                case PublishRefused(is_base_deleted=True):
                    deleted.append((each, event))
                case PublishRefused(prefix=Prefix.DUPLICATE):
                    done.append((each, event))  # a newer version is stored
                case PublishRefused() if answer.prefix not in _TEMPORARY:
                    refusals.append((each, str(answer)))
                case ClientError():
                    waiting += 1
                case BaseException():
                    raise answer
                case Event() as published:
                    done.append((each, published))
        dropped += await asyncio.to_thread(record_answers, database, done, refusals, deleted)
        sent, refused = sent + len(done), refused + len(refusals)
        if progress is not None:
            progress(len(done))
        if any(isinstance(answer, (Unanswered, Unreachable)) for answer in answers):
            waiting += len(await asyncio.to_thread(waiting_after, database, after, -1))
            return Synced(sent, refused, waiting, deleted=dropped)


async def _publish(client: Client, signer: SecretKey, event: Event) -> Event:
    """Publish a record, and return what was published: of two machines that ended a session without
    each other the newer version is kept, whatever it was made from. Raises as `Client.publish`."""
    try:
        await client.publish(event)
    except PublishRefused as refusal:
        if not refusal.is_rival:
            raise
        tags = [tag for tag in event.tags if tag[0] != MADE_FROM]
        event = signer.sign(event.kind, tags, event.content, event.created_at)
        await client.publish(event)
    return event


async def _date_deletions(client: Client, signer: SecretKey, database: Database) -> None:
    """Date the deletions of sessions as the versions that another machine has made of them
    meanwhile: these are deleted too. Raises ClientError, OSError."""

    def waiting() -> list[tuple[str, tuple[int, int]]]:
        with database.reading() as db:
            return list(session_deletions(db).items())

    def date(found: Sequence[tuple[int, Event]]) -> None:
        with database.transaction() as db:
            for position, version in found:
                date_deletion(db, position, version)

    all_waiting = await asyncio.to_thread(waiting)
    for start in range(0, len(all_waiting), _DELETIONS_AT_ONCE):
        part = dict(all_waiting[start : start + _DELETIONS_AT_ONCE])
        own: dict[str, object] = {"authors": [signer.pubkey]}
        ds = [address.split(":", 2)[2] for address in part]
        versions = own | {"kinds": [kinds.APP_DATA], "#d": ds}
        again = own | {"kinds": [kinds.DELETION], "#a": list(part)}
        found = [event async for event in client.query_all(versions, again)]
        until: dict[str, int] = {}
        for event in found:
            for address in event.tag_values("a"):
                until[address] = max(event.created_at, until.get(address, 0))
        made: list[tuple[int, Event]] = []
        for event in found:
            address = str(Address(event.pubkey, event.kind, event.d))
            position, at = part.get(address, (0, event.created_at))
            # What was deleted again since then begins anew.
            is_again = at <= until.get(address, -1)
            if event.created_at > at and not is_again and _began_before(event, at):
                made.append((position, event))
        if made:
            await asyncio.to_thread(date, made)


def _began_before(version: Event, at: int) -> bool:
    """Whether a session began before it was purged: one that was recorded anew began later."""
    began = (object_in(version.content) or {}).get("started_at")
    return isinstance(began, int) and began <= at


def _signed(signer: SecretKey, batch: Sequence[Waiting]) -> list[Event]:
    return [signer.sign(*each.draft) for each in batch]


def waiting_after(
    database: Database,
    position: int,
    number: int = _SEND_BATCH,
    *,
    retries: bool = False,
    now: int = 0,
) -> list[Waiting]:
    """The first `number` records after a position; -1: all. `now`: Unix seconds."""
    with database.reading() as db:
        rows = db.execute(
            "SELECT position, kind, tags, content, created_at FROM _rk_outbox"  # noqa: S608  of ours
            # Of an earlier version: it is sent once more, and then dropped.
            " WHERE (refusal IS NULL OR refusal = ? AND kind <> ?"
            f" OR ? AND {MAY_END} OR {_WAS_EARLY}) AND position > ? ORDER BY position LIMIT ?",
            (_DELETED, kinds.DELETION, retries, now, position, number),
        )
        return [
            Waiting(row[0], Draft(row[1], orjson.loads(row[2]), row[3], row[4])) for row in rows
        ]


def record_answers(
    database: Database,
    done: Sequence[tuple[Waiting, Event]],
    refused: Sequence[tuple[Waiting, str]],
    deleted: Sequence[tuple[Waiting, Event]] = (),
) -> int:
    """Record what the relay accepted, and what it refused with its reason. What it refused as
    deleted leaves the cache; returns the number of its rows."""
    with database.transaction() as db:
        for _, event in done:
            set_event_id(db, event)
        db.executemany(
            "DELETE FROM _rk_outbox WHERE position = ?",
            [(each.position,) for each, _ in (*done, *deleted)],
        )
        db.executemany(
            "UPDATE _rk_outbox SET refusal = ? WHERE position = ?",
            [(why, each.position) for each, why in refused],
        )
        return sum(drop_refused(db, event) for _, event in deleted)


# -- fetching -------------------------------------------------------------------------------------


async def fetch(
    client: Client,
    signer: SecretKey,
    database: Database,
    sources: Sources,
    progress: Progress | None = None,
) -> Synced:
    """Fetch records missing in the cache, and drop those that were deleted. Those of others that
    the relay no longer gives go too: a deletion by an admin, or a ban of their author, leaves no
    kind 5.

    Raises QueryClosed, Unanswered, CacheUnusable, OSError.
    """
    known = await asyncio.to_thread(_known, database)
    document = await client.information_or_empty()
    owners = owners_in(document)  # owners may pin records of others (M-07)
    trusted = owners | sources.agents | {signer.pubkey}
    keys = {*trusted, *known.foreign.values()}
    fetched = weight = 0
    clock = asyncio.get_running_loop().time
    put_at = clock()
    collected: list[Event] = []

    async def put() -> None:
        nonlocal fetched, weight, put_at
        fetched += await asyncio.to_thread(
            put_all, database, collected, signer.pubkey, owners, progress=progress
        )
        weight, put_at = 0, clock()
        collected.clear()

    async def take(events: Sequence[Event]) -> None:
        # In parts: what one author wrote, however much it is, keeps nothing of others away.
        nonlocal weight
        keys.update(event.pubkey for event in events)
        collected.extend(events)
        weight += sum(map(weight_of, events))
        if weight > _MAX_COLLECTED or clock() - put_at >= _PUT_S:
            await put()

    authors = {**known.foreign, **{id_: author for id_, author in known.pins.items() if author}}
    dropped = 0

    async def drop(absent: Sequence[str]) -> None:
        nonlocal dropped
        writers = {authors.get(id_, signer.pubkey) for id_ in absent}
        deleted = await _deletions_of(client, writers, absent)
        if sources.group is not None and lists_nip(document, GROUPS):
            # Of another relay, or in a group of their own, anybody could send one.
            deleted += await _deletions_by_admins(client, signer.pubkey, sources.group, absent)
        deleted += await _deletions_by_address(client, signer.pubkey, database, absent)
        dropped += await asyncio.to_thread(drop_deleted, database, deleted)

    try:
        missing, needed = await _missing(
            client, document, known.records, known.foreign, sources, trusted, take
        )
        if client.is_known_as(signer.pubkey, document):
            # Of what was passed over no more than the id is known, and it may come again.
            gone_over = known.passed_over.intersection(missing)
            await asyncio.to_thread(_forget_passed_over, database, gone_over)
        missing = [id_ for id_ in missing if id_ not in known.passed_over]
        await drop(missing)  # whatever becomes of the records, which may be many
        async for events in _with_ids(client, needed):
            await take(_of_sources(events, sources, trusted))
        missing_pins = await _missing_pins(client, document, keys, known.pins_at, take)
    except ClientError:
        await put()  # the next synchronisation goes on from there
        raise
    await put()
    await drop([*missing_pins])
    missing += missing_pins
    gone = [id_ for id_ in missing if id_ in authors]
    no_more_given = await withdrawn(client, signer.pubkey, document, gone)
    if document:
        marks = compact([sources.group, sorted(sources.agents), sorted(owners)])
        if known.sources != marks:
            # Taken in from other sources, or by a version that took in whatever it could read.
            others = [
                (id_, known.foreign[id_])
                for id_ in missing
                if id_ in known.foreign and known.foreign[id_] not in trusted
            ]
            dropped += await asyncio.to_thread(drop_deleted, database, others)
    removed = await asyncio.to_thread(
        drop_deleted, database, [(id_, authors[id_]) for id_ in no_more_given]
    )
    if document and known.sources != marks:
        await asyncio.to_thread(_note, database, {SOURCES: marks})
    await _learn_names(client, database)
    return Synced(fetched=fetched, deleted=dropped, removed=removed)


def _forget_passed_over(database: Database, ids: Collection[str]) -> None:
    if ids:
        with database.transaction() as db:
            named = [(id_,) for id_ in sorted(ids)]
            db.executemany("DELETE FROM _rk_passed_over WHERE event_id = ?", named)


def _note(database: Database, values: Mapping[str, str]) -> None:
    with database.transaction() as db:
        set_about(db, values)


async def _learn_names(client: Client, database: Database) -> None:
    """Names of the other authors, from their profiles."""
    authors = set((await asyncio.to_thread(_known, database)).foreign.values())
    if not authors:
        return
    names: dict[str, str] = {}
    async for events in client.query_pages({"kinds": [kinds.PROFILE], "authors": sorted(authors)}):
        for event in events:
            name = (object_in(event.content) or {}).get("name")
            names[f"name:{event.pubkey}"] = name_in(name) if isinstance(name, str) else ""
    await asyncio.to_thread(_note, database, names)


async def fetch_all(
    client: Client,
    signer: SecretKey,
    document: Mapping[str, object],
    sources: Sources,
    progress: Progress | None = None,
) -> list[Event]:
    """Every nmem record of these sources that this key may read. `document`: the relay information
    document.

    Raises QueryClosed, Unanswered.
    """
    found: list[Event] = []
    # Most records are one's own, and queries by author take half the time.
    own = {"kinds": _OF_MEMORY, "authors": [signer.pubkey]}
    async for events in client.query_pages(own, most_bytes=_MAX_HELD):
        found += [event for event in events if event.d.startswith("nmem:")]
        if progress is not None:
            progress(len(events))
    known = {event.id: event.created_at for event in found}
    trusted = owners_in(document) | sources.agents | {signer.pubkey}
    others: list[Event] = []
    weight = 0

    async def take(events: Sequence[Event]) -> None:
        nonlocal weight
        weight += sum(map(weight_of, events))
        if weight <= _MAX_HELD:  # else the cache has the first ones only
            others.extend(events)

    _, needed = await _missing(client, document, known, {}, sources, trusted, take)
    async for events in _with_ids(client, needed):
        await take(_of_sources(events, sources, trusted))
    keys = {event.pubkey for event in others} | trusted
    pins: list[Event] = []

    async def take_pins(events: Sequence[Event]) -> None:
        pins.extend(event for event in events if event.id not in known)

    await _missing_pins(client, document, keys, {}, take_pins)
    if progress is not None:
        progress(len(others) + len(pins))
    return found + others + pins


async def _missing(
    client: Client,
    document: Mapping[str, object],
    known: Mapping[str, int],
    foreign: Mapping[str, str],
    sources: Sources,
    trusted: frozenset[str],
    take: Callable[[Sequence[Event]], Awaitable[None]],
) -> tuple[list[str], list[str]]:
    """Known ids missing at the relay, and ids there that are not in `known` (id → `created_at`).
    From a relay without NIP-77 `take` gets the records of the sources that are not in `known`, in
    pages, instead.

    `foreign`: the authors of known records of others.
    """
    # Every record of nmem except pins.
    tagged: dict[str, object] = {"kinds": _OF_MEMORY, "#t": ["nmem"]}
    if all(reads_prefixes(document, kind) for kind in _OF_MEMORY):
        tagged["#d"] = ["nmem:"]  # else also app data of anybody in the group with this `t`
    by_trusted = {id_: at for id_, at in known.items() if foreign.get(id_, "") in trusted | {""}}
    parts: list[tuple[dict[str, object], Mapping[str, int]]] = [
        ({**tagged, "authors": sorted(trusted)}, by_trusted)
    ]
    if sources.group is not None:
        parts.append(({**tagged, "#h": [sources.group]}, known))
    missing = dict.fromkeys(known)
    needed: dict[str, None] = {}
    taken: set[str] = set()

    async def take_new(events: Sequence[Event]) -> None:
        found = _of_sources(events, sources, trusted)
        new = [event for event in found if event.id not in taken]
        taken.update(event.id for event in new)
        if new:
            await take(new)

    for filter_, part in parts:
        absent, at_relay = await _compared(client, filter_, part, take_new)
        needed |= dict.fromkeys(at_relay)
        for id_ in part.keys() - absent:
            missing.pop(id_, None)
    return list(missing), [id_ for id_ in needed if id_ not in taken]


def _of_sources(events: Iterable[Event], sources: Sources, trusted: frozenset[str]) -> list[Event]:
    """A relay may send other events than those that were asked for."""
    return [
        event
        for event in events
        if event.pubkey in trusted
        or (sources.group is not None and event.tag("h") == sources.group)
    ]


async def _compared(
    client: Client,
    filter_: Mapping[str, object],
    known: Mapping[str, int],
    take: Callable[[Sequence[Event]], Awaitable[None]],
) -> tuple[set[str], list[str]]:
    """Known ids missing at the relay, and ids there that are not in `known`, or of a relay without
    NIP-77 none: `take` gets these records."""
    items = items_of(array("Q", known.values()), b"".join(bytes.fromhex(id_) for id_ in known))
    try:
        difference = await client.reconcile(filter_, items)
    except (Incomparable, QueryClosed):
        absent = set(known)
        try:
            async for events in client.query_pages(filter_, most_bytes=MAX_READ_BYTES):
                absent.difference_update(event.id for event in events)
                await take([event for event in events if event.id not in known])
        except QueryClosed as closed:
            if closed.prefix != Prefix.RESTRICTED:
                raise  # otherwise this key is no member of the group
        return absent, []
    return {id_.hex() for id_ in difference.have}, [id_.hex() for id_ in difference.need]


async def _missing_pins(
    client: Client,
    document: Mapping[str, object],
    keys: Collection[str],
    known: Mapping[str, int],
    take: Callable[[Sequence[Event]], Awaitable[None]],
) -> set[str]:
    """Known ids missing at the relay, of pins by these authors; `take` gets the others there. Pins
    have no common tag: without their prefix (G-09), which a relay need not support, all records of
    the authors are read."""
    if not keys:
        return set(known)
    wanted: dict[str, object] = {"kinds": [kinds.APP_DATA], "authors": sorted(keys)}
    if reads_prefixes(document, kinds.APP_DATA):
        wanted["#d"] = [PIN]

    async def take_pins(events: Sequence[Event]) -> None:
        await take([each for each in events if each.d.startswith(PIN) and each.pubkey in keys])

    absent, needed = await _compared(client, wanted, known, take_pins)
    async for events in _with_ids(client, needed):
        await take_pins(events)
    return absent


async def _with_ids(client: Client, ids: Sequence[str]) -> AsyncGenerator[list[Event], None]:
    """In pages, of fewer after an answer that was too long, or not complete within the deadline.
    An event that is too long alone is left out."""
    size, start = PageSize(_FETCH_BATCH), 0
    while part := list(ids[start : start + size.value]):
        try:
            found = await client.query({"ids": part, "kinds": _OF_MEMORY})
        except AnswerTooLong:
            start += not size.narrow(len(part))
        except Unanswered as error:
            if not (error.events and size.narrow(min(error.events, len(part)))):
                raise
        else:
            yield found
            start += len(part)
            size.grow()


async def _deletions_of(
    client: Client, writers: Collection[str], ids: Sequence[str]
) -> list[tuple[str, str]]:
    """(id, author of the deletion) for those deleted by a kind 5 of one of their writers. Anybody
    may name these ids in a kind 5, in as many as a relay will take."""
    by_writers = {"kinds": [kinds.DELETION], "authors": sorted(writers)}
    wanted, deletions = set(ids), list[tuple[str, str]]()
    for start in range(0, len(ids), _FETCH_BATCH):
        part = list(ids[start : start + _FETCH_BATCH])
        async for events in client.query_pages(
            {**by_writers, "#e": part}, most_bytes=MAX_READ_BYTES
        ):
            for event in events:
                named = wanted.intersection(event.tag_values("e"))
                deletions += [(id_, event.pubkey) for id_ in sorted(named)]
    return deletions


async def _deletions_by_admins(
    client: Client, pubkey: str, group: str, ids: Sequence[str]
) -> list[tuple[str, str]]:
    """One's own that a 9005 of the group names, which leaves no kind 5: (id, oneself). Of others as
    by address."""
    wanted, found = set(ids), set[str]()
    for start in range(0, len(ids), _FETCH_BATCH):
        part = list(ids[start : start + _FETCH_BATCH])
        here = {"kinds": [kinds.DELETE_EVENT], "#h": [group]}
        for event in await client.query({**here, "#e": part}):
            found |= wanted.intersection(event.tag_values("e"))
    return [(id_, pubkey) for id_ in sorted(found)]


async def _deletions_by_address(
    client: Client, pubkey: str, database: Database, ids: Collection[str]
) -> list[tuple[str, str]]:
    """The same for one's own that a kind 5 names by address. Those of others leave anyway, as the
    relay no longer gives them."""
    own = await asyncio.to_thread(_own_addresses, database, pubkey) if ids else {}
    missing = {own[id_]: id_ for id_ in ids if id_ in own}
    addresses = [address for address, _ in missing]
    until: dict[str, int] = {}
    for start in range(0, len(addresses), _FETCH_BATCH):
        part = addresses[start : start + _FETCH_BATCH]
        wanted = {"kinds": [kinds.DELETION], "authors": [pubkey], "#a": part}
        for event in await client.query(wanted):
            for address in event.tag_values("a"):
                until[address] = max(event.created_at, until.get(address, 0))
    return [(id_, pubkey) for (address, at), id_ in missing.items() if at <= until.get(address, -1)]


def _own_addresses(database: Database, pubkey: str) -> dict[str, tuple[str, int]]:
    """Id of each of one's own records → its address and `created_at`."""
    with database.reading() as db:
        rows = db.execute(
            "SELECT event_id, :record || d, created_at FROM _rk_observations WHERE author = :own"
            " UNION ALL SELECT event_id, :record || d, created_at FROM _rk_prompts"
            " WHERE author = :own"
            " UNION ALL SELECT event_id, :data || 'nmem:session:' || session_id, created_at"
            " FROM _rk_sessions WHERE author = :own"
            " UNION ALL SELECT event_id, :data || :pin || target, created_at FROM _rk_pins"
            " WHERE author = :own",
            {
                "own": ONESELF,
                "record": f"{kinds.APP_RECORD}:{pubkey}:",
                "data": f"{kinds.APP_DATA}:{pubkey}:",
                "pin": PIN,
            },
        )
        return {id_: (address, at) for id_, address, at in rows}


@dataclass(frozen=True, slots=True)
class _Known:
    """The records in the cache that came from the relay."""

    records: Mapping[str, int]
    """id → `created_at`."""
    foreign: Mapping[str, str]
    """id → author of records of others."""
    passed_over: frozenset[str]
    """ids of those that are not in the cache."""
    pins: Mapping[str, str]
    """id → author; empty: oneself."""
    pins_at: Mapping[str, int]
    """id → `created_at`."""
    sources: str | None


def _known(database: Database) -> _Known:
    with database.reading() as db:
        rows = db.execute(
            "SELECT event_id, created_at, author FROM _rk_observations WHERE event_id IS NOT NULL"
            " UNION ALL SELECT event_id, created_at, author FROM _rk_prompts"
            " WHERE event_id IS NOT NULL"
            " UNION ALL SELECT event_id, created_at, author FROM _rk_sessions"
            " WHERE event_id IS NOT NULL"
        ).fetchall()
        passed_over = db.execute("SELECT event_id, created_at FROM _rk_passed_over").fetchall()
        pins = db.execute(
            "SELECT event_id, author, created_at FROM _rk_pins WHERE event_id IS NOT NULL"
        ).fetchall()
        return _Known(
            {**{id_: at for id_, at, _ in rows}, **dict(passed_over)},
            {id_: author for id_, _, author in rows if author},
            frozenset([id_ for id_, _ in passed_over]),
            {id_: author for id_, author, _ in pins},
            {id_: at for id_, _, at in pins},
            about(db, SOURCES),
        )

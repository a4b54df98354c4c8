"""NIP-86: relay management calls, authorized by NIP-98.

`relay.access.management` parses parameters and knows what each method changes.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from relay.access.management import (
    CREATE_INVITE,
    INVITE_METHODS,
    LIST_BANNED,
    LIST_MEMBERS,
    LISTED_REPORTS,
    REVOKE_INVITE,
    ListName,
    blocklist_of,
    changes_of,
    entry,
    listed,
)
from relay.access.membership import claim_id, claims_of, listed_members
from relay.access.visibility import Viewer, visibility_for
from relay.errors import Invalid, Prefix, Refused, StoreFault
from relay.files import content_of, replace_own_file, sync
from relay.memory.fields import repaired
from relay.nostr import kinds
from relay.nostr.event import event_from_raw, is_hex64, object_in
from relay.nostr.filters import Filter
from relay.nostr.nip98 import WINDOW_S, authorization
from relay.read.query import STORE_DOWN
from relay.server.turns import Pauses
from relay.storage import PageQuery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from relay.access.management import Blocklist, ListChange
    from relay.access.membership import Claim
    from relay.access.visibility import Visibility
    from relay.nostr.event import Event
    from relay.nostr.nip42 import RelayAddress
    from relay.nostr.nip98 import HttpRequest
    from relay.state import RelayState
    from relay.storage import EventReader
    from relay.write.ingest import Ingest
    from relay.write.invitations import Invitations

_log = logging.getLogger(__name__)

MAX_BODY: Final = 65_536
"""Bytes of a request body."""
_MAX_CALLS: Final = 4096
"""Calls of all operators within the time window of NIP-98."""
_FEW: Final = 4
"""Calls that a key or address may have remembered while others use half more than all places."""
MAX_RECEIPTS: Final = 1024
"""Remembered receipt requests of keys other than owners: anybody may delete an event of their
own."""
_PAGE: Final = 1000
"""Rows of a page, and events that are looked up together."""
_LISTED: Final = 1000
"""Events that `listeventsneedingmoderation` lists."""
_EXAMINED: Final = 20_000
"""Newest reports that it examines: anybody may send many that name made-up ids."""
_EXAMINED_BYTES: Final = 64 << 20
"""Bytes of these reports."""
_OF_ONE_REPORT: Final = 64
"""Events that a report counts for: anybody may send one that names thousands of made-up ids."""
_MAX_REASON: Final = 200
_NAMED: Final = 500
"""Last banned keys that are listed with their names."""
_NAMED_BYTES: Final = 4 << 20
"""Bytes of the profiles that are read for the names: banned keys may have written large ones."""
_MAX_NAME: Final = 100
_MAX_COUNT: Final = 100_000
"""Uses or days of an invite."""
_MAX_LOGGED: Final = 500
"""Characters of the parameters in a log line."""
_OWNERS_ONLY: Final = "restricted: only owners of this relay may call"


@dataclass(frozen=True, slots=True)
class Reply:
    """HTTP status and JSON body."""

    status: int
    body: bytes


def refusal(status: int, text: str) -> Reply:
    return Reply(status, orjson.dumps({"error": text}))


ALREADY_USED: Final = refusal(401, "invalid: this authorization was already used")
NO_STORE: Final = refusal(503, str(STORE_DOWN))


class UsedAuthorizations:
    """NIP-98 events that were used, until they expire: each authorizes one call (N98-08).

    Also across restarts: events dated before the start are refused, and a file has the ids of
    events dated at or after their use (the client's clock is ahead), for at most two minutes. A
    clean stop writes all ids to the file and creates a mark file: the next start then refuses none
    for its date. With a damaged file, every event is refused that may have been used.
    """

    def __init__(
        self,
        started: int,
        path: Path | None = None,
        use_call: Callable[[str, int, int], Awaitable[bool]] | None = None,
    ) -> None:
        """`started`: Unix seconds. `path`: the file; None: in memory only. `use_call`: marks an
        event as used at all relays on the store, given its id, the end of its validity and the
        time; False: it was used before."""
        self._use_call = use_call
        self._started = started
        self._began = monotonic()
        self._path = path
        self._writing = asyncio.Lock()
        self._marked = self._written = 0
        """Number of events marked as used, and how many of them are on disk."""
        self._until: dict[str, int] = {}
        """id → last second at which it would be valid."""
        self._by: dict[str, tuple[str, str | None]] = {}
        """id → key and address, of those that were used since the start."""
        if path is None:
            return
        if (mark := _mark(path)).exists():
            self._started = 0
            mark.unlink()
            sync(path.parent)  # after a crash the next start must not find it
        if path.exists():
            try:
                self._until = msgspec.json.decode(content_of(path), type=dict[str, int])
            except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
                # Calls dated up to this may have been used.
                self._started = started + WINDOW_S + 1
                _log.warning(
                    "%s cannot be read: %s; signed HTTP calls are refused for %d s",
                    path,
                    error,
                    WINDOW_S,
                )

    def close(self) -> None:
        """Call at a stop, after the last call of `was_used`."""
        if self._path is not None:
            with suppress(OSError):  # without the mark the next start refuses by date
                if self._until or self._path.exists():
                    replace_own_file(self._path, orjson.dumps(self._until))
                replace_own_file(_mark(self._path), b"")

    async def was_used(
        self, event: Event, now: int, most: int | None = None, address: str | None = None
    ) -> bool:
        """Whether the event was used before; if not, marks it as used, on disk before this returns.
        `most`: how many events may be remembered; one key or address (see `Sharer.counted_as`) has
        a quarter of what others leave, and `_FEW` also beyond. None: the limit of owners.
        Raises Invalid for an event dated before the start, Refused when too many are remembered or
        the mark cannot be written."""
        # The clock may have been ahead at the start. By the clock as it is now, what was used
        # before the start is dated before this.
        started = now - int(monotonic() - self._began)
        self._started = min(self._started, started + WINDOW_S + 1)
        if event.created_at < self._started:
            raise Invalid("created_at: is before the start of this relay, sign again")
        self._until = {key: until for key, until in self._until.items() if until >= now}
        if event.id in self._until:
            return True
        self._by = {key: by for key, by in self._by.items() if key in self._until}
        if most is None:
            has_room = len(self._until) < _MAX_CALLS
        else:
            has_room = self._has_room(event.pubkey, address, most)
        if not has_room:
            raise Refused(Prefix.RATE_LIMITED, "too many calls, wait a minute")
        self._until[event.id] = until = event.created_at + WINDOW_S
        self._by[event.id] = event.pubkey, address
        if self._use_call is not None:
            try:
                if not await self._use_call(event.id, until, now):
                    return True
            except StoreFault as fault:
                raise Refused(STORE_DOWN.prefix, STORE_DOWN.text) from fault
        self._marked += 1
        number = self._marked
        if self._path is not None and event.created_at >= now:
            try:
                async with self._writing:
                    if self._written < number:  # else the previous write included this one
                        number = self._marked
                        text = orjson.dumps(self._until)
                        await asyncio.to_thread(replace_own_file, self._path, text)
                        self._written = number
            except OSError as error:
                raise Refused(STORE_DOWN.prefix, STORE_DOWN.text) from error
        return False

    def _has_room(self, pubkey: str, address: str | None, most: int) -> bool:
        by_key = by_address = 0
        for key, from_ in self._by.values():
            by_key += key == pubkey
            by_address += from_ == address
        own = by_key if address is None else max(by_key, by_address)
        left = most - len(self._until)
        # Of what others leave: were it of all, four would have all.
        return 4 * own < own + left or (own < _FEW and 2 * left > -most)


def _mark(path: Path) -> Path:
    return path.with_suffix(".complete")


class Calls:
    """All NIP-86 calls of one relay."""

    def __init__(
        self,
        state: RelayState,
        store: EventReader,
        ingest: Ingest,
        invitations: Invitations,
        *,
        clock: Callable[[], int],
        rights_changed: Callable[[], None],
        used: UsedAuthorizations,
    ) -> None:
        """`rights_changed` is called after the commit of a call, before live delivery of the events
        in the same batch."""
        self._state = state
        self._store = store
        self._ingest = ingest
        self._invitations = invitations
        self._clock = clock
        self._rights_changed = rights_changed
        self._used = used

    async def reply(
        self,
        header: str | None,
        request: HttpRequest,
        here: frozenset[RelayAddress],
        may_connect: Callable[[Blocklist], bool],
    ) -> Reply:
        """`header`: Authorization. `here`: URLs of this relay. `may_connect`: whether the caller
        could still connect with such a blocklist."""
        now = self._clock()
        try:
            signed = authorization(header, request, here, now)
            if not self._may_call(signed.pubkey):
                return refusal(403, _OWNERS_ONLY)
            if await self._used.was_used(signed, now):
                return ALREADY_USED
            if not self._may_call(signed.pubkey):  # a reload may have come meanwhile
                return refusal(403, _OWNERS_ONLY)
        except Invalid as refused:
            return refusal(401, str(refused))
        except Refused as refused:
            return refusal(429, str(refused))
        try:
            method, params = _parse_call(request.body or b"")
        except Invalid as refused:
            return refusal(400, str(refused))
        try:
            result = await self._result(signed.pubkey, method, params, may_connect)
        except Refused as refused:
            _log_call(signed.pubkey, method, params, f"refused, {refused}")
            return refusal(200, str(refused))
        _log_call(signed.pubkey, method, params, "done")
        return Reply(200, orjson.dumps({"result": result}))

    def caller_refused(
        self, header: str | None, request: HttpRequest, here: frozenset[RelayAddress]
    ) -> Reply | None:
        """Before the body is read: 1,000 bodies of anybody that were half sent took 107 MiB."""
        try:
            signed = authorization(header, request, here, self._clock())
        except Invalid as refused:
            return refusal(401, str(refused))
        if not self._may_call(signed.pubkey):
            return refusal(403, _OWNERS_ONLY)
        return None

    def _may_call(self, pubkey: str) -> bool:
        """N86-03: owners, and the relay's own key."""
        actors = self._state.actors
        return pubkey in actors.owners or pubkey == actors.relay

    async def _result(
        self,
        caller: str,
        method: str,
        params: Sequence[object],
        may_connect: Callable[[Blocklist], bool],
    ) -> object:
        if method in INVITE_METHODS:
            return await self._of_invites(caller, method, params)
        changes = changes_of(method, params)
        if changes:
            _check_lockout(changes, may_connect)
            await self._apply(changes)
            return True
        if method == LISTED_REPORTS:
            return await self._unmoderated(caller)
        if method == LIST_MEMBERS:
            return self._members()
        if method == LIST_BANNED:
            return await self._banned(caller)
        return listed(method, self._state.management)

    def _members(self) -> list[dict[str, object]]:
        """Rows of `listmembers`, also before the first 13534 is signed. `reason` is null for the
        owners and agents of the policy files."""
        management = self._state.management
        reasons = management.of(ListName.ALLOWED_KEYS)
        return [
            {"pubkey": pubkey, "roles": roles, "reason": reasons.get(pubkey)}
            for pubkey, roles in listed_members(management, self._state.actors).items()
        ]

    async def _of_invites(self, caller: str, method: str, params: Sequence[object]) -> object:
        """`createinvite` [uses?, days?], `listinvites` [], `revokeinvite` [id]."""
        if method == REVOKE_INVITE:
            if len(params) != 1 or not isinstance(params[0], str):
                raise Invalid("params: the id of an invite expected")
            if not await self._invitations.revoke(params[0]):
                raise Refused(Prefix.RESTRICTED, "there is no invite with this id")
            return True
        if method == CREATE_INVITE:
            return _invite(*await self._created_invite(caller, params))
        if params:
            raise Invalid(f"params: none expected, {len(params)} given")
        now = self._clock()
        claims = claims_of(self._state.management)
        return [_invite(code, claim) for code, claim in claims if claim.is_open(now)]

    async def _created_invite(self, caller: str, params: Sequence[object]) -> tuple[str, Claim]:
        settings = self._state.policy.members
        if len(params) > 2:
            raise Invalid(f"params: at most 2 expected, {len(params)} given")
        uses, days, *_ = (*params, None, None)
        for name, value in (("uses", uses), ("days", days)):
            if value is not None and (type(value) is not int or not 0 <= value <= _MAX_COUNT):
                raise Invalid(f"{name}: must be an integer from 0 to {_MAX_COUNT}; 0: no limit")
        return await self._invitations.create(
            caller,
            uses=settings.claim_uses if not isinstance(uses, int) else uses or None,
            days=settings.claim_days if not isinstance(days, int) else days,
        )

    async def _apply(self, changes: tuple[ListChange, ...]) -> None:
        refused = await self._ingest.changed(*changes, then=self._rights_changed)
        if refused is not None:
            raise refused.refused()

    async def _unmoderated(self, caller: str) -> list[dict[str, str]]:
        """Stored events named by reports, newest first, that no call has banned or allowed
        (N86-21)."""
        management = self._state.management
        decided = {
            *management.of(ListName.BANNED_EVENTS),
            *management.of(ListName.ALLOWED_EVENTS),
        }
        named: dict[str, str] = {}
        """Events that are not looked up yet: id → reason."""
        entries: list[dict[str, str]] = []
        visibility = self._state.visibility(Viewer(frozenset({caller})))

        async def look_up() -> None:
            found = self._events(visibility, Filter(ids=frozenset(named)), len(named))
            stored = {event.id async for event in found}
            entries.extend(
                entry("id", event_id, reason)
                for event_id, reason in named.items()
                if event_id in stored
            )
            decided.update(stored)
            named.clear()

        size = 0
        reports = self._events(visibility, Filter(kinds=frozenset({kinds.REPORT})), _EXAMINED)
        async for report in reports:
            for event_id, reason in _reported_events(report):
                if event_id not in decided:
                    named.setdefault(event_id, reason)
            if len(named) >= _PAGE:
                await look_up()
            size += len(report.raw)
            if len(entries) >= _LISTED or size > _EXAMINED_BYTES:
                break
        if named:
            await look_up()
        return entries[:_LISTED]

    async def _banned(self, caller: str) -> list[dict[str, object]]:
        """Rows of `listbannedpubkeys`, with names from the profiles that the caller could read
        without the ban."""
        policy = self._state.policy
        banned = self._state.management.of(ListName.BANNED_KEYS)
        if not banned:
            return []
        visibility = visibility_for(
            Viewer(frozenset({caller})),
            policy.read_rules,
            replace(self._state.actors, banned=frozenset()),
            self._state.groups,
            policy.groups.foreign_h,
        )
        profiles = Filter(kinds=frozenset({kinds.PROFILE}), authors=frozenset([*banned][-_NAMED:]))
        names: dict[str, str] = {}
        size = 0
        async for profile in self._events(visibility, profiles, _NAMED):
            size += len(profile.raw)
            if size > _NAMED_BYTES:
                break
            name = (object_in(profile.content) or {}).get("name")
            if isinstance(name, str):
                names[profile.pubkey] = repaired(name[:_MAX_NAME])
        return [
            {**entry("pubkey", key, reason), **({"name": names[key]} if key in names else {})}
            for key, reason in banned.items()
        ]

    async def _events(
        self, visibility: Visibility, filter_: Filter, most: int
    ) -> AsyncIterator[Event]:
        """The newest `most` matches that may be read; a page of them in memory at a time."""
        found, pauses = 0, Pauses()
        upto = self._store.committed()
        query = PageQuery(filter_, visibility, most, upto, self._clock(), size=_PAGE)
        try:
            while found < most:
                page = await self._store.page(query)
                for raw in page.raws:
                    yield event_from_raw(raw)
                    await pauses.rest()
                found += len(page.raws)
                if page.next is None:
                    break
                query = query.following(page)
        except StoreFault as fault:
            _log.error("a NIP-86 call failed: %s", fault)
            raise Refused(STORE_DOWN.prefix, STORE_DOWN.text) from fault


def _parse_call(body: bytes) -> tuple[str, list[object]]:
    """N86-01."""
    try:
        call = orjson.loads(body)
    except ValueError:
        raise Invalid("body: is not JSON") from None
    if type(call) is not dict or type(call.get("method")) is not str:
        raise Invalid("body: must be an object with a string method")
    params = call.get("params", [])
    if type(params) is not list:
        raise Invalid("params: must be an array")
    return call["method"], params


def _check_lockout(changes: Sequence[ListChange], may_connect: Callable[[Blocklist], bool]) -> None:
    """Refuse to block the caller's own address."""
    for change in changes:
        blocks = change.list_name is ListName.BLOCKED_ADDRESSES and change.note is not None
        if blocks and not may_connect(blocklist_of([change.item])):
            raise Refused(Prefix.RESTRICTED, "ip: you are connected from this address")


def _reported_events(report: Event) -> list[tuple[str, str]]:
    """(id, reason) of the first events that a kind 1984 names; the reason is the report type, then
    the content."""
    content = report.content[:_MAX_REASON]
    named = (tag for tag in report.tags if len(tag) > 1 and tag[0] == "e" and is_hex64(tag[1]))
    return [
        (tag[1], ": ".join(part for part in (*tag[2:3], content) if part)[:_MAX_REASON])
        for tag in islice(named, _OF_ONE_REPORT)
    ]


def _invite(code: str, claim: Claim) -> dict[str, object]:
    return {
        "id": claim_id(code),
        "code": code,
        "by": claim.by,
        "made_at": claim.made_at,
        "until": claim.until,
        "left": claim.left,
    }


def _log_call(caller: str, method: str, params: Sequence[object], outcome: str) -> None:
    """N86-03. As JSON, so that no parameter can start a new log line."""
    if method in INVITE_METHODS:
        params = ()  # an id, or a code by mistake
    logged = orjson.dumps(params).decode()[:_MAX_LOGGED]
    _log.info(
        "NIP-86: %s called %s %s: %s",
        caller,
        orjson.dumps(method[:64]).decode(),
        logged,
        outcome,
        extra={"audit": True},
    )

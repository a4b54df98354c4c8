"""The road of NEG-OPEN: a snapshot of what the viewer may read, compared by messages. NIP-77.

Only ids are compared; events travel by EVENT and REQ (N77-06). One message of a connection is
worked on at a time, off the loop: to read a million records and add them up takes a second or two.
A snapshot answers as long as its reader's rights are those it was taken with (N77-09).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from relay.errors import Prefix, Refused, StoreFault, TooManyRecords
from relay.nostr import messages
from relay.nostr.messages import NegClose, NegMessage, NegOpen
from relay.nostr.nip77 import reply_to

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from relay.access.visibility import Visibility
    from relay.nostr.filters import Filter
    from relay.nostr.nip77 import Items
    from relay.read.fanout import Reader
    from relay.read.outbox import Outbox
    from relay.state import RelayState
    from relay.storage import Store

_log = logging.getLogger(__name__)

SILENCE_S: Final = 120.0
"""How long a snapshot waits for its client's next message (N77-08)."""
_HELD_SETS: Final = 4
"""Snapshots of the largest size that all connections together may hold."""
_MAX_WAITING: Final = 64
"""Messages of all connections that wait to be worked on."""
_MAX_CHANGES: Final = 4
"""Snapshots taken anew because the reader's rights changed meanwhile."""
_STORE_DOWN: Final = Refused(Prefix.ERROR, "the store cannot answer now, try again later")
_OUR_FAULT: Final = Refused(Prefix.ERROR, "this message met a fault of ours")
_IMPATIENT: Final = Refused(Prefix.RATE_LIMITED, "wait for the answer before the next message")


def _busy() -> Refused:
    return Refused(Prefix.RATE_LIMITED, "too much is being reconciled now, try again later")


def _rights_changed() -> Refused:
    return Refused(Prefix.RESTRICTED, "what you may read has changed, open it anew")


class NegentropyLimits(Protocol):
    @property
    def neg_records(self) -> int:
        """Of one set."""

    @property
    def neg_sessions(self) -> int:
        """Open sets of one connection."""


class Client(Protocol):
    """The connection that asked."""

    @property
    def reader(self) -> Reader: ...
    @property
    def outbox(self) -> Outbox: ...

    async def drained(self) -> None:
        """Until the client has read most of what was sent."""


class Snapshot:
    """What one NEG-OPEN found, and what its reader might see then."""

    __slots__ = ("items", "visibility")

    def __init__(self, items: Items, visibility: Visibility) -> None:
        self.items = items
        self.visibility = visibility


class _Open:
    """One open id of a connection."""

    __slots__ = ("filter", "is_busy", "silence", "snapshot", "sub")

    def __init__(self, sub: str, filter_: Filter) -> None:
        self.sub = sub
        self.filter = filter_
        self.snapshot: Snapshot | None = None
        self.is_busy = True
        """A message of it is being worked on, or waits for that."""
        self.silence: asyncio.TimerHandle | None = None


class Negentropy:
    """What all connections share on this road."""

    def __init__(
        self,
        store: Store,
        state: RelayState,
        limits: NegentropyLimits,
        *,
        clock: Callable[[], int],
        workers: Executor,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`workers`: where messages are compared; one thread will do."""
        self._store = store
        self._state = state
        self._clock = clock
        self._workers = workers
        self._held = 0
        self._waiting = 0
        self.limits = limits
        self.silence_s = silence_s

    @property
    def held(self) -> int:
        """Records in all snapshots, and room kept for those that are being taken."""
        return self._held

    @property
    def is_busy(self) -> bool:
        return self._waiting >= _MAX_WAITING

    async def snapshot(self, reader: Reader, filter_: Filter) -> Snapshot:
        """The records that the filter finds and `reader` may see, in memory until `release`.

        Raises Refused (TooManyRecords for a set over the limit) and StoreFault.
        """
        for _ in range(_MAX_CHANGES):
            visibility = self._state.visibility(reader.viewer)
            objected = visibility.gate((filter_,))
            if objected is not None:
                raise objected.refused()
            items = await self._items(filter_, visibility)
            if self._state.visibility(reader.viewer).gives_all_of(visibility):
                return Snapshot(items, visibility)
            self._held -= len(items)
        raise _rights_changed()

    async def _items(self, filter_: Filter, visibility: Visibility) -> Items:
        most = self.limits.neg_records
        left = _HELD_SETS * most - self._held
        at_most = min(most, left)
        if at_most <= 0:
            raise _busy()
        # Held from before the first record is read: others may ask meanwhile.
        self._held += at_most
        found = 0
        try:
            items = await self._store.items(
                filter_,
                visibility,
                limit=filter_.limit,
                upto=self._store.committed(),
                now=self._clock(),
                at_most=at_most,
            )
            if items is None:
                raise TooManyRecords(most) if at_most == most else _busy()
            found = len(items)
            return items
        finally:
            self._held += found - at_most

    def release(self, snapshot: Snapshot) -> None:
        self._held -= len(snapshot.items)

    def may_go_on(self, snapshot: Snapshot, reader: Reader) -> bool:
        """Whether the reader may still see all that the snapshot was taken of."""
        return self._state.visibility(reader.viewer).gives_all_of(snapshot.visibility)

    async def reply(self, message: bytes, items: Items) -> bytes:
        """Raises Invalid naming what is malformed."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, reply_to, message, items)

    def waits(self) -> None:
        self._waiting += 1

    def waited(self) -> None:
        self._waiting -= 1


class Reconciliations:
    """The open ids of one connection; their messages are worked on in the order they came.

    Bounded: `neg_sessions` ids, one message of each. An id that is closed, replaced or ended by the
    relay gets no further answer.
    """

    def __init__(self, negentropy: Negentropy, client: Client) -> None:
        self._negentropy = negentropy
        self._client = client
        self._open: dict[str, _Open] = {}
        self._queue: deque[tuple[_Open, bytes]] = deque()
        self._task: asyncio.Task[None] | None = None

    def take(self, message: NegOpen | NegMessage | NegClose) -> None:
        match message:
            case NegOpen(sub, filter_, payload):
                self._begin(sub, filter_, payload)
            case NegMessage(sub, payload):
                self._go_on(sub, payload)
            case NegClose(sub):
                self._forget(sub)
            case _:
                assert_never(message)

    def _begin(self, sub: str, filter_: Filter, payload: bytes) -> None:
        self._forget(sub)  # N77-05
        most = self._negentropy.limits.neg_sessions
        if len(self._open) >= most:
            refused = Refused(Prefix.RATE_LIMITED, f"at most {most} sets are open at once")
            self._client.outbox.put(messages.neg_error(sub, refused))
            return
        opened = self._open[sub] = _Open(sub, filter_)
        self._enqueue(opened, payload)

    def _go_on(self, sub: str, payload: bytes) -> None:
        opened = self._open.get(sub)
        if opened is None:
            text = "unknown subscription handle"
            self._client.outbox.put(messages.neg_ended(sub, text))
        elif opened.is_busy:
            self._refuse(opened, _IMPATIENT)
        else:
            opened.is_busy = True
            self._stop_waiting(opened)
            self._enqueue(opened, payload)

    def _enqueue(self, opened: _Open, payload: bytes) -> None:
        if self._negentropy.is_busy:
            self._refuse(opened, _busy())
            return
        self._negentropy.waits()
        self._queue.append((opened, payload))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="negentropy")

    async def _run(self) -> None:
        while self._queue:
            opened, payload = self._queue.popleft()
            try:
                if self._is_open(opened):
                    await self._answer(opened, payload)
            except Refused as refused:
                self._refuse(opened, refused)
            except StoreFault as fault:
                _log.error("a negentropy message was not answered: %s", fault)
                self._refuse(opened, _STORE_DOWN)
            except Exception:  # the last frame of this task: the others wait behind it  # noqa: BLE001
                _log.exception("a negentropy message was not answered")
                self._refuse(opened, _OUR_FAULT)
            finally:
                self._negentropy.waited()

    async def _answer(self, opened: _Open, payload: bytes) -> None:
        negentropy, reader = self._negentropy, self._client.reader
        snapshot = opened.snapshot
        if snapshot is None:
            snapshot = await negentropy.snapshot(reader, opened.filter)
            if not self._is_open(opened):
                negentropy.release(snapshot)
                return
            opened.snapshot = snapshot
        reply = await negentropy.reply(payload, snapshot.items)
        if not self._is_open(opened):
            return
        # Asked when it is sent, and not before: somebody may have been removed meanwhile (N29-94).
        if not negentropy.may_go_on(snapshot, reader):
            raise _rights_changed()
        self._client.outbox.put(messages.neg_message(opened.sub, reply))
        opened.is_busy = False
        loop = asyncio.get_running_loop()
        opened.silence = loop.call_later(negentropy.silence_s, self._fall_silent, opened)
        await self._client.drained()

    def _fall_silent(self, opened: _Open) -> None:
        seconds = round(self._negentropy.silence_s)
        self._end(opened, messages.neg_ended(opened.sub, f"nothing came for {seconds} s"))

    def _refuse(self, opened: _Open, refused: Refused) -> None:
        self._end(opened, messages.neg_error(opened.sub, refused))

    def _end(self, opened: _Open, frame: bytes) -> None:
        if self._is_open(opened):
            self._forget(opened.sub)
            self._client.outbox.put(frame)

    def _is_open(self, opened: _Open) -> bool:
        return self._open.get(opened.sub) is opened

    def _forget(self, sub: str) -> None:
        opened = self._open.pop(sub, None)
        if opened is None:
            return
        self._stop_waiting(opened)
        if opened.snapshot is not None:
            self._negentropy.release(opened.snapshot)
        for waiting in [entry for entry in self._queue if entry[0] is opened]:
            self._queue.remove(waiting)
            self._negentropy.waited()

    @staticmethod
    def _stop_waiting(opened: _Open) -> None:
        if opened.silence is not None:
            opened.silence.cancel()
            opened.silence = None

    async def aclose(self) -> None:
        """The connection is gone."""
        for sub in list(self._open):
            self._forget(sub)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

"""The loads: what a client does to a relay, and what is measured while it does.

All run in this process, apart from the relay, on one thread with the collector off. Each gives a
Measure with `busy`, the part of the time that this process was on a core: near 1 the client is what
was measured. Against a server in C that does nothing, one core takes 2 M OKs, 3.7 M stored events
in pages of 500, 110 k REQs for one id, and 6 M live deliveries a second.
"""

import gc
import json
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, cycle
from typing import Any

from relay.nostr.nip77 import Initiator, Items
from tests.bench import wire
from tests.bench.corpus import Corpus
from tests.bench.relays import Running

DRAIN_S = 60.0
POLL_S = 1.0
OK_ID = re.compile(rb'^\["OK", ?"([0-9a-f]{64})", ?true')
EVENT_ID = re.compile(rb'"id":"([0-9a-f]{64})"')
SAMPLED_SUBSCRIBERS = 4
ASKED_BYTES = 60_000  # of a negentropy message: its hex has to fit into a frame of the relay's


class LoadFault(Exception):
    """The relay refused, lost, or gave something other than what was asked for."""


@dataclass(frozen=True, slots=True)
class Measure:
    rate: float  # per second, in the row's unit; for memory KiB per connection
    p50_ms: float | None = None
    p99_ms: float | None = None
    beside: float | None = None  # the same in a second unit, per second
    busy: float | None = None


@dataclass(slots=True)
class Clock:
    """Wall and processor time of one load."""

    began: float = 0.0
    ended: float = 0.0
    used: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def busy(self) -> float:
        return self.used / self.seconds if self.seconds else 0.0


@contextmanager
def clocked() -> Iterator[Clock]:
    gc.collect()
    gc.freeze()
    gc.disable()
    clock = Clock()
    used = time.process_time()
    clock.began = time.perf_counter()
    try:
        yield clock
    finally:
        clock.ended = time.perf_counter()
        clock.used = time.process_time() - used
        gc.enable()
        gc.unfreeze()


def percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def measured(count: float, clock: Clock, seconds: list[float]) -> Measure:
    """`count` things in the clock's time; latencies in seconds."""
    seconds.sort()
    return Measure(
        rate=count / clock.seconds,
        p50_ms=percentile(seconds, 0.50) * 1000,
        p99_ms=percentile(seconds, 0.99) * 1000,
        busy=clock.busy,
    )


# --- writing ---


@dataclass(slots=True)
class Writer:
    """A connection that keeps a window of unanswered EVENTs."""

    connection: wire.Connection
    sent: list[tuple[float, int, int]] = field(default_factory=list)  # when, which of the corpus
    waiting: int = 0


def ingest(
    relay: Running,
    corpus: Corpus,
    connections: int,
    window: int,
    seconds: float,
    progress: Callable[[int, int], None] | None = None,
    trace: list[tuple[float, float]] | None = None,
) -> Measure:
    """Events acknowledged a second, `window` unanswered on each connection.

    `trace` is given when each OK came and what it took, in seconds.

    Until time or corpus is out. An OK makes room for the next event; what room one `recv` made is
    filled by one `send`. OKs are counted by frame while the clock runs; afterwards every OK is read
    and matched by id, so that latencies are exact in whatever order they came, and anything but one
    OK true for each event sent is a fault.
    """
    writers = [Writer(connection) for connection in wire.connected(relay.port, connections)]
    poller = wire.Poller([writer.connection for writer in writers])
    of = {id(writer.connection): writer for writer in writers}
    frames, total = corpus.frames, len(corpus.frames)
    logs: dict[int, list[tuple[float, bytes]]] = {key: [] for key in of}
    cursor = answered = 0
    told = time.perf_counter()

    def fill(writer: Writer, room: int) -> None:
        nonlocal cursor
        stop = min(cursor + room, total)
        if cursor < stop:
            writer.sent.append((time.perf_counter(), cursor, stop))
            writer.waiting += stop - cursor
            poller.send(writer.connection, b"".join(frames[cursor:stop]))
            cursor = stop

    try:
        with clocked() as clock:
            stop_at = clock.began + seconds
            give_up_at = stop_at + DRAIN_S
            for writer in writers:
                fill(writer, window)
            last = clock.began
            while answered < cursor:
                ready = poller.select(POLL_S)
                now = time.perf_counter()
                if now > give_up_at:
                    raise LoadFault(f"{cursor - answered} of {cursor} events got no OK")
                for key, mask in ready:
                    connection = key.data
                    if mask & 2:
                        poller.flush(connection)
                    if not mask & 1:
                        continue
                    data = connection.sock.recv(wire.RECEIVE_BYTES)
                    if not data:
                        raise LoadFault("closed by the relay")
                    last = time.perf_counter()
                    logs[id(connection)].append((last, data))
                    count = connection.frames.feed(data, len(data))
                    if connection.frames.pings:
                        connection.pong()
                    answered += count
                    writer = of[id(connection)]
                    writer.waiting -= count
                    if now < stop_at:
                        fill(writer, count)
                if progress is not None and now - told > 0.5:
                    progress(answered, total)
                    told = now
        clock.ended = last
        oks = latencies(writers, logs, corpus)
        if trace is not None:
            trace.extend(oks)
        return measured(answered, clock, [spent for _, spent in oks])
    finally:
        poller.close()
        wire.closed([writer.connection for writer in writers])


def latencies(
    writers: list[Writer], logs: dict[int, list[tuple[float, bytes]]], corpus: Corpus
) -> list[tuple[float, float]]:
    """(when it came, seconds since `send`) of each OK; a fault unless each event has one true."""
    found: list[tuple[float, float]] = []
    for writer in writers:
        sent = {
            event_id: when
            for when, start, stop in writer.sent
            for event_id in corpus.ids[start:stop]
        }
        for when, payload in received(logs[id(writer.connection)]):
            match = OK_ID.match(payload)
            if match is None or (at := sent.pop(match[1], None)) is None:
                raise LoadFault(f"not the OK of an event sent: {payload[:160].decode()}")
            found.append((when, when - at))
        if sent:
            raise LoadFault(f"{len(sent)} events have no OK of their own")
    return found


def received(log: list[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """(when its last byte came, payload) of each frame of a kept stream."""
    ends = list(accumulate(len(data) for _, data in log))
    for end, payload in wire.payloads(b"".join(data for _, data in log)):
        yield log[bisect_left(ends, end)][0], payload


# --- reading ---


@dataclass(frozen=True, slots=True)
class Question:
    """One REQ with one filter, and how many events answer it."""

    filter: dict[str, Any]
    answers: int

    def frame(self) -> bytes:
        return wire.frame(json.dumps(["REQ", "q", self.filter], separators=(",", ":")).encode())


def ask(relay: Running, questions: Sequence[Question], connections: int, seconds: float) -> Measure:
    """REQs answered a second, one at a time on each connection.

    When EOSE has come, CLOSE and the next REQ go out in one `send`; the sub id is always "q" and
    the questions go round. The number of events in each answer is checked by counting frames;
    before the clock each connection reads one answer whole and compares it with its filter.
    """
    readers = wire.connected(relay.port, connections)
    answer = b""
    for reader, question in zip(readers, questions, strict=False):
        *events, eose = reader.ask(question.frame())
        prove(question, events)
        answer = bytes((0x81, len(eose))) + eose
    poller = wire.Poller(readers)
    close = wire.frame(b'["CLOSE","q"]')
    requests = [close + question.frame() for question in questions]
    places = {id(reader): at * len(requests) // connections for at, reader in enumerate(readers)}
    began: dict[int, float] = {}
    counts = {id(reader): 0 for reader in readers}
    tails: dict[int, bytes] = {id(reader): b"" for reader in readers}
    buffer = bytearray(wire.RECEIVE_BYTES)
    spent: list[float] = []
    done = 0

    def next_one(reader: wire.Connection) -> None:
        key = id(reader)
        places[key] = (places[key] + 1) % len(requests)
        began[key] = time.perf_counter()
        poller.send(reader, requests[places[key]])

    try:
        with clocked() as clock:
            stop_at = clock.began + seconds
            give_up_at = stop_at + DRAIN_S
            for reader in readers:
                next_one(reader)
            last = clock.began
            while began:
                ready = poller.select(POLL_S)
                if time.perf_counter() > give_up_at:
                    raise LoadFault(f"{len(began)} REQs got no EOSE")
                for event, mask in ready:
                    reader = event.data
                    if mask & 2:
                        poller.flush(reader)
                    if not mask & 1:
                        continue
                    key = id(reader)
                    size = reader.sock.recv_into(buffer)
                    if not size:
                        raise LoadFault("closed by the relay")
                    counts[key] += reader.frames.feed(buffer, size)
                    if reader.frames.pings:
                        reader.pong()
                    if size >= len(answer):
                        tails[key] = bytes(buffer[size - len(answer) : size])
                    else:
                        tails[key] = (tails[key] + buffer[:size])[-len(answer) :]
                    if tails[key] != answer:
                        continue
                    last = time.perf_counter()
                    spent.append(last - began.pop(key))
                    expected = questions[places[key]].answers
                    if counts[key] != expected + 1:
                        raise LoadFault(f"{counts[key] - 1} events instead of {expected}")
                    done += 1
                    counts[key] = 0
                    if last < stop_at:
                        next_one(reader)
        clock.ended = last
        return measured(done, clock, spent)
    finally:
        poller.close()
        wire.closed(readers)


def compare(
    relay: Running, one: Sequence[bytes], ends: bytes, other: Sequence[bytes], seconds: float
) -> Measure:
    """How many times longer an answer of `one` takes than of `other`, asked in turns; medians.

    Frames of REQs or the like on one connection; the answers of `one` end with a payload that
    begins with `ends`, those of `other` with EOSE.
    """
    (reader,) = wire.connected(relay.port, 1)
    spent: list[float] = []
    beside: list[float] = []
    try:
        with clocked() as clock:
            for request, plain in zip(cycle(one), cycle(other), strict=False):
                began = time.perf_counter()
                reader.ask(request, ends)
                between = time.perf_counter()
                reader.ask(plain)
                ended = time.perf_counter()
                spent.append(between - began)
                beside.append(ended - between)
                if ended - clock.began > seconds:
                    break
    finally:
        wire.closed([reader])
    spent.sort()
    beside.sort()
    middle = percentile(spent, 0.50)
    return Measure(
        rate=middle / percentile(beside, 0.50),
        p50_ms=middle * 1000,
        p99_ms=percentile(spent, 0.99) * 1000,
        busy=clock.busy,
    )


def answered(relay: Running, questions: Sequence[Question], patience_s: float) -> list[Question]:
    """The questions, each with the number of events that it gets now; waits while it gets CLOSED.

    For searches: the relay may still be reading what it is asked to find, and says so after 2 s.
    """
    give_up_at = time.perf_counter() + patience_s
    (reader,) = wire.connected(relay.port, 1)
    try:
        while True:
            try:
                reader.ask(questions[0].frame())
                break
            except wire.WireFault as closed:
                if time.perf_counter() > give_up_at:
                    raise LoadFault(f"no answer within {patience_s:.0f} s: {closed}") from closed
        return [replace(one, answers=len(reader.ask(one.frame())) - 1) for one in questions]
    finally:
        reader.close()


def prove(question: Question, payloads: list[bytes]) -> None:
    """That these are that many different events, newest first, each of which the filter matches."""
    events = [json.loads(payload)[2] for payload in payloads]
    if len({event["id"] for event in events}) != question.answers:
        raise LoadFault(f"{len(events)} events instead of {question.answers}: {question.filter}")
    times = [event["created_at"] for event in events]
    if "search" not in question.filter and times != sorted(times, reverse=True):
        raise LoadFault("not newest first")
    for event in events:
        for key, wanted in question.filter.items():
            match key:
                case "ids" | "authors" | "kinds":
                    fits = event[key[:-1] if key != "authors" else "pubkey"] in wanted
                case "until":
                    fits = event["created_at"] <= wanted
                case "limit":
                    fits = True
                case "search":
                    fits = set(wanted.split()) <= set(event["content"].split())
                case _:
                    fits = any(tag[0] == key[1:] and tag[1] in wanted for tag in event["tags"])
            if not fits:
                raise LoadFault(f"an event that {question.filter} does not match")


# --- live ---


def fan_out(
    relay: Running, corpus: Corpus, subscribers: int, window: int, seconds: float
) -> Measure:
    """Deliveries a second to subscribers of {"kinds":[1]}, as fast as the slowest one receives.

    One connection publishes; at most `window` events are on their way to the slowest subscriber.
    Every subscriber counts its frames; four of them keep all bytes, and afterwards their ids are
    compared with what was published and give the latency from `send` to delivery, exact, by id.
    """
    listeners = wire.connected(relay.port, subscribers)
    publisher = wire.connected(relay.port, 1)[0]
    subscribe = wire.frame(b'["REQ","f",{"kinds":[1]}]')
    for listener in listeners:
        if len(listener.ask(subscribe)) != 1:
            raise LoadFault("the relay is not empty")
    poller = wire.Poller([*listeners, publisher])
    place = {id(listener): at for at, listener in enumerate(listeners)}
    sampled = listeners[:: max(1, subscribers // SAMPLED_SUBSCRIBERS)][:SAMPLED_SUBSCRIBERS]
    for listener in sampled:
        listener.log = []
    got = [0] * subscribers
    buffer = bytearray(wire.RECEIVE_BYTES)
    frames, total = corpus.frames, len(corpus.frames)
    sent: list[tuple[float, int, int]] = []
    cursor = slowest = accepted = 0

    try:
        with clocked() as clock:
            stop_at = clock.began + seconds
            give_up_at = stop_at + DRAIN_S
            last = now = clock.began
            while True:
                stop = min(slowest + window, total) if now < stop_at else cursor
                if cursor < stop:
                    sent.append((time.perf_counter(), cursor, stop))
                    poller.send(publisher, b"".join(frames[cursor:stop]))
                    cursor = stop
                if slowest >= cursor and accepted >= cursor:
                    break
                ready = poller.select(POLL_S)
                now = time.perf_counter()
                if now > give_up_at:
                    lost = sum(cursor - count for count in got)
                    raise LoadFault(f"{lost} of {cursor * subscribers} deliveries lost")
                for key, mask in ready:
                    connection = key.data
                    if mask & 2:
                        poller.flush(connection)
                    if not mask & 1:
                        continue
                    size = connection.sock.recv_into(buffer)
                    if not size:
                        raise LoadFault("closed by the relay")
                    count = connection.frames.feed(buffer, size)
                    if connection.frames.pings:
                        connection.pong()
                    if connection is publisher:
                        accepted += count
                        continue
                    if connection.log is not None:
                        connection.log.append((time.perf_counter(), bytes(buffer[:size])))
                    got[place[id(connection)]] += count
                slowest = min(got)
                last = now
        clock.ended = last
        if set(got) != {cursor}:
            raise LoadFault(f"a subscriber counts {max(got)} of {cursor} events")
        when = {event_id: at for at, start, stop in sent for event_id in corpus.ids[start:stop]}
        spent = list(chain.from_iterable(delays(listener, when) for listener in sampled))
        return replace(measured(cursor * subscribers, clock, spent), beside=cursor / clock.seconds)
    finally:
        poller.close()
        wire.closed([*listeners, publisher])


def delays(listener: wire.Connection, when: dict[bytes, float]) -> list[float]:
    """Seconds from `send` to delivery of each published event, each delivered once and no other."""
    missing = dict(when)
    found = []
    for at, payload in received(listener.log or []):
        match = EVENT_ID.search(payload)
        if match is None or (sent := missing.pop(match[1], None)) is None:
            raise LoadFault(f"not an event published: {payload[:160].decode()}")
        found.append(at - sent)
    if missing:
        raise LoadFault(f"{len(missing)} of {len(when)} events lost by one subscriber")
    return found


# --- holding ---


def idle(relay: Running, connections: int) -> Measure:
    """KiB of the relay's memory per open connection that has asked once and then keeps still."""
    held = wire.connected(relay.port, 100)  # pools and first-use tables are not a connection's cost
    try:
        time.sleep(1)
        before = relay.memory()
        held += wire.connected(relay.port, connections)
        time.sleep(1)
        after = relay.memory()
    finally:
        wire.closed(held)
    if before is None or after is None:
        raise LoadFault("no /proc to read memory from")
    return Measure(rate=(after - before) / connections)


# --- negentropy ---


def reconcile(relay: Running, ours: Items, lacks: int, rounds: int) -> Measure:
    """Seconds to the first answer over everything the relay has; beside it MiB that it takes.

    The client has all but `lacks` events, and goes on until it knows which. The median of `rounds`
    sessions; memory is the peak over what the relay had before.
    """
    before = relay.memory()
    spent: list[float] = []
    with clocked() as clock:
        for _ in range(rounds):
            (reader,) = wire.connected(relay.port, 1)
            initiator = Initiator(ours, frame_bytes=ASKED_BYTES)
            request = ["NEG-OPEN", "n", {}, initiator.first().hex()]
            began = time.perf_counter()
            try:
                while True:
                    asked = wire.frame(json.dumps(request).encode())
                    answer = json.loads(reader.ask(asked, b'["NEG-')[-1])
                    if request[0] == "NEG-OPEN":
                        spent.append(time.perf_counter() - began)
                    if answer[0] != "NEG-MSG":
                        raise LoadFault(f"NEG-ERR: {answer[2]}")
                    reply = initiator.reply(bytes.fromhex(answer[2]))
                    if reply is None:
                        break
                    request = ["NEG-MSG", "n", reply.hex()]
            finally:
                wire.closed([reader])
            if len(initiator.need) != lacks:
                raise LoadFault(f"{len(initiator.need)} differences instead of {lacks}")
    peak = relay.memory("VmHWM")
    if before is None or peak is None:
        raise LoadFault("no /proc to read memory from")
    spent.sort()
    middle = percentile(spent, 0.50)
    return Measure(rate=middle, beside=(peak - before) / 1024, busy=clock.busy)

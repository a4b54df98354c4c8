"""A plug-in that is a process: strfry's protocol for write policies, one JSON line each way.

    → {"type":"new","event":{…},"receivedAt":…,"sourceType":"IP4","sourceInfo":"10.1.2.3"}
    ← {"id":"…","action":"accept"}          or "reject" with "msg", or "shadowReject"

Invariants: a batch is written at once and answers are matched by id, so a plug-in may answer in any
order; each answer restarts its deadline. Lines that are not JSON are skipped, as strfry does, up to
a bound between two answers. Any other output, an answer to an event that was not asked about, or a
missed deadline ends the process, and it is restarted. The first event without an answer counts as
the one that ended it, and gets `error:`; so do the other events of its sender, who has to wait with
a growing delay. Events of others are asked about again. Only a process that never answered, or that
ends while it is not asked, is restarted with a growing delay itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import OrderedDict
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final, cast

import orjson

from policies.plugins.protocol import PluginLog, log_plugin, no_answer, objection
from relay.access.quotas import subnet_of
from relay.facts import Origin
from relay.memory.secrets import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from policies.plugins.definition import Command
    from policies.plugins.protocol import HealthReport, Question
    from relay.errors import Reject

_START_S: Final = 3.0
"""From the start of a process to its first answer, if longer than its deadline: interpreters start
slowly."""
_MAX_LINE: Final = 65_536
"""Bytes of an answer."""
_MOST_CHATTER: Final = 200
"""Lines between two answers that are not JSON."""
_MAX_WRITTEN: Final = 4 * 2**20
"""Bytes of events written at once."""
_PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before each restart; back to the first after a run of `_LONG_S`. Also seconds for which
nothing of a sender is asked after each event that ended the process; back to the first after
`_LONG_S` without one."""
_LONG_S: Final = 60.0
_AGAIN_S: Final = 0.5
"""Before the restart of a process that was ended by the first event of its run. Events wait for a
pause that is not longer."""
_MOST_ENDS: Final = 4
"""Runs without an answer, one after the other, for which the events of a batch wait."""
_MOST_SENDERS: Final = 10_000
_STOP_S: Final = 2.0
"""Between SIGTERM and SIGKILL."""
_MOMENT_S: Final = 0.1
_STDERR_RATE: Final = 256 * 1024
"""Bytes read per second; a process that writes more has to wait."""


def line_of(question: Question) -> bytes:
    """The request line for one event."""
    arrival = question.arrival
    source: str
    if arrival.origin is not Origin.WIRE:
        source, info = "Import", ""
    else:
        source = "IP6" if isinstance(arrival.address, IPv6Address) else "IP4"
        # A client behind an untrusted proxy has no known address: all of them share one.
        info = "0.0.0.0" if arrival.address is None else str(arrival.address)  # noqa: S104
    line: dict[str, object] = {
        "type": "new",
        "event": orjson.Fragment(question.event.raw),
        "receivedAt": arrival.at,
        "sourceType": source,
        "sourceInfo": info,
    }
    if arrival.authenticated:
        # The protocol carries one key; of several the author's is the most useful.
        author = question.event.pubkey
        keys = arrival.authenticated
        line["authed"] = author if author in keys else min(keys)
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


class _Broken(Exception):
    """The process printed something that is not an answer; the text does not quote it."""


def answer_from(line: bytes, plugin: str) -> tuple[str, Reject | None] | None:
    """The event's id and the plug-in's answer; None: not JSON. Raises _Broken."""
    try:
        answer = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("id"), str):
        raise _Broken("printed a line that is no answer: it has no id")
    text = answer.get("msg")
    if text is not None and not isinstance(text, str):
        raise _Broken("printed an answer whose msg is not a string")
    match answer.get("action"):
        case "accept":
            return answer["id"], None
        case "reject":
            return answer["id"], objection(text or "", plugin)
        case "shadowReject":
            # OK true means committed to disk: shadowReject is refused, without a reason.
            return answer["id"], objection("", plugin)
        case _:
            raise _Broken("printed an answer without accept, reject or shadowReject")


class _Batch:
    """One batch: its questions and its pending answers."""

    def __init__(self, questions: Sequence[Question], plugin: str) -> None:
        self.results: list[Reject | None] = [no_answer(plugin)] * len(questions)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_written = False
        self.owed: dict[str, list[int]] = {}
        for number, (event, _) in enumerate(questions):  # one event can come twice in a batch
            self.owed.setdefault(event.id, []).append(number)

    @property
    def unanswered(self) -> list[int]:
        """Numbers of the questions without an answer, in order."""
        return sorted([number for places in self.owed.values() for number in places])

    def note(self, event_id: str, answer: Reject | None) -> None:
        places = self.owed.get(event_id)
        if places is None:
            raise _Broken("answered for an event that it was not asked about")
        self.results[places.pop()] = answer
        if not places:
            del self.owed[event_id]


class _Senders:
    """Addresses whose events ended the process. IPv6: each /64."""

    def __init__(self) -> None:
        self._ends: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Address → (number of ends, time of the last)."""

    def note(self, sender: str, now: float) -> None:
        number, last = self._ends.pop(sender, (0, now))
        self._ends[sender] = 1 if now - last > _LONG_S else number + 1, now
        if len(self._ends) > _MOST_SENDERS:
            self._ends.popitem(last=False)

    def must_wait(self, sender: str, now: float) -> bool:
        number, last = self._ends.get(sender, (0, now))
        return number > 0 and now - last < _PAUSES_S[min(number, len(_PAUSES_S)) - 1]


def _sender_of(question: Question) -> str | None:
    """None: nobody, it is from an import."""
    arrival = question.arrival
    return subnet_of(arrival.address) if arrival.origin is Origin.WIRE else None


class _Child(asyncio.SubprocessProtocol):
    """One run of the process: from its start to its first fault."""

    def __init__(
        self,
        plugin: str,
        deadline_s: float,
        standing: HealthReport,
        notes: PluginLog,
        is_settled: asyncio.Event,
    ) -> None:
        """`is_settled` is unset when it ends."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why it ended."""
        self.was_asked = False
        """It ended while it owed answers."""
        self.has_answered = False
        self._is_settled = is_settled
        self._exited = asyncio.Event()
        self._gone = asyncio.Event()
        """Set when it has exited and its pipes are closed."""
        self._plugin = plugin
        self._deadline_s = deadline_s
        self._standing = standing
        self._notes = notes
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._transport: asyncio.SubprocessTransport | None = None
        self._round: _Batch | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._answer = b""
        self._chatter = 0
        """Lines that were not JSON since the last answer."""
        self._complaint = b""
        self._is_paused = False
        """Stderr."""

    # requests

    async def asked(self, questions: Sequence[Question]) -> _Batch:
        """The answers, as far as there are any."""
        current = self._round = _Batch(questions, self._plugin)
        patience = self._deadline_s
        if not self.has_answered:
            patience = max(patience, self._began + _START_S - self._loop.time())
        self._wait(patience)
        pipe = cast("asyncio.WriteTransport | None", self._pipe(0))
        if pipe is not None and not pipe.is_closing():  # else its exit is about to be reported
            pipe.write(b"".join([line_of(each) for each in questions]))
            current.is_written = True
        try:
            await current.done
        finally:
            self._round = None
            if self._timer is not None:
                self._timer.cancel()
        return current

    def end(self, why: str) -> None:
        """It ended; its pending events stay unanswered."""
        if not self.ended.done():
            self.ended.set_result(why)
            self._is_settled.clear()
            self.was_asked = self._round is not None and self._round.is_written
            output = cast("asyncio.ReadTransport | None", self._pipe(1))
            if output is not None and not output.is_closing():
                output.pause_reading()  # it may keep printing until it is killed
        if self._round is not None and not self._round.done.done():
            self._round.done.set_result(None)

    async def killed(self) -> None:
        """SIGTERM, then SIGKILL, to its process group."""
        transport = self._transport
        if transport is None:
            return
        pid = transport.get_pid()
        _signal(pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._exited.wait()
        _signal(pid, signal.SIGKILL)
        transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._gone.wait()

    def _wait(self, seconds: float) -> None:
        self._until = self._loop.time() + seconds
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until, self._check_deadline)

    def _check_deadline(self) -> None:
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._check_deadline)
        else:
            self.end("did not answer in time")

    # asyncio.SubprocessProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._log_stderr(data)
        elif not self.ended.done():
            try:
                self._read_lines(data)
            except _Broken as wrong:
                self.end(str(wrong))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            # Its exit status, which follows immediately, says more.
            self._loop.call_later(_MOMENT_S, self.end, "closed its output")

    def process_exited(self) -> None:
        self._exited.set()
        # Its last answers may still be in the pipe, which its own children may hold open.
        self._loop.call_later(_MOMENT_S, self.end, self._ending())

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(self._ending())
        self._gone.set()

    def _ending(self) -> str:
        code = None if self._transport is None else self._transport.get_returncode()
        if code is None:
            return "exited"
        return f"exited with {code}" if code >= 0 else f"died of signal {-code}"

    def _pipe(self, fd: int) -> asyncio.BaseTransport | None:
        return None if self._transport is None else self._transport.get_pipe_transport(fd)

    def _read_lines(self, data: bytes) -> None:
        *lines, self._answer = (self._answer + data).split(b"\n")
        if len(self._answer) > _MAX_LINE:
            raise _Broken("printed a line that is too long")
        has_answered = False
        for line in lines:
            answer = answer_from(line, self._plugin)
            if answer is None:
                self._skip_line()
                continue
            if self._round is None:
                raise _Broken("printed an answer without a request")
            self._round.note(*answer)
            self._chatter, has_answered = 0, True
        if not has_answered or self._round is None:
            return
        if self.has_answered:
            self._until = self._loop.time() + self._deadline_s  # read by its timer
        else:
            self.has_answered = True
            self._wait(self._deadline_s)
            self._standing.recovered(self._plugin)
        if not self._round.owed and not self._round.done.done():
            self._round.done.set_result(None)

    def _skip_line(self) -> None:
        self._chatter += 1
        if self._chatter > _MOST_CHATTER:
            raise _Broken("printed too many lines that are not JSON")
        if self._chatter == 1:  # without the line: it may repeat an event
            self._notes.add(logging.WARNING, "printed a line that is not JSON; skipped")

    def _log_stderr(self, data: bytes) -> None:
        """Log the lines of stderr, rate-limited."""
        *lines, rest = (self._complaint + data).split(b"\n")
        self._complaint = rest[-1024:]
        for line in lines:
            text = line.decode("utf-8", "replace").strip()
            if text:
                self._notes.add(logging.WARNING, text)
        if not self._is_paused:  # asyncio reports a pipe only since Python 3.11.4
            self._is_paused = True
            pipe = cast("asyncio.ReadTransport", self._pipe(2))
            pipe.pause_reading()
            self._loop.call_later(len(data) / _STDERR_RATE, self._resume_reading, pipe)

    def _resume_reading(self, pipe: asyncio.ReadTransport) -> None:
        """Of stderr."""
        self._is_paused = False
        if not pipe.is_closing():
            pipe.resume_reading()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _parts(questions: Sequence[Question]) -> Iterator[Sequence[Question]]:
    """A batch in parts that are written at once."""
    begin = size = 0
    for number, (event, _) in enumerate(questions):
        size += len(event.raw)
        if size > _MAX_WRITTEN and number > begin:
            yield questions[begin:number]
            begin, size = number, len(event.raw)
    yield questions[begin:]


class ProcessPlugin:
    """Keeps the process running until `stop`."""

    def __init__(
        self, name: str, command: Command, deadline_ms: int, standing: HealthReport
    ) -> None:
        self._name = name
        self._command = command
        self._deadline_s = deadline_ms / 1000
        self._standing = standing
        self._notes = PluginLog(name)
        self._life: _Child | None = None
        self._is_stopping = False
        self._is_settled = asyncio.Event()
        """Set when it runs, or will not run soon."""
        self._senders = _Senders()
        self._keeping = asyncio.create_task(self._keep(), name=f"plug-in {name}")

    async def answers(self, questions: Sequence[Question]) -> list[Reject | None]:
        found: list[Reject | None] = []
        for part in _parts(questions):
            found += await self._answers(part)
        return found

    async def _answers(self, part: Sequence[Question]) -> list[Reject | None]:
        """Asks again without the event that ended the process, and without its sender's."""
        results: list[Reject | None] = [no_answer(self._name)] * len(part)
        clock, senders, ends = asyncio.get_running_loop().time, self._senders, 0
        of = [_sender_of(each) for each in part]
        now = clock()
        left = [n for n, sender in enumerate(of) if not (sender and senders.must_wait(sender, now))]
        while left and ends < _MOST_ENDS:
            await self._is_settled.wait()
            if self._life is None:
                break
            batch = await self._life.asked([part[number] for number in left])
            for number, answer in zip(left, batch.results, strict=True):
                results[number] = answer
            is_begun = len(batch.unanswered) < len(left)
            left = [left[number] for number in batch.unanswered]
            if not left or not batch.is_written:
                continue
            ends = 0 if is_begun else ends + 1
            first, *left = left
            sender = of[first]
            if sender is not None:
                senders.note(sender, clock())
                left = [number for number in left if of[number] != sender]
        return results

    async def stop(self) -> None:
        if not self._is_stopping:  # a second call would interrupt the first
            self._is_stopping = True
            self._keeping.cancel()
        await asyncio.wait([self._keeping])

    async def _keep(self) -> None:
        """Start it, and restart it whenever it ends."""
        loop = asyncio.get_running_loop()
        failures, has_worked = 0, False
        try:
            while True:
                self._is_settled.clear()
                began = loop.time()
                life = _Child(
                    self._name, self._deadline_s, self._standing, self._notes, self._is_settled
                )
                why = await self._live(life)
                has_worked = has_worked or life.has_answered
                if has_worked and life.was_asked:
                    pause = 0.0 if life.has_answered else _AGAIN_S
                else:
                    failures = 1 if loop.time() - began > _LONG_S else failures + 1
                    pause = _PAUSES_S[min(failures, len(_PAUSES_S)) - 1]
                if pause > _AGAIN_S:
                    self._is_settled.set()
                when = f" in {pause:g} s" if pause else ""
                log_plugin(logging.ERROR, f"{why}; restarting{when}", self._name)
                self._standing.failed_with(self._name, why)
                if pause:
                    await asyncio.sleep(pause)
        finally:
            self._is_settled.set()

    async def _live(self, life: _Child) -> str:
        """Run it until it ends; gives the cause."""
        loop = asyncio.get_running_loop()
        command = self._command
        try:
            await loop.subprocess_exec(
                lambda: life,
                *command.words,
                cwd=command.folder,
                env=without_secrets(os.environ),
                start_new_session=True,
            )
        except OSError as wrong:
            self._is_settled.set()
            return f"cannot be started: {wrong.strerror or wrong}"
        if not life.ended.done():
            self._life = life
            self._is_settled.set()
        lasts = loop.call_later(_START_S, self._standing.recovered, self._name)
        try:
            return await life.ended
        finally:
            lasts.cancel()
            self._life = None
            life.end("was stopped")
            killing = asyncio.create_task(life.killed(), name=f"end of plug-in {self._name}")
            try:
                await asyncio.shield(killing)
            except asyncio.CancelledError:  # cancelled: it must be killed all the same
                await killing
                raise

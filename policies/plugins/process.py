"""A plug-in that is a process: strfry's protocol for write policies, one JSON line each way.

    → {"type":"new","event":{…},"receivedAt":…,"sourceType":"IP4","sourceInfo":"10.1.2.3"}
    ← {"id":"…","action":"accept"}          or "reject" with "msg", or "shadowReject"

Invariants: a batch is written at once and the answers are matched by id, so that a plug-in may
answer in any order; its deadline runs anew from each answer. What is no JSON is passed over, as
strfry does: plug-ins print greetings and traces; too many such lines between two answers are not.
Whatever else it prints, says of another event or leaves unsaid ends this life of the process: all
that it still owes is `error:`, and it is started anew, each time after a longer pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final, cast

import orjson

from policies.plugins.asked import Notes, no_answer, objection, say
from relay.verdict import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from policies.plugins.asked import Asked, Standing
    from policies.plugins.definition import Command
    from relay.verdict import Reject

_START_S: Final = 3.0
"""From the start of a process to its first answer, if that is over its deadline: interpreters take
their time."""
_MAX_LINE: Final = 65_536
"""Bytes of an answer."""
_MOST_CHATTER: Final = 200
"""Lines between two answers that are no JSON."""
_MAX_WRITTEN: Final = 4 * 2**20
"""Bytes of events that are written at once."""
_PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Before each start; the first again after a life of `_LONG_S`."""
_LONG_S: Final = 60.0
_STOP_S: Final = 2.0
"""Between SIGTERM and SIGKILL."""
_MOMENT_S: Final = 0.1
_STDERR_RATE: Final = 256 * 1024
"""Bytes a second that are read; a process that writes more has to wait."""
_SECRETS: Final = ("ROOKERY_KEY", "NOSTR_SECRETBOX_KEY", "NMEM_KEY")
"""Of the environment; what a plug-in has no business with."""


def line_of(asked: Asked) -> bytes:
    """The question about one event."""
    arrival = asked.arrival
    source: str
    if arrival.origin is not Origin.WIRE:
        source, info = "Import", ""
    else:
        source = "IP6" if isinstance(arrival.address, IPv6Address) else "IP4"
        # A client behind a proxy that nobody vouches for has no address: all of them share one.
        info = "0.0.0.0" if arrival.address is None else str(arrival.address)  # noqa: S104
    question: dict[str, object] = {
        "type": "new",
        "event": orjson.Fragment(asked.event.raw),
        "receivedAt": arrival.at,
        "sourceType": source,
        "sourceInfo": info,
    }
    if arrival.authenticated:
        # The protocol knows one key; with several the author's tells the most.
        author = asked.event.pubkey
        keys = arrival.authenticated
        question["authed"] = author if author in keys else min(keys)
    return orjson.dumps(question, option=orjson.OPT_APPEND_NEWLINE)


class _Broken(Exception):
    """The process said what is no answer; the text is for the admin and repeats nothing of it."""


def answer_from(line: bytes, plugin: str) -> tuple[str, Reject | None] | None:
    """The event's id, and what the plug-in says of it; None: no JSON. Raises _Broken."""
    try:
        answer = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("id"), str):
        raise _Broken("printed a line that is no answer: it has no id")
    said = answer.get("msg")
    if said is not None and not isinstance(said, str):
        raise _Broken("printed an answer whose msg is no text")
    match answer.get("action"):
        case "accept":
            return answer["id"], None
        case "reject":
            return answer["id"], objection(said or "", plugin)
        case "shadowReject":
            # OK true means on disk (contract §9): the author hears no, and no reason.
            return answer["id"], objection("", plugin)
        case _:
            raise _Broken("printed an answer without accept, reject or shadowReject")


class _Round:
    """One batch: what was asked, and what is still owed."""

    def __init__(self, asked: Sequence[Asked], plugin: str) -> None:
        self.results: list[Reject | None] = [no_answer(plugin)] * len(asked)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.owed: dict[str, list[int]] = {}
        for number, (event, _) in enumerate(asked):  # one event can come twice in a batch
            self.owed.setdefault(event.id, []).append(number)

    def note(self, event_id: str, said: Reject | None) -> None:
        places = self.owed.get(event_id)
        if places is None:
            raise _Broken("answered for an event that it was not asked about")
        self.results[places.pop()] = said
        if not places:
            del self.owed[event_id]


class _Life(asyncio.SubprocessProtocol):
    """One life of the process: from its start to the first thing that is wrong."""

    def __init__(self, plugin: str, deadline_s: float, standing: Standing, notes: Notes) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why it is over."""
        self._exited = asyncio.Event()
        self._gone = asyncio.Event()
        """It has exited and its pipes are closed."""
        self._plugin = plugin
        self._deadline_s = deadline_s
        self._standing = standing
        self._notes = notes
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._transport: asyncio.SubprocessTransport | None = None
        self._round: _Round | None = None
        self._has_answered = False
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._answer = b""
        self._chatter = 0
        """Lines that are no JSON, since the last answer."""
        self._complaint = b""

    # what is asked of it

    async def answers(self, asked: Sequence[Asked]) -> list[Reject | None]:
        current = _Round(asked, self._plugin)
        if self.ended.done():
            return current.results
        self._round = current
        patience = self._deadline_s
        if not self._has_answered:
            patience = max(patience, self._began + _START_S - self._loop.time())
        self._wait(patience)
        pipe = cast("asyncio.WriteTransport | None", self._pipe(0))
        if pipe is not None and not pipe.is_closing():  # else it is about to be known as gone
            pipe.write(b"".join([line_of(each) for each in asked]))
        try:
            await current.done
        finally:
            self._round = None
            if self._timer is not None:
                self._timer.cancel()
        return current.results

    def end(self, why: str) -> None:
        """It is over; what it owes stays unanswered."""
        if not self.ended.done():
            self.ended.set_result(why)
            output = cast("asyncio.ReadTransport | None", self._pipe(1))
            if output is not None and not output.is_closing():
                output.pause_reading()  # it may go on printing until it is killed
        if self._round is not None and not self._round.done.done():
            self._round.done.set_result(None)

    async def killed(self) -> None:
        """SIGTERM, then SIGKILL, to it and whatever it started."""
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
        self._timer = self._loop.call_at(self._until, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._look_at_the_clock)
        else:
            self.end("did not answer in time")

    # what it does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._complain(data)
        elif not self.ended.done():
            try:
                self._take(data)
            except _Broken as wrong:
                self.end(str(wrong))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            # That it has exited says more, and is known in a moment.
            self._loop.call_later(_MOMENT_S, self.end, "closed its output")

    def process_exited(self) -> None:
        self._exited.set()
        # Its last answers may still be in the pipe; a child of its own may hold the pipe open.
        self._loop.call_later(_MOMENT_S, self.end, self._ending())

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(self._ending())
        self._gone.set()

    def _ending(self) -> str:
        code = None if self._transport is None else self._transport.get_returncode()
        if code is None:
            return "is gone"
        return f"exited with {code}" if code >= 0 else f"died of signal {-code}"

    def _pipe(self, fd: int) -> asyncio.BaseTransport | None:
        return None if self._transport is None else self._transport.get_pipe_transport(fd)

    def _take(self, data: bytes) -> None:
        *lines, self._answer = (self._answer + data).split(b"\n")
        if len(self._answer) > _MAX_LINE:
            raise _Broken("prints a line without end")
        has_answered = False
        for line in lines:
            answer = answer_from(line, self._plugin)
            if answer is None:
                self._pass_over()
                continue
            if self._round is None:
                raise _Broken("printed an answer without being asked")
            self._round.note(*answer)
            self._chatter, has_answered = 0, True
        if not has_answered or self._round is None:
            return
        if self._has_answered:
            self._until = self._loop.time() + self._deadline_s  # its timer looks at it
        else:
            self._has_answered = True
            self._wait(self._deadline_s)
            self._standing.is_well(self._plugin)
        if not self._round.owed and not self._round.done.done():
            self._round.done.set_result(None)

    def _pass_over(self) -> None:
        self._chatter += 1
        if self._chatter > _MOST_CHATTER:
            raise _Broken("prints lines that are not JSON")
        if self._chatter == 1:  # not the line: it may repeat an event
            self._notes.add(logging.WARNING, "printed a line that is not JSON: it is passed over")

    def _complain(self, data: bytes) -> None:
        """Lines of stderr for the log, no faster than the log can bear."""
        *lines, rest = (self._complaint + data).split(b"\n")
        self._complaint = rest[-1024:]
        for line in lines:
            text = line.decode("utf-8", "replace").strip()
            if text:
                self._notes.add(logging.WARNING, text)
        pipe = cast("asyncio.ReadTransport", self._pipe(2))
        if pipe.is_reading():
            pipe.pause_reading()
            self._loop.call_later(len(data) / _STDERR_RATE, _read_on, pipe)


def _read_on(pipe: asyncio.ReadTransport) -> None:
    if not pipe.is_closing():
        pipe.resume_reading()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def environment(outer: Mapping[str, str]) -> dict[str, str]:
    """What the process may know of ours."""
    return {name: value for name, value in outer.items() if name not in _SECRETS}


def _parts(asked: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    """As much of a batch as is written at once."""
    begin = size = 0
    for number, (event, _) in enumerate(asked):
        size += len(event.raw)
        if size > _MAX_WRITTEN and number > begin:
            yield asked[begin:number]
            begin, size = number, len(event.raw)
    yield asked[begin:]


class ProcessPlugin:
    """The process, kept alive from its making to `stop`."""

    def __init__(self, name: str, command: Command, deadline_ms: int, standing: Standing) -> None:
        self._name = name
        self._command = command
        self._deadline_s = deadline_ms / 1000
        self._standing = standing
        self._notes = Notes(name)
        self._life: _Life | None = None
        self._is_stopping = False
        self._is_settled = asyncio.Event()
        """It runs, or is known not to; unset while it starts."""
        self._keeping = asyncio.create_task(self._keep(), name=f"plug-in {name}")

    async def answers(self, asked: Sequence[Asked]) -> list[Reject | None]:
        found: list[Reject | None] = []
        for part in _parts(asked):
            await self._is_settled.wait()
            life = self._life
            if life is None:
                found += [no_answer(self._name)] * len(part)
            else:
                found += await life.answers(part)
        return found

    async def stop(self) -> None:
        if not self._is_stopping:  # a second time would cut the first one short
            self._is_stopping = True
            self._keeping.cancel()
        await asyncio.wait([self._keeping])

    async def _keep(self) -> None:
        """Start it, and start it again whenever it ends."""
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while True:
                self._is_settled.clear()
                began = loop.time()
                why = await self._live()
                failures = 1 if loop.time() - began > _LONG_S else failures + 1
                pause = _PAUSES_S[min(failures, len(_PAUSES_S)) - 1]
                when = f" in {pause:g} s" if pause else ""
                say(logging.ERROR, f"{why}; it is started again{when}", self._name)
                self._standing.has_failed(self._name, why)
                if pause:
                    await asyncio.sleep(pause)
        finally:
            self._is_settled.set()

    async def _live(self) -> str:
        """Until it ends; why it did."""
        loop = asyncio.get_running_loop()
        life = _Life(self._name, self._deadline_s, self._standing, self._notes)
        command = self._command
        try:
            await loop.subprocess_exec(
                lambda: life,
                *command.words,
                cwd=command.folder,
                env=environment(os.environ),
                start_new_session=True,
            )
        except OSError as wrong:
            self._is_settled.set()
            return f"cannot be started: {wrong.strerror or wrong}"
        self._life = life
        self._is_settled.set()
        lasts = loop.call_later(_START_S, self._standing.is_well, self._name)
        try:
            return await life.ended
        finally:
            lasts.cancel()
            self._life = None
            life.end("was stopped")
            killing = asyncio.create_task(life.killed(), name=f"end of plug-in {self._name}")
            try:
                await asyncio.shield(killing)
            except asyncio.CancelledError:  # stopped meanwhile: it must be gone all the same
                await killing
                raise

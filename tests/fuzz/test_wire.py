"""A relay that runs, by websocket and by HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import websockets
from hypothesis import example, given
from hypothesis import strategies as st

from tests import cast
from tests.fuzz.effort import share
from tests.fuzz.ledger import Ledger, Marker, message_of
from tests.fuzz.thrown import (
    Frame,
    bent_events,
    now,
    odd_texts,
    ok_reply,
    setting,
    thrown,
    weighed,
)
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import Rookery
from tests.unit.nostr.strategies import json_values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.fuzz.effort import Tally
    from tests.fuzz.thrown import Thrown

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LONG = 20_000
LIMITS = f"""
[server]
trusted_proxies = ["127.0.0.0/8"]
[limits]
max_message_length = {LONG}
max_subscriptions = 8
default_limit = 20
max_limit = 40
"""
CLOSED_BY_RULE = {1008, 1009}
"""Too many frames that are none; a frame that is too long."""

_large = st.builds(
    lambda size, byte: Frame(b'["REQ","' + byte * size + b'",{}]'),
    st.sampled_from([LONG - 20, LONG, LONG + 1, 5 * LONG]),
    st.sampled_from([b"a", b"\xff"]),
)
_bad_row = st.just(Frame(b"no"))


class Caller:
    """A websocket to the relay; a new one when the relay closed it, as it may."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket: Any = None
        self._challenge = ""
        self._rounds = 0

    async def say(self, things: Sequence[Thrown]) -> Ledger | None:
        """None: the relay hung up over one of them, for a reason that it is entitled to."""
        if self._socket is None:
            self._socket = await websockets.connect(self._url, max_size=None, ping_interval=None)
            self._challenge = (await self._hears())[1]
        ledger = Ledger()
        try:
            for thing in things:
                frame = ok_reply(thing, self._challenge, self._url)
                await self._socket.send(frame.data, text=frame.is_text)
                ledger.sent(frame)
            self._rounds += 1
            marker = Marker(self._rounds)
            heard: list[list[Any]] = []
            for frames, is_over in (
                (marker.frames, marker.is_answered),
                (ledger.closing(), marker.is_closed),
            ):
                for data in frames:
                    await self._socket.send(data, text=True)
                while not is_over(heard):
                    heard.append(await self._hears())
            ledger.heard = [message for message in heard if not marker.is_about(message)]
        except websockets.ConnectionClosed as closed:
            end = closed.rcvd
        else:
            return ledger
        # Bytes that nobody reads any more may cost us the relay's last words.
        is_long = any(isinstance(thing, Frame) and len(thing.data) > LONG for thing in things)
        assert is_long if end is None else end.code in CLOSED_BY_RULE, end
        self._socket = None
        return None

    async def _hears(self) -> list[Any]:
        text = await asyncio.wait_for(self._socket.recv(decode=False), ANSWER_S)
        return message_of(text)

    async def leave(self) -> None:
        if self._socket is not None:
            await self._socket.close()
            self._socket = None


@dataclass
class Place:
    """A relay and what runs beside it."""

    rookery: Rookery
    runner: asyncio.Runner

    def is_well(self) -> None:
        """Nothing was logged, since this was last asked, that a relay must not log."""
        told, self.rookery.lines = self.rookery.lines, []
        log = "\n".join(told)
        assert "Traceback" not in log, log
        assert '"level":"error"' not in log, log


@contextlib.contextmanager
def running(folder: Path) -> Any:
    with asyncio.Runner() as runner:
        rookery = Rookery(folder / "data")
        init = ("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--preset", "open")
        runner.run(rookery.init(*init))
        (rookery.folder / "rookery.toml").write_text(LIMITS)
        try:
            runner.run(rookery.start())
            place = Place(rookery, runner)
            yield place
            place.is_well()
            assert runner.run(rookery.stop()) == 0
        finally:
            runner.run(rookery.__aexit__())


def test_a_running_relay_answers_in_full(tally: Tally, tmp_path: Path) -> None:
    conversations = weighed(
        (60, st.lists(thrown, min_size=1, max_size=6)),
        (1, st.lists(_large, min_size=1, max_size=2)),
        (1, st.lists(_bad_row, min_size=19, max_size=21)),
    )
    with running(tmp_path) as place:
        runner = place.runner
        caller = Caller(place.rookery.url)
        told = runner.run(
            caller.say([Frame(b'["EVENT",' + event.raw + b"]") for event in setting()])
        )
        assert all(message[2] for message in told.heard), told.heard

        @share(4)
        @given(things=conversations)
        @example(things=[Frame(b"no")] * 21)
        @example(things=[Frame(b"x" * 2 * LONG)])
        def converse(things: list[Thrown]) -> None:
            tally.example()
            try:
                ledger = runner.run(caller.say(things))
            except BaseException:
                runner.run(caller.leave())  # what is still to come would be the next one's
                raise
            tally.counts["frames"] += len(things)
            if ledger is None:
                tally.counts["hung up"] += 1
            else:
                ledger.check()
                for message in ledger.heard:
                    verb = "taken" if message[0] == "OK" and message[2] else message[0]
                    tally.counts[verb] += 1
            place.is_well()

        converse()
        runner.run(caller.leave())
    if tally.is_telling:
        assert tally.counts["taken"] > tally.counts["OK"] / 4, tally
        assert tally.counts["hung up"], tally


HANDSHAKE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
_headers = st.lists(
    st.sampled_from(
        [
            ("Accept", "application/nostr+json"),
            ("Accept", "text/html, */*;q=x,,;"),
            ("X-Forwarded-For", "::1, 10.0.0.1, x"),
            ("X-Forwarded-For", ",,"),
            ("X-Forwarded-For", "[fe80::1%eth0]"),
            ("Forwarded", 'for="'),
            ("X-Real-IP", "1.2.3"),
            *HANDSHAKE.items(),
            ("Sec-WebSocket-Version", "12"),
            ("Sec-WebSocket-Key", "x"),
            ("Content-Type", "application/nostr+json+rpc"),
            ("Authorization", "Nostr"),
            ("Authorization", "Nostr !!!"),
            ("Authorization", "Basic eA=="),
            ("Origin", "null"),
            ("Expect", "100-continue"),
            ("Transfer-Encoding", "x"),
            ("Content-Encoding", "gzip"),
            ("Range", "bytes=5-1"),
            ("Host", "evil:99999"),
        ]
    ),
    max_size=4,
)
_calls = st.builds(
    lambda method, params: orjson.dumps({"method": method, "params": params}),
    st.sampled_from(
        [
            "supportedmethods",
            "banpubkey",
            "allowpubkey",
            "listbannedpubkeys",
            "changerelayname",
            "changerelaydescription",
            "banevent",
            "allowkind",
            "blockip",
            "",
            "x",
        ]
    ),
    st.lists(odd_texts | st.integers(-1, 70000) | st.none(), max_size=3),
)
_bodies = st.one_of(
    st.just(b""),
    _calls,
    _calls,
    st.binary(max_size=30),
    json_values.map(json.dumps).map(str.encode),
)


def _authorization(event: object) -> tuple[str, str]:
    return "Authorization", "Nostr " + base64.b64encode(json.dumps(event).encode()).decode()


_nip98 = st.builds(
    lambda who, kind, url, method, at, body: _authorization(
        orjson.loads(
            who.sign(kind, [["u", url], ["method", method], ["payload", body]], "", now() + at).raw
        )
    ),
    st.sampled_from([cast.owner, cast.alice]),
    st.sampled_from([27235, 27235, 1]),
    st.sampled_from(["http://127.0.0.1/", "HERE", "HERE", ""]),
    st.sampled_from(["POST", "GET"]),
    st.sampled_from([0, 0, -1000, 10**9]),
    odd_texts,
) | bent_events.map(_authorization)


def test_every_http_request_gets_its_answer(tally: Tally, tmp_path: Path) -> None:
    async def ask(port: int, request: bytes, *, is_whole: bool) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(ANSWER_S):
                writer.write(request)
                await writer.drain()
                return await reader.readline() if is_whole else b""
        finally:
            writer.transport.abort()

    with running(tmp_path) as place:
        port = int(place.rookery.url.rsplit(":", 1)[1])

        @share(1)
        @example(
            method="GET",
            path="/",
            headers=[("Content-Encoding", "gzip")],
            login=None,
            body=b"x",
            length=None,
        )
        @example(  # gone before the handshake is answered
            method="GET",
            path="/",
            headers=list(HANDSHAKE.items()),
            login=None,
            body=b"",
            length="0",
        )
        @given(
            method=st.sampled_from(["GET", "GET", "POST", "POST", "OPTIONS", "HEAD", "PUT", "get"]),
            path=st.sampled_from(["/", "/", "/", "/healthz", "/readyz", "/x", "/%00", "//", "*"]),
            headers=_headers,
            login=st.none() | _nip98,
            body=_bodies,
            length=st.sampled_from([None, None, None, "-1", "99", "x", "9" * 30]),
        )
        def browse(
            method: str,
            path: str,
            headers: list[tuple[str, str]],
            login: tuple[str, str] | None,
            body: bytes,
            length: str | None,
        ) -> None:
            tally.example()
            lines = [
                f"{method} {path} HTTP/1.1",
                "Host: relay",
                f"Content-Length: {len(body) if length is None else length}",
                *(f"{name}: {value}" for name, value in headers + ([login] if login else [])),
                "",
                "",
            ]
            request = "\r\n".join(lines).encode() + body
            answer = place.runner.run(ask(port, request, is_whole=length is None))
            if answer:  # else: it hung up on what is no HTTP
                version, status = answer.split(b" ")[:2]
                assert version in (b"HTTP/1.0", b"HTTP/1.1"), answer
                assert int(status) < 500, answer
            tally.counts[answer[9:12].decode() or "nothing"] += 1
            place.is_well()

        browse()
    if tally.is_telling:
        assert tally.counts["200"], tally

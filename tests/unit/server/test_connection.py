"""relay/server/connection.py: a websocket between a client and the pipelines. N01, N42.

Over real sockets; `serving` is a relay in this process.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import deque
from dataclasses import dataclass
from itertools import count, groupby
from string import ascii_letters
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import ref

import orjson
import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

from relay.cli.serve import _new_loop
from relay.groups.actions import Flag
from relay.groups.group import Group
from relay.lifecycle.rows import Stored
from relay.read.outbox import FlushQueue
from relay.server import eviction
from relay.server.connection import Connection, Stop
from relay.server.eviction import UnreadRows, close_heaviest
from relay.server.socket_input import SocketInput
from relay.server.turns import Account, CostlyWork, Slice, Turns
from tests.cast import admin, alice, bob, owner, person, stranger
from tests.contract.writing import unsigned, write
from tests.harness.relay_program import eventually, until
from tests.unit.server.test_app import NOW, OPEN, Relay, Visit, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

DEN = Group("den", flags=frozenset({Flag.PRIVATE})).with_users(
    {admin.pubkey: ("admin",), alice.pubkey: ()}
)


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    """With a private group, whose members are admin and alice."""
    async with serving("[limits]\nmax_subscriptions = 2\n") as relay:
        relay.state.adopt(relay.state.groups.with_group(DEN))
        yield relay


def note(text: str = "", who: SecretKey = alice, at: int = NOW) -> Event:
    return who.sign(1, [], text, at)


def chat(text: str = "") -> Event:
    return admin.sign(9, [["h", "den"]], text, NOW)


def fields(event: Event) -> Any:
    return orjson.loads(event.raw)


def shown(event: Event, sub: str = "s") -> list[Any]:
    return ["EVENT", sub, fields(event)]


async def logged_in(relay: Relay, who: SecretKey) -> Visit:
    visit = await relay.visit()
    assert await visit.logs_in(who, f"ws://{relay.at}") == (True, "")
    return visit


PROXIED = '[relay]\nurl = "ws://relay.example"\n[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'


async def connected_from(
    address: str | None, relay: Relay, http: ClientSession, who: SecretKey | None
) -> ClientWebSocketResponse:
    """A connection that a proxy forwards from this address, logged in as `who`. With `PROXIED`."""
    headers = {} if address is None else {"X-Forwarded-For": address}
    socket = await http.ws_connect(f"http://{relay.at}/", headers=headers)
    _, challenge = await socket.receive_json()
    if who is not None:
        tags = [["relay", "ws://relay.example"], ["challenge", challenge]]
        await socket.send_json(["AUTH", fields(who.sign(22242, tags, "", NOW))])
        assert (await socket.receive_json())[2]
    return socket


# the whole pipeline ------------------------------------------------------------------------------


async def test_with_very_many_keys_a_subscription_is_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.read.fanout._MOST_OF_NETWORK", 2)
    async with serving(PROXIED) as relay, ClientSession() as http:
        socket = await http.ws_connect(
            f"http://{relay.at}/", headers={"X-Forwarded-For": "203.0.113.1"}
        )
        _, challenge = await socket.receive_json()
        await socket.send_json(["REQ", "s", {"kinds": [1]}])
        assert await socket.receive_json() == ["EOSE", "s"]
        tags = [["relay", "ws://relay.example"], ["challenge", challenge]]
        heard = list[str]()
        for number in range(16):
            login = person(f"key {number}").sign(22242, tags, "", NOW)
            await socket.send_json(["AUTH", fields(login)])
            while (frame := await socket.receive_json())[0] != "OK":
                heard.append(frame[2])
        text = "very many keys have logged in since it was opened, subscribe again"
        assert heard == [f"rate-limited: {text}"]
        await socket.send_json(["REQ", "s", {"kinds": [1]}])
        assert await socket.receive_json() == ["EOSE", "s"]
        assert len(relay.fanout.apart) == 1
        await socket.close()


async def test_no_commit_waits_until_a_large_event_is_written_to_many_clients_of_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each gets it, and what comes later behind it."""
    monkeypatch.setattr("relay.read.outbox._MOST_LARGE", 100_000)
    queued = 0

    def flush(queue: FlushQueue) -> None:
        nonlocal queued
        queued = max(queued, queue.live_bytes)
        flush_all(queue)

    flush_all = FlushQueue.flush
    monkeypatch.setattr(FlushQueue, "flush", flush)
    async with serving(PROXIED) as relay, ClientSession() as http:
        followers = [
            await connected_from(f"203.0.113.{number}", relay, http, None) for number in range(20)
        ]
        for follower in followers:
            await follower.send_json(["REQ", "s", {"kinds": [1, 20001]}])
            assert await follower.receive_json() == ["EOSE", "s"]
        author = await connected_from("198.51.100.1", relay, http, None)
        events = [
            alice.sign(20001, [], "x" * 60_000, NOW),
            alice.sign(1, [], "y" * 60_000, NOW),
            alice.sign(20001, [], "small", NOW),
        ]
        for event in events:
            await author.send_json(["EVENT", fields(event)])
            assert (await author.receive_json())[2]
        for follower in followers:
            heard = [(await follower.receive_json())[2]["id"] for _ in events]
            assert heard == [event.id for event in events]
        assert queued < 6 * 61_000
        for socket in (author, *followers):
            await socket.close()


@pytest.mark.proves("N01-50", "N01-53")
async def test_an_event_reaches_the_subscriptions_of_others(relay: Relay) -> None:
    """N01-50, N01-75, N01-82; N01-53: the id of a subscription is its connection's own."""
    alices, bobs = await relay.visit(), await relay.visit()
    stored, live = note("stored", at=NOW - 1), note("live")
    assert await alices.publishes(stored) == (True, "")
    for visit in (alices, bobs):
        assert await visit.asks({"kinds": [1]}) == [shown(stored), ["EOSE", "s"]]
    await bobs.says("EVENT", fields(live))
    heard = [await bobs.hears(), await bobs.hears()]
    assert sorted(heard) == [shown(live), ["OK", live.id, True, ""]]
    assert await alices.hears() == shown(live)


async def test_counting_opens_nothing_and_closing_is_silent(relay: Relay) -> None:
    """N45-01, N45-05, N01-56."""
    visit = await relay.visit()
    await visit.publishes(note())
    await visit.says("COUNT", "c", {"kinds": [1]})
    assert await visit.hears() == ["COUNT", "c", {"count": 1}]
    await visit.asks({})
    await visit.says("CLOSE", "s")
    await visit.says("CLOSE", "c")
    assert await visit.publishes(note("nobody asks any more")) == (True, "")


@pytest.mark.proves("N01-93")
async def test_a_query_closed_by_the_relay_does_not_count_as_open(relay: Relay) -> None:
    """N01-93: two may be open here."""
    visit = await relay.visit()
    for sub in "abc":
        assert (await visit.asks({"#h": ["den"]}, sub=sub))[0][:2] == ["CLOSED", sub]
    for sub in "ab":
        assert await visit.asks({}, sub=sub) == [["EOSE", sub]]
    assert (await visit.asks({}, sub="c"))[0][2].startswith("rate-limited: ")
    assert await visit.asks({"kinds": [7]}, sub="b") == [["EOSE", "b"]]


async def test_a_silent_client_is_pinged_and_then_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.server.connection._HEARTBEAT_S", 0.2)
    async with serving() as relay, ClientSession() as http:
        silent = await http.ws_connect(f"http://{relay.at}/", autoping=False)
        heard = [(await silent.receive()).type for _ in range(3)]
        assert heard[:2] == [WSMsgType.TEXT, WSMsgType.PING]
        assert heard[2] in (WSMsgType.CLOSED, WSMsgType.ERROR)


async def test_a_client_that_talks_is_not_silent(relay: Relay) -> None:
    """By the clock, not by how long the relay has worked: all were closed after half a minute."""
    visit = await relay.visit()
    (connection,) = relay.server.connections
    await visit.asks({})
    for _ in range(12):
        connection.check()
    await visit.says("COUNT", "c", {})
    assert await visit.hears() == ["COUNT", "c", {"count": 0}]


# logins ------------------------------------------------------------------------------------------


@pytest.mark.proves("N42-04")
async def test_a_login_is_in_effect_for_the_next_message(relay: Relay) -> None:
    """N42-04: a client need not wait for its OK."""
    said = chat("for us")
    await (await logged_in(relay, admin)).publishes(said)
    alices = await relay.visit()
    tags = [["relay", f"ws://{relay.at}"], ["challenge", alices.challenge]]
    await alices.says("AUTH", fields(alice.sign(22242, tags, "", NOW)))
    await alices.says("REQ", "s", {"kinds": [9]})
    assert (await alices.hears())[2] is True
    assert [await alices.hears(), await alices.hears()] == [shown(said), ["EOSE", "s"]]


@pytest.mark.proves("N42-05")
async def test_a_login_with_an_invalid_signature_is_refused(relay: Relay) -> None:
    """N42-05, N42-09."""
    visit = await relay.visit()
    tags = [["relay", f"ws://{relay.at}"], ["challenge", visit.challenge]]
    forged = fields(alice.sign(22242, tags, "", NOW)) | {"sig": "0" * 128}
    await visit.says("AUTH", forged)
    refused = ["OK", forged["id"], False, "invalid: sig: invalid signature"]
    assert await visit.hears() == refused
    assert (await visit.asks({"#h": ["den"]}))[0][2].startswith("auth-required: ")


@pytest.mark.proves("N42-08")
async def test_a_login_is_not_shared_with_another_connection(relay: Relay) -> None:
    """N42-08, N42-14: not from the same address, nor by sending it again there."""
    await logged_in(relay, alice)
    other = await relay.visit()
    assert (await other.asks({"#h": ["den"]}))[0][2].startswith("auth-required: ")
    other.challenge = "of another connection"
    assert not (await other.logs_in(alice, f"ws://{relay.at}"))[0]


@pytest.mark.proves("N42-16")
async def test_a_removed_member_receives_the_removal_and_nothing_after(relay: Relay) -> None:
    """N29-94, N29-96: on an open connection, at once."""
    alices, admins = await logged_in(relay, alice), await logged_in(relay, admin)
    assert await alices.asks({"authors": [admin.pubkey]}) == [["EOSE", "s"]]
    removal = admin.sign(9001, [["h", "den"], ["p", alice.pubkey]], "", NOW)
    said = [chat("for us"), removal, chat("not for alice"), note("for all", admin)]
    for event in said:
        assert await admins.publishes(event) == (True, "")
    heard = [await alices.hears() for _ in range(3)]
    assert heard == [shown(said[0]), shown(removal), shown(said[3])]


# patience ----------------------------------------------------------------------------------------


@pytest.mark.proves("N01-51")
async def test_an_invalid_message_gets_a_notice_and_the_connection_stays_open(relay: Relay) -> None:
    """N01-51, N01-12: binary frames and bytes that are no text too."""
    visit = await relay.visit()
    await visit.socket.send_bytes(b'["REQ","s",{}]')
    await visit.socket.send_frame(b'["REQ","\xff",{}]', WSMsgType.TEXT)
    await visit.socket.send_str("hello")
    for _ in range(3):
        verb, text = await visit.hears()
        assert verb == "NOTICE"
        assert text.startswith("invalid: ")
    assert await visit.asks({}) == [["EOSE", "s"]]


async def test_a_connection_of_invalid_messages_is_closed(relay: Relay) -> None:
    """20 in a row close it (1008); each gets a NOTICE."""
    visit = await relay.visit()
    for _ in range(25):
        await visit.socket.send_str("hello")
    *notices, end = await visit.hears_all()
    assert [notice[0] for notice in notices] == ["NOTICE"] * 20
    assert end == ["closed", 1008]
    await relay.is_left()


@pytest.mark.proves("N01-98")
async def test_the_socket_is_not_read_while_too_many_events_are_unanswered(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each gets one OK, N01-98."""
    monkeypatch.setattr("relay.server.connection._MAX_UNANSWERED", 4)
    visit, sent = await relay.visit(), [note(str(number)) for number in range(50)]
    relay.disk.may_commit.clear()
    for event in sent:
        await visit.says("EVENT", fields(event))
    await relay.disk.append_called.wait()
    assert await relay.counts("rookery_frames_in_total") == 4
    relay.disk.may_commit.set()
    answers = [await visit.hears() for _ in sent]
    assert sorted(answers) == sorted(["OK", event.id, True, ""] for event in sent)


@pytest.mark.slow
async def test_the_socket_is_not_read_while_unanswered_events_take_much_memory(
    relay: Relay,
) -> None:
    """5,000 tags take a megabyte, whatever is in them."""
    tags = [["t", "x"]] * 5000
    sent = [alice.sign(1, tags, str(number), NOW) for number in range(40)]
    visit = await relay.visit()
    relay.disk.may_commit.clear()
    for event in sent:
        await visit.says("EVENT", fields(event))
    await relay.disk.append_called.wait()
    while await relay.counts("rookery_frames_in_total") < 4:
        pass
    assert await (await relay.visit()).asks({"ids": ["0" * 64]}) == [["EOSE", "s"]]
    assert await relay.counts("rookery_frames_in_total") == 4 + 1
    relay.disk.may_commit.set()
    answers = [await visit.hears() for _ in sent]
    assert sorted(answers) == sorted(["OK", event.id, True, ""] for event in sent)


async def test_events_of_all_connections_that_wait_are_bounded_in_memory(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.write.ingest._MAX_WEIGHT", 10_000)
    monkeypatch.setattr("relay.write.ingest._ORDINARY", 0)
    visit, other = await relay.visit(), await relay.visit()
    large, small = note("x" * 20_000), note("small")
    relay.disk.may_commit.clear()
    await visit.says("EVENT", fields(large))
    await relay.disk.append_called.wait()
    full = "rate-limited: too many events are waiting, slow down"
    assert await other.publishes(small) == (False, full)
    relay.disk.may_commit.set()
    assert await visit.hears() == ["OK", large.id, True, ""]
    assert await other.publishes(small) == (True, "")


async def test_events_that_are_refused_at_once_leave_the_socket_to_be_read(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 4 MiB of them it was not read for as long as the connection lasted."""
    monkeypatch.setattr("relay.server.connection._MAX_UNANSWERED_WEIGHT", 4096)
    visit = await relay.visit()
    for number in range(50):
        accepted, text = await visit.publishes(note(f"{number}", at=NOW + 10**6))
        assert not accepted
        assert "in the future" in text
    assert await visit.publishes(note("now")) == (True, "")


async def test_reading_what_is_buffered_lets_others_run(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames that came in one piece are handled in slices of 5 ms; here each takes ten."""
    ticks, turns = count(), list[int]()
    wait = Turns.wait

    async def noted(self: Turns, account: Account) -> None:
        task = asyncio.current_task()
        if task is None or task.get_name() != "input waits for its turn":
            turns.append(1)
        await wait(self, account)

    monkeypatch.setattr("relay.server.connection.thread_time", lambda: next(ticks) / 100)
    monkeypatch.setattr("relay.server.socket_input.thread_time", lambda: 0)
    visit = await relay.visit()
    monkeypatch.setattr(Turns, "wait", noted)
    for _ in range(100):
        await visit.says("CLOSE", "never opened")
        await visit.socket.ping()
        await visit.socket.pong()
    await visit.asks({"ids": ["0" * 64]})
    assert len(turns) == 301


async def test_connections_of_one_address_share_their_turns_and_known_keys_have_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """50 connections of somebody else, each with queries over many rows: a member's small ones
    took 2 s."""
    accounts, wait = list[Account](), Turns.wait

    async def noted(self: Turns, account: Account) -> None:
        accounts.append(account)
        await wait(self, account)

    monkeypatch.setattr(Turns, "wait", noted)
    async with serving(PROXIED) as relay, ClientSession() as http:
        relay.state.adopt(relay.state.groups.with_group(DEN))

        async def account_of(address: str, who: SecretKey | None = None) -> Account:
            socket = await connected_from(address, relay, http, who)
            await socket.send_json(["REQ", "s", {"#t": ["y" * 20_000]}])
            assert (await socket.receive_json())[0] == "EOSE"
            return accounts[-1]

        first, second = await account_of("203.0.113.1"), await account_of("203.0.113.1")
        assert first is second
        assert await account_of("203.0.113.2") is not first
        assert await account_of("203.0.113.1", stranger) is first
        of_alice = await account_of("203.0.113.1", alice)
        assert of_alice is not first
        assert of_alice.network.queue is not first.network.queue
        assert await account_of("203.0.113.1", admin) is of_alice


LARGE_EVENTS = """
[[rule]]
name   = "large events of a network"
match  = { event_bytes = 1_000, local = false }
quota  = { per = "network", bytes = 3_000 }
"""


@pytest.mark.parametrize(
    ("settings", "address", "taken"),
    [("", None, 3), ("", "203.0.113.1", 2), (PROXIED, "203.0.113.1", 2)],
)
async def test_rules_know_which_clients_are_on_the_machine_of_the_relay(
    settings: str, address: str | None, taken: int
) -> None:
    """Those behind a proxy are not, although the proxy is, whether or not it is trusted."""
    async with serving(settings, policy=OPEN + LARGE_EVENTS) as relay, ClientSession() as http:
        socket = await connected_from(address, relay, http, None)
        answers = []
        for number in range(3):
            large = stranger.sign(1, [], f"{number}" + "x" * 1_000, NOW)
            await socket.send_json(["EVENT", fields(large)])
            answers.append((await socket.receive_json())[2])
    assert answers.count(True) == taken


async def test_unknown_keys_of_one_address_have_so_many_subscriptions_in_all() -> None:
    """An event of somebody else may have to be sent to each: 50 connections of 100 kept all others
    waiting for a second."""
    async with (
        serving(PROXIED + "[limits]\nmax_subscriptions = 2\n") as relay,
        ClientSession() as http,
    ):
        relay.state.adopt(relay.state.groups.with_group(DEN))

        async def visit(address: str, who: SecretKey | None = None) -> ClientWebSocketResponse:
            return await connected_from(address, relay, http, who)

        async def asks(socket: ClientWebSocketResponse, sub: str) -> str:
            await socket.send_json(["REQ", sub, {"kinds": [1], "limit": 0}])
            said = await socket.receive_json()
            return "" if said[0] == "EOSE" else str(said[-1])

        ten = [await visit("203.0.113.1") for _ in range(10)]
        assert [await asks(each, sub) for each in ten for sub in "ab"] == [""] * 20
        late, other = await visit("203.0.113.1"), await visit("203.0.113.2")
        full = "rate-limited: at most 20 open subscriptions from your address without a known key"
        assert await asks(late, "a") == full
        assert await asks(ten[0], "a") == "", "in place of its own"
        assert await asks(other, "a") == ""
        assert await asks(await visit("203.0.113.1", alice), "a") == ""
        await ten[0].send_json(["CLOSE", "a"])
        assert await asks(ten[0], "a") == ""
        assert await asks(late, "a") == full
        await ten[0].close()
        async with until("those of a closed connection are free") as tries:
            async for _ in tries:
                if await asks(late, "a") == "":
                    break
        assert await asks(late, "b") == ""


async def test_who_becomes_a_member_while_connected_has_the_turns_of_known_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no more when the membership ends."""
    monkeypatch.setattr("relay.server.connection._HEARTBEAT_S", 0.2)
    accounts, wait = list[Account](), Turns.wait

    async def noted(self: Turns, account: Account) -> None:
        accounts.append(account)
        await wait(self, account)

    monkeypatch.setattr(Turns, "wait", noted)
    async with serving() as relay:
        visit = await logged_in(relay, stranger)
        relay.state.adopt(relay.state.groups.with_group(DEN))
        asked: dict[str, object] = {"#t": ["y" * 20_000]}
        await visit.asks(asked)
        assert not accounts[-1].is_known
        for den in (DEN.with_users({stranger.pubkey: ()}), DEN):
            relay.state.adopt(relay.state.groups.with_group(den))
            async with until("its turns are those of others") as tries:
                async for _ in tries:
                    await visit.asks(asked)
                    if accounts[-1].is_known is (den is not DEN):
                        break


async def test_a_message_that_waits_for_its_turn_has_arrived(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the bytes that come meanwhile count as none, and it is never closed for them."""
    waits: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    visit = await relay.visit()
    (connection,) = relay.server.connections

    async def wait(_turns: Turns, account: Account) -> None:
        if account is connection.account:
            waits.put_nowait(connection.arrived())

    monkeypatch.setattr(Turns, "wait", wait)
    before, _ = connection.arrived()
    await visit.says("CLOSE", "x" * 20_000)
    assert (await waits.get())[0] == before + 1


async def test_the_last_work_of_a_connection_counts_for_its_address(relay: Relay) -> None:
    visit = await relay.visit()
    (connection,) = relay.server.connections
    await visit.asks({"#t": [f"{number}" for number in range(1000)]}, sub="s")
    account = connection.account
    before = account.used
    await visit.socket.close()
    await eventually("the connection has ended", lambda: not relay.server.connections)
    assert account.used > before


async def test_what_takes_the_loop_long_waits_for_its_turn_before(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 frames of 229 kB that came at once, of 20 connections, kept all others out for 6 s."""
    turns, wait = list[int](), Turns.wait

    async def noted(self: Turns, account: Account) -> None:
        turns.append(len(relay.fanout))
        await wait(self, account)

    for module in ("server.connection", "server.socket_input"):
        monkeypatch.setattr(f"relay.{module}.thread_time", lambda: 0)
    for module in ("query", "query_queue"):
        monkeypatch.setattr(f"relay.read.{module}.perf_counter", lambda: 0)
    monkeypatch.setattr("relay.read.pace.thread_time", lambda: 0)
    visit = await relay.visit()
    monkeypatch.setattr(Turns, "wait", noted)
    await visit.asks({"#t": ["x"]}, {"#t": ["y" * 15_000]}, sub="small")
    assert turns == []
    few: list[dict[str, object]] = [{"#t": ["x"]}] * 30
    await visit.asks(*few, sub="small")
    assert turns == [1]  # before its rows are looked for
    turns.clear()
    await visit.asks({"#t": ["x" * 17_000]}, sub="large")
    assert turns == [1]
    many: dict[str, object] = {"#t": [f"{number}" for number in range(5000)]}
    await visit.asks(many, sub="large")
    assert turns == [1, 2, 2]  # before it is parsed, and before its rows are looked for
    await visit.says("CLOSE", "large")
    await visit.asks({"#t": ["x"]}, sub="small")
    assert turns == [1, 2, 2, 2]
    await visit.asks(many, sub="large")
    await visit.socket.close()
    await eventually("its subscriptions have ended", lambda: not len(relay.fanout))
    assert turns[6:] == [2]  # before the first; between two, if that took long


async def test_who_sends_large_frames_is_charged_for_looking_at_them(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look for values in one of 520 kB takes 3 ms, which counted for nobody: 600 sockets that
    came again kept whoever connected waiting for 6 s."""
    clock, charged = [0.0], list[float]()
    costly_s, end = Connection._costly_s, Slice.end

    def slow(self: Connection, data: bytes) -> float:
        clock[0] += 0.25
        return costly_s(self, data)

    def noted(self: Slice, more: float = 0.0) -> bool:
        charged.append(self.so_far)
        return end(self, more)

    monkeypatch.setattr(Connection, "_costly_s", slow)
    monkeypatch.setattr(Slice, "end", noted)
    monkeypatch.setattr("relay.server.connection.thread_time", lambda: clock[0])
    visit = await relay.visit()
    few: dict[str, object] = {"ids": ["0" * 64]}
    many: dict[str, object] = {"#t": [f"{number}" for number in range(5_000)]}
    for asked in (few, many):
        charged.clear()
        await visit.asks(asked)
        assert sum(charged) >= 0.25


async def test_costly_requests_of_all_without_a_known_key_rest_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two connections that opened 9,900 values again and again slowed all writes down by 100."""
    rests = list[tuple[CostlyWork, Account, float]]()
    monkeypatch.setattr(CostlyWork, "end", lambda *rest: rests.append(rest))
    async with serving(PROXIED) as relay, ClientSession() as http:
        relay.state.adopt(relay.state.groups.with_group(DEN))
        first, second, member = [
            await connected_from(f"203.0.113.{number}", relay, http, who)
            for number, who in enumerate((None, stranger, alice))
        ]
        many = {"#t": [f"{number}" for number in range(2000)]}
        await first.send_json(["REQ", "first", many])
        assert await first.receive_json() == ["EOSE", "first"]
        assert rests[0][2] > 0.004, "its query is counted too"
        await second.send_json(["REQ", "second", many])
        feed = {"authors": [f"{number:064x}" for number in range(500)]}
        for sub, few in (("small", {"#t": ["x"]}), ("feed", feed)):
            await first.send_json(["REQ", sub, few])
            assert await first.receive_json() == ["EOSE", sub]
        await first.send_json(["EVENT", fields(stranger.sign(1, [], "x" * 20_000, NOW))])
        assert (await first.receive_json())[2] is True
        for sub in "ab":
            await member.send_json(["REQ", sub, many])
            assert await member.receive_json() == ["EOSE", sub]
        assert len(relay.fanout) == 5
        rests[0][0]._give()
        assert await second.receive_json() == ["EOSE", "second"]
        assert len(rests) == 2


async def test_a_filter_counts_as_many_values_in_costly_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """50 filters of 14 tags went before 1,000 authors, and took three times as long."""
    estimates = list[float]()

    async def begin(_costly: CostlyWork, _account: Account, seconds: float) -> None:
        estimates.append(seconds)

    monkeypatch.setattr(CostlyWork, "begin", begin)
    async with serving() as relay:
        visit = await relay.visit()
        await visit.asks({"authors": [f"{number:064x}" for number in range(1000)]})
        tags = [[f"{number:x}" for number in range(first, first + 14)] for first in range(50)]
        await visit.asks(*[{"#t": each, "limit": 1000} for each in tags])
    assert estimates[1] > 3 * estimates[0]


@pytest.mark.parametrize("mark", ["#", r"\u0023"], ids=["plain", "escaped"])
async def test_a_request_of_many_tag_names_is_costly(
    monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    """With few values each. SQLite prepares a condition for each name, in one piece."""
    estimates = list[float]()

    async def begin(_costly: CostlyWork, _account: Account, seconds: float) -> None:
        estimates.append(seconds)

    monkeypatch.setattr(CostlyWork, "begin", begin)
    async with serving() as relay:
        visit = await relay.visit()
        await visit.asks(*[{"#t": [f"{number}"], "kinds": [1], "limit": 5} for number in range(9)])
        assert not estimates
        names = ",".join(
            [f'"{mark}{letter}":["1"]' for letter in ascii_letters if letter not in "eph"]
        )
        await visit.socket.send_str(f'["REQ","s",{{{names}}}]')
        assert await visit.socket.receive_json() == ["EOSE", "s"]
    assert estimates[0] > 0.0025


@pytest.mark.parametrize("key", ["search", r"se\u0061rch"], ids=["plain", "escaped"])
async def test_a_request_of_many_searches_is_costly(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Each is parsed, and its terms become tokens; 44 of 2,000 characters took 0.2 s."""
    estimates = list[float]()

    async def begin(_costly: CostlyWork, _account: Account, seconds: float) -> None:
        estimates.append(seconds)

    monkeypatch.setattr(CostlyWork, "begin", begin)
    async with serving() as relay:
        visit = await relay.visit()
        words = [f'{{"{key}":"{"tea " * 16}{number}","limit":0}}' for number in range(20)]
        await visit.socket.send_str(f'["REQ","few",{",".join(words[:6])}]')
        assert (await visit.socket.receive_json())[1] == "few"
        assert not estimates
        await visit.socket.send_str(f'["REQ","many",{",".join(words)}]')
        assert (await visit.socket.receive_json())[1] == "many"
    assert estimates[0] > 0.01


async def test_requests_that_wait_for_a_rest_are_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """4,000 connections with one of 524 kB each took 2.2 GB, and longer than they stayed."""
    monkeypatch.setattr(CostlyWork, "end", lambda *_: None)
    monkeypatch.setattr("relay.server.socket_input.MAX_UNFINISHED", 300_000)
    many: dict[str, object] = {"#t": [f"{number:090}" for number in range(1000)]}
    async with serving() as relay:
        first = await relay.visit()
        await first.asks(many)
        others = [await relay.visit() for _ in range(6)]
        for other in others:
            await other.says("REQ", "s", many)
        connections = relay.server.connections
        await eventually("three wait", lambda: [each.message for each in connections] == [1] * 4)
        for other in others:
            transport = other.socket._writer.transport
            if transport is not None:
                transport.abort()
        await eventually("none of them waits", lambda: len(connections) == 1)


async def test_a_relay_that_stops_waits_for_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits then is not done, and so nobody rests after it."""
    rests = list[tuple[CostlyWork, Account, float]]()
    monkeypatch.setattr(CostlyWork, "end", lambda *rest: rests.append(rest))
    async with serving() as relay:
        first, second = await relay.visit(), await relay.visit()
        many: dict[str, object] = {"#t": [f"{number}" for number in range(2000)]}
        await first.asks(many)
        await second.says("REQ", "s", many)
        await second.says("REQ", "s", many)
        (connection,) = [each for each in relay.server.connections if not each.subscriptions]
        await eventually("it has arrived", lambda: connection.message == 1)
        stopping = asyncio.create_task(connection.stop(Stop.RESTART))
        await asyncio.sleep(0)
        rests[0][0]._give()
        await second.hears_all()
        await stopping
        await eventually("it was passed over", lambda: len(rests) == 2)
        assert rests[1][2] == 0.0
        assert len(relay.fanout) == 1


# slow readers ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("outbox_bytes", [5000, 524_288, 4_194_304])
async def test_a_slow_reader_receives_a_long_answer_completely(outbox_bytes: int) -> None:
    """In pages under back-pressure; other clients are served at the same time."""
    async with serving(f"[limits]\noutbox_bytes = {outbox_bytes}\n") as relay:
        rows = [unsigned(alice, content=str(n).rjust(4000), at=n) for n in range(3000)]
        await write(relay.disk, *rows)
        slow, other = await relay.visit(), await relay.visit()
        for connection in relay.server.connections:
            transport = connection._transport
            assert transport is not None
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384
            )
        await slow.says("REQ", "s", {})
        assert await other.publishes(note("3000", at=0)) == (True, "")
        frames = [await slow.hears() for _ in range(len(rows) + 2)]
        told = [int(frame[2]["content"]) for frame in frames if frame[0] == "EVENT"]
        assert told == [*reversed(range(3000)), 3000]
        assert frames[-2] == ["EOSE", "s"]


@pytest.mark.slow
async def test_clients_that_do_not_read_hold_little_when_all_hold_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """50 of one address held 1 MB each. Whoever reads has everything, whatever others hold."""
    monkeypatch.setattr("relay.server.connection._MAX_UNSENT", 400_000)
    async with serving() as relay:
        rows = [unsigned(alice, content=str(n).rjust(8000), at=n) for n in range(1500)]
        await write(relay.disk, *rows)
        visits = [await relay.visit() for _ in range(3)]
        for visit in visits:
            await visit.says("REQ", "s", {})
        connections = tuple(relay.server.connections)
        await eventually(
            "none of them reads", lambda: not any(each.is_reading for each in connections)
        )
        assert max(each.outbox.buffered_bytes for each in connections) < 700_000, "a page"
        frames = [await visits[0].hears() for _ in range(len(rows) + 1)]
        assert [int(frame[2]["content"]) for frame in frames[:-1]] == [*reversed(range(1500))]
        assert frames[-1] == ["EOSE", "s"]
        for visit in visits[1:]:
            await visit.socket.close()
        await eventually("what they held is free", lambda: not relay.server._unread.unsent.used)


MANY_VALUES: Any = [{"#t": [f"value {number}" for number in range(1000)]}]
MANY_FILTERS: Any = [{"kinds": [1], "#t": ["tea"], "since": 1 << 40}] * 40
MANY_WIDE: Any = [{"kinds": [1], "since": 1 << 40}] * 30


@pytest.mark.parametrize("large", [MANY_VALUES, MANY_FILTERS, MANY_WIDE])
async def test_the_filters_of_all_connections_are_bounded(
    monkeypatch: pytest.MonkeyPatch, large: Any
) -> None:
    """240 connections with 7,680,000 values took a gigabyte; 1,000 with 252 filters of one kind
    took 35 ms for each event."""
    monkeypatch.setattr("relay.server.connection._MAX_OPEN", 2_000_000)
    monkeypatch.setattr("relay.server.connection._ORDINARY_OPEN", 0)
    async with serving() as relay:
        many, own = await relay.visit(), await relay.visit()
        open_: list[str] = []
        while (await many.asks(*large, sub=f"{len(open_)}"))[-1][0] == "EOSE":
            open_.append(f"{len(open_)}")
        assert 1 <= len(open_) < 8  # a quarter for the unknown keys of one address
        refused = "rate-limited: too many filters are open on this relay, try again later"
        assert await own.asks(*large) == [["CLOSED", "s", refused]]
        assert (await own.asks({"#t": ["value"]}))[-1][0] == "EOSE"
        await many.says("CLOSE", open_[0])
        assert (await own.asks(*large))[-1][0] == "EOSE"
        await many.socket.close()
        await own.socket.close()
        await eventually("what they held is free", lambda: not relay.server._open_filters.used)


async def test_one_key_at_several_addresses_leaves_room_for_ordinary_filters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At four addresses it held all, and those of members and owners were refused."""
    monkeypatch.setattr("relay.server.connection._MAX_OPEN", 4_000_000)
    weight_of_one = 300_000
    async with serving(PROXIED) as relay, ClientSession() as http:
        relay.state.adopt(relay.state.groups.with_group(DEN))

        async def answer(socket: ClientWebSocketResponse, sub: str) -> str:
            await socket.send_json(["REQ", sub, *MANY_VALUES])
            return str((await socket.receive_json())[0])

        many = [
            await connected_from(f"203.0.{number // 5}.1", relay, http, alice)
            for number in range(20)
        ]
        for socket in many:
            for sub in "ab":
                await answer(socket, sub)
        assert relay.server._open_filters.used > 4_000_000 - weight_of_one
        for who in (None, admin, owner):
            socket = await connected_from("203.0.113.1", relay, http, who)
            assert await answer(socket, "a") == "EOSE"
            await socket.close()


@pytest.mark.slow
async def test_live_rows_that_clients_do_not_read_are_bounded_for_all_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten large notes took 800 MB: each of 320 clients left 4 MiB unread. Whoever reads stays."""
    for module in ("eviction", "connection"):
        monkeypatch.setattr(f"relay.server.{module}.MAX_UNREAD", 40_000_000)
    async with serving() as relay:
        rows = [unsigned(alice, content=str(n).rjust(100_000), at=n) for n in range(30)]
        await write(relay.disk, *rows)
        deaf, reader = [await relay.visit() for _ in range(24)], await relay.visit()
        for visit in (*deaf, reader):
            await visit.asks({"kinds": [7]})
        number, most = len(rows), 0
        while len(relay.fanout) > 10:  # the reader has two
            number += 1
            event = unsigned(alice, 7, content=str(number).rjust(200_000))
            deque(relay.fanout.deliver([Stored(number, event)]))
            assert int((await reader.hears())[2]["content"]) == number
            most = max(most, sum(each.outbox.buffered_bytes for each in relay.server.connections))
            assert len(await reader.asks({"kinds": [1]}, sub="large")) == len(rows) + 1
        assert 8_000_000 < most < 80_000_000  # each alone may have 4 MiB
        for visit in deaf:
            visit.socket._response.close()
        async with until("what they held is free") as tries:
            async for _ in tries:
                for each in relay.server.connections:
                    each.check()
                if len(relay.server._connections) == 1 and not relay.server._unread.unsent.used:
                    break


async def test_live_rows_behind_stored_ones_that_nobody_reads_count_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ephemeral events wait whole: 250 clients held 1.3 GB of them."""
    for module in ("eviction", "connection"):
        monkeypatch.setattr(f"relay.server.{module}.MAX_UNREAD", 1_000_000)
    async with serving() as relay:
        visit, other = await relay.visit(), await relay.visit()
        held, _ = relay.server.connections
        held.outbox.hold(200_000)
        assert await visit.publishes(note("not closed yet")) == (True, "")
        held.outbox.hold(400_000)
        assert (await visit.hears_all())[-1][0] == "closed"
        assert await other.publishes(note("nobody else is")) == (True, "")


async def test_who_reads_slowly_is_not_closed_for_what_others_have_just_got(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With fresh connections again and again, nobody could read an answer for longer than 2 s."""
    for module in ("eviction", "connection"):
        monkeypatch.setattr(f"relay.server.{module}.MAX_UNREAD", 1_000_000)
    async with serving() as relay:
        slow, fresh = await relay.visit(), await relay.visit()
        reads_slowly, reads_nothing = relay.server.connections
        reads_slowly.outbox.hold(200_000)
        reads_slowly.unsent_since -= 3600.0
        reads_nothing.outbox.hold(1_000_000)
        relay.server._unread._make_room({})
        assert await slow.publishes(note("not closed")) == (True, "")
        assert await fresh.publishes(note("nor is this one yet")) == (True, "")
        reads_nothing.unsent_since -= 3.0
        relay.server._unread._make_room({})
        assert (await fresh.hears_all())[-1][0] == "closed"
        assert await slow.publishes(note("still open")) == (True, "")


async def test_who_reads_slowly_is_not_closed_for_what_known_keys_leave_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One known key on a hundred connections, which left 100 MiB unread, had all others closed."""
    for module in ("eviction", "connection"):
        monkeypatch.setattr(f"relay.server.{module}.MAX_UNREAD", 1_000_000)
    monkeypatch.setattr(Connection, "is_known", property(lambda each: each is reads_nothing))
    async with serving() as relay:
        slow, deaf = await relay.visit(), await relay.visit()
        reads_slowly, reads_nothing = relay.server.connections
        reads_slowly.outbox.hold(200_000)
        reads_nothing.outbox.hold(790_000)
        for each in relay.server.connections:
            each.count_unsent(few=0)
            each.unsent_since -= 3.0
        relay.server._unread._make_room({})
        assert await slow.publishes(note("not closed")) == (True, "")
        assert await deaf.publishes(note("nor is this one, within the bounds")) == (True, "")
        reads_nothing.outbox.hold(50_000)
        relay.server._unread._make_room({})
        assert (await deaf.hears_all())[-1][0] == "closed"
        assert await slow.publishes(note("still open")) == (True, "")


async def test_who_has_read_everything_again_and_again_has_left_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader of a busy stream was closed for what deaf ones of its address had: it was counted
    just after writes only."""
    for module in ("eviction", "connection"):
        monkeypatch.setattr(f"relay.server.{module}.MAX_UNREAD", 1_000_000)
    async with serving() as relay:
        reader, deaf = await relay.visit(), await relay.visit()
        reads_all, reads_nothing = relay.server.connections
        reads_nothing.outbox.hold(200_000)
        reads_nothing.unsent_since -= 3.0
        for _ in range(2):
            reads_all.outbox.held_bytes = 0
            reads_all.outbox.hold(250_000)
            reads_all.unsent_since -= 1.5
        relay.server._unread._make_room({})
        assert await reader.publishes(note("not closed")) == (True, "")
        assert await deaf.publishes(note("nor is this one, within the bounds")) == (True, "")


@dataclass(eq=False)
class Client:
    """A connection, as far as it matters to which are closed."""

    counted_as: str
    held_bytes: int = 0
    unsent: int = 0
    is_known: bool = True
    is_owner: bool = False
    all: UnreadRows | None = None
    is_closed: bool = False
    is_closing = is_over = False
    taken_bytes = 0

    def __post_init__(self) -> None:
        self.opened_at = self.unsent_since = perf_counter() - 600.0
        if self.all is not None:
            self.all.unsent.add(self.counted_as, self.unsent)

    def count_unsent(self, few: int) -> None: ...

    def close_unread(self) -> None:
        self.is_closed = True
        assert self.all is not None
        self.all.unsent.add(self.counted_as, -self.unsent)
        self.unsent = 0

    def close_displaced(self, _: str) -> None:
        self.is_closed = True


class Clients:
    """Such that leave bytes unread, with a bound of 1 MB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(eviction, "MAX_UNREAD", 1_000_000)
        self._every: list[Any] = []
        self.all = UnreadRows(self._every)

    def add(
        self, address: str, unsent: int, *, is_known: bool = True, is_owner: bool = False
    ) -> Client:
        made = Client(address, 0, unsent, is_known, is_owner, self.all)
        self._every.append(made)
        return made

    def closed(self) -> list[Client]:
        """Which are, once there is room."""
        self.all._make_room({})
        return [each for each in self._every if each.is_closed]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("network", ["2001:db8:0:{:x}::/64", "203.0.113.{}"])
async def test_who_reads_slowly_is_not_closed_for_what_many_of_another_network_leave_unread(
    monkeypatch: pytest.MonkeyPatch, network: str, *, is_known: bool
) -> None:
    """Each of 3,900 addresses left less than a slow member, who was closed first; an owner too."""
    clients = Clients(monkeypatch)
    slow = [clients.add(f"198.51.{number}.1", 50_000, is_known=is_known) for number in range(3)]
    slow.append(clients.add("192.0.2.1", 200_000, is_owner=True))
    many = [clients.add(network.format(number), 20_000, is_known=is_known) for number in range(60)]
    closed = clients.closed()
    assert {*closed} < {*many}
    most = 1_000_000 if is_known else 750_000
    assert most - 20_000 <= clients.all.unsent.used <= most


@pytest.mark.parametrize("late", [0, 12])
async def test_who_has_just_got_something_is_not_closed_for_what_known_keys_leave_unread(
    monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    """Those without a known key were closed at once, while known ones had left 192 MiB. `late`:
    others without one that leave 32 MiB unread for good."""
    clients = Clients(monkeypatch)
    for number in range(late):
        clients.add(f"100.64.{number}.1", 20_000, is_known=False)

    def fresh(address: str, unsent: int, *, is_known: bool = False) -> Client:
        made = clients.add(address, unsent, is_known=is_known)
        made.unsent_since = perf_counter()
        return made

    for number in range(16):
        clients.add(f"203.{number}.0.1", 60_000)
        fresh(f"203.{number}.0.2", 50_000, is_known=True)
    few = [fresh(f"198.51.{number}.1", 10_000) for number in range(20)]
    many = [fresh(f"192.0.2.{number}", 10_000) for number in range(10)]
    closed = clients.closed()
    assert not {*few} & {*closed}
    assert len({*many} & {*closed}) == 5, "a quarter is for who has no known key"


async def test_owners_are_closed_last_for_what_all_leave_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients = Clients(monkeypatch)
    owners = [clients.add(f"198.51.{number}.1", 240_000, is_owner=True) for number in range(4)]
    others = [clients.add(f"203.0.{number}.1", 100_000) for number in range(2)]
    assert clients.closed() == others
    clients.add("198.51.4.1", 240_000, is_owner=True)  # nobody else has anything
    assert clients.closed() == [owners[0], *others]


@pytest.mark.parametrize("network", ["127.0.0", "192.168.1"])
async def test_unread_bytes_of_one_network_are_compared_by_address(
    monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    """In an office, or on one machine, it is as if there were no networks."""
    clients = Clients(monkeypatch)
    clients.add(f"{network}.1", 300_000)
    most = [clients.add(f"{network}.2", unsent) for unsent in (50_000, 150_000, 200_000)]
    for number in range(3, 9):
        clients.add(f"{network}.{number}", 90_000)
    assert clients.closed() == most[1:]


async def test_one_address_keeps_to_its_share_though_a_network_leaves_more_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients = Clients(monkeypatch)
    one = [clients.add("198.51.100.1", 100_000) for _ in range(7)]
    many = [clients.add(f"203.0.113.{number}", 20_000) for number in range(40)]
    closed = clients.closed()
    assert [sum(each in closed for each in group) for group in (one, many)] == [3, 26]


class Busy:
    """A transport in which there is always something that was just written."""

    def write(self, _: bytes) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 300_000

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("reads", [True, False])
async def test_who_reads_all_within_a_while_has_left_nothing_for_long_though_more_comes(
    monkeypatch: pytest.MonkeyPatch, *, reads: bool
) -> None:
    """Large notes that came for some seconds had those closed who read each of them at once."""
    for module in ("eviction", "connection"):
        monkeypatch.setattr(f"relay.server.{module}.MAX_UNREAD", 1_000_000)
    async with serving() as relay:
        await relay.visit()
        (reader,) = relay.server.connections
        reader.outbox._sink = Busy()
        reader.outbox.written_bytes = 300_000
        for _ in range(2):
            reader.count_unsent()
            reader.unsent_since -= 1.5
            reader.outbox.written_bytes += 300_000 if reads else 0
        reader.count_unsent()
        is_late = perf_counter() - reader.unsent_since > 2.0
        assert is_late is not reads


async def test_little_that_each_of_many_leaves_unread_counts_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 KiB of each of 5,000 connections were in no sum."""
    for module in ("eviction", "connection"):
        monkeypatch.setattr(f"relay.server.{module}.MAX_UNREAD", 1_000_000)
    async with serving() as relay:
        visits = [await relay.visit() for _ in range(30)]
        for each in relay.server.connections:
            each.outbox.hold(60_000)
        assert relay.server._unread.unsent.used == 0
        for each in relay.server.connections:
            each.check()
            each.unsent_since -= 3.0
        relay.server._unread._make_room({})
        assert 0 < relay.server._unread.unsent.used <= 1_000_000
        assert await visits[-1].publishes(note("not closed")) == (True, "")


async def test_what_belongs_to_its_socket_does_not_wait_with_the_last_event_of_a_client(
    relay: Relay,
) -> None:
    """Its connection waits with it in the lane, for minutes: 25 kB each, and the lane counted 4."""
    visit = await relay.visit()
    (connection,) = relay.server.connections
    held = [ref(each) for each in (connection._socket, connection._request)]
    visit.socket._response.close()
    await relay.is_left()
    async with until("its socket is freed") as tries:
        async for _ in tries:
            gc.collect()
            if not any(each() for each in held):
                break
    assert connection.is_over
    connection.cut_off()
    connection.close_displaced()
    assert not connection.is_closing


@pytest.mark.slow
async def test_nothing_of_a_connection_that_has_ended_counts() -> None:
    """What its queries end afterwards, and a check while it may still read, counted for ever."""
    async with serving() as relay:
        slow, visit = await overwhelmed(relay), await relay.visit()
        await visit.asks(*MANY_VALUES, sub="large")
        connections = tuple(relay.server.connections)
        assert relay.server._open_filters.used > 0
        async with until("it is closed, and may still read") as tries:
            async for _ in tries:
                for each in connections:
                    each.check()
                if any(each.outbox.buffered_bytes for each in connections if each.outbox.closed):
                    break
        visit.socket._response.close()
        slow.socket._response.close()
        await relay.is_left()
        for each in connections:
            each.check()
            each.closed_by_relay("another")
        assert relay.server._open_filters.used == 0
        assert relay.server._unread.unsent.used == 0


async def overwhelmed(relay: Relay) -> Visit:
    """A client that did not read its answers, until the relay had enough of it."""
    slow = await relay.visit()
    (held,) = relay.server.connections
    number = 0
    while not held.outbox.closed:
        number += 1
        held.outbox.put(orjson.dumps(["NOTICE", str(number).rjust(200_000)]))
        await asyncio.sleep(0)
    return slow


async def test_a_client_that_does_not_read_its_answers_is_closed() -> None:
    """None is missing before the close."""
    async with serving() as relay:
        slow = await overwhelmed(relay)
        *frames, end = await slow.hears_all()
        told = [int(frame[1]) for frame in frames]
        assert told == list(range(1, len(told) + 1))
        assert end[0] == "closed"
        assert await relay.counts("rookery_outbox_closes_total") == 1
        await relay.is_left()


async def live(relay: Relay, *asked: dict[str, Any]) -> tuple[Visit, Connection]:
    """A client that follows what comes, and its connection."""
    before = set(relay.server.connections)
    visit = await relay.visit()
    (connection,) = set(relay.server.connections) - before
    for number, each in enumerate(asked):
        assert await visit.asks({**each, "limit": 0}, sub=f"{number}") == [["EOSE", f"{number}"]]
    return visit, connection


async def published(relay: Relay, number: int, size: int) -> Visit:
    """Notes, numbered from 0."""
    visit = await relay.visit()
    for n in range(number):
        assert await visit.publishes(note(str(n).rjust(size))) == (True, "")
    return visit


@pytest.mark.proves("N01-99")
async def test_a_client_that_reads_slowly_gets_all_live_events_in_order() -> None:
    """16 MB at once closed everybody with 20 Mbit/s. Others, and its own queries, go on."""
    async with serving("[limits]\noutbox_bytes = 400000\n") as relay:
        slow, connection = await live(relay, {"kinds": [1]}, {"authors": [alice.pubkey]})
        other, _ = await live(relay, {"kinds": [1]})
        number = 200
        writer = await published(relay, number, 50_000)
        assert connection.outbox.held_bytes > 0
        assert connection.outbox.buffered_bytes < 1_000_000
        assert [int((await other.hears())[2]["content"]) for _ in range(number)] == [*range(number)]
        await slow.says("REQ", "more", {"kinds": [7]})
        heard: dict[str, list[int]] = {"0": [], "1": []}
        while min(map(len, heard.values())) < number:
            kind, sub, *more = await slow.hears()
            if kind == "EVENT":
                heard[sub].append(int(more[0]["content"]))
            else:
                assert (kind, sub) == ("EOSE", "more")
        assert heard == {"0": [*range(number)], "1": [*range(number)]}
        assert connection.outbox.held_bytes == 0
        assert await relay.counts("rookery_outbox_closes_total") == 0
        await writer.publishes(note("live again"))
        assert sorted([(await slow.hears())[1] for _ in "01"]) == ["0", "1"]


async def test_a_client_that_reads_too_slowly_for_a_subscription_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """N01-99: no event is missing before the CLOSED. What others of its subscriptions asked for
    comes."""
    monkeypatch.setattr("relay.read.query_queue._MOST_BEHIND", 20)
    async with serving("[limits]\noutbox_bytes = 400000\n") as relay:
        slow, connection = await live(relay, {"kinds": [1]}, {"kinds": [7]})
        writer = await published(relay, 200, 50_000)
        reaction = alice.sign(7, [], "+", NOW)
        await writer.publishes(reaction)
        numbers = list[int]()
        while (frame := await slow.hears())[0] == "EVENT" and frame[1] == "0":
            numbers.append(int(frame[2]["content"]))
        assert numbers == [*range(len(numbers))]
        both = [frame, await slow.hears()]
        assert ["CLOSED", "0", "error: backlog overflow, subscribe again"] in both
        assert shown(reaction, "1") in both
        assert connection.outbox.held_bytes == 0


@pytest.mark.parametrize("ends", ["CLOSE", "REQ", "goes"])
async def test_what_waits_for_a_slow_client_is_dropped_when_it_is_not_wanted_any_more(
    ends: str,
) -> None:
    async with serving("[limits]\noutbox_bytes = 400000\n") as relay:
        slow, connection = await live(relay, {"kinds": [1]})
        await published(relay, 200, 50_000)
        assert connection.outbox.held_bytes > 0
        match ends:
            case "CLOSE":
                await slow.says("CLOSE", "0")
            case "REQ":
                await slow.says("REQ", "0", {"kinds": [7]})
            case _:
                slow.socket._response.close()
        await eventually("it is dropped", lambda: connection.outbox.held_bytes == 0)
        if ends == "goes":
            await eventually("it is gone", lambda: connection not in relay.server.connections)
        assert not connection._queries._behind


async def test_a_client_that_was_closed_keeps_its_place_while_it_has_unread_bytes() -> None:
    """With a new place at once, one address held 4 MB for each of a hundred closed connections."""
    async with serving() as relay:
        slow = await overwhelmed(relay)
        (held,) = [each for each in relay.server.connections if each.outbox.closed]
        transport = held._transport
        assert transport is not None
        await eventually(
            "the relay waits for its close frame no longer", lambda: transport.is_closing()
        )
        assert held in relay.server.connections
        assert transport.get_write_buffer_size() > 1_000_000
        await slow.hears_all()
        await relay.is_left()


async def test_what_a_closed_client_does_not_read_is_dropped_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection has ended then, and nothing would count these bytes."""
    monkeypatch.setattr("relay.server.connection._LINGER_S", 0.1)
    async with serving() as relay:
        slow = await overwhelmed(relay)
        (held,) = [each for each in relay.server.connections if each.outbox.closed]
        transport = held._transport
        assert transport is not None
        assert transport.get_write_buffer_size() > 1_000_000
        await eventually("the connection is over", lambda: held not in relay.server.connections)
        await eventually(
            "what it left unread is dropped", lambda: transport.get_write_buffer_size() == 0
        )
        await slow.hears_all()


async def test_a_displaced_client_with_many_unread_bytes_is_cut_off() -> None:
    """It has no place any more to keep until it reads the reason."""
    async with serving() as relay:
        await overwhelmed(relay)
        (held,) = [each for each in relay.server.connections if each.outbox.closed]
        assert held.outbox.buffered_bytes > 1_000_000
        held.close_displaced()
        assert held.outbox.buffered_bytes == 0
        await relay.is_left()


async def test_what_a_connection_has_sent_is_counted_when_it_is_taken(relay: Relay) -> None:
    """Also of messages that are no text and get nothing but a NOTICE."""
    visit = await relay.visit()
    (connection,) = relay.server.connections
    assert connection.taken_bytes == 0
    await visit.socket.send_bytes(b"x" * 1000)
    assert (await visit.hears())[0] == "NOTICE"
    await visit.asks({"authors": [f"{number:064x}" for number in range(300)]})
    assert 21_000 < connection.taken_bytes < 23_000
    assert connection.arrived() == (2, connection.taken_bytes)


async def test_who_holds_or_has_sent_most_is_closed_when_the_process_needs_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All connections of an address together, what they sent for each minute; owners' never."""
    async with serving() as relay:
        visits = [await relay.visit() for _ in range(8)]
        few, one, two, known, owners, silent, old, local = relay.server.connections
        addresses = {few: "a", one: "b", two: "b", known: "c", owners: "d", silent: "e", old: "f"}
        sent = {few: 300_000, one: 200_000, two: 200_000, known: 900_000, owners: 999_000}
        sent |= {old: 99_000_000, local: 70_000}
        known_keys = {known, owners, old}
        old.opened_at -= 30 * 86_400
        few.outbox.hold(200_000)
        assert few.held_bytes == 200_000
        monkeypatch.setattr(Connection, "taken_bytes", property(lambda each: sent.get(each, 0)))
        few.outbox.held_bytes = 0
        held = {silent: 5_000_000}
        monkeypatch.setattr(Connection, "held_bytes", property(lambda each: held.get(each, 0)))
        monkeypatch.setattr(Connection, "is_known", property(lambda each: each in known_keys))
        monkeypatch.setattr(Connection, "is_owner", property(lambda each: each is owners))
        assert len(visits) == len(relay.server.connections)
        for each in relay.server.connections:
            each.counted_as = addresses.get(each)
        closed: list[Connection] = []
        monkeypatch.setattr(Connection, "close_displaced", lambda each, _: closed.append(each))
        left = list(relay.server.connections)
        for expected in ([silent], [one, two], [few], [known], [local], []):
            closed.clear()
            said = await close_heaviest(left, 1)
            assert closed == expected
            assert said.startswith(f"{len(expected)} connections") or not expected
            left = [each for each in left if each not in closed]
        closed.clear()
        said = await close_heaviest(relay.server.connections, 5_100_000)
        assert closed == [silent, one, two]
        assert said == "3 connections of e, b, which held or sent most"
        monkeypatch.setattr(Connection, "is_closing", property(lambda each: each in closed))
        said = await close_heaviest(relay.server.connections, 1)
        assert said.startswith("1 connections of a,")


def _each(
    network: str, number: int, held: int, *, is_known: bool = True, is_owner: bool = False
) -> list[Any]:
    addresses = [network.format(each) for each in range(number)]
    return [Client(each, held, is_known=is_known, is_owner=is_owner) for each in addresses]


@pytest.mark.parametrize("is_known", [True, False])
async def test_the_network_that_holds_most_is_closed_before_an_address_of_another(
    *, is_known: bool
) -> None:
    """Beside thousands of addresses of an IPv6 /48 that each held little, an office was closed,
    and an agent with many filters, again and again; of those none."""
    many = _each("2001:db8:0:{:x}::/64", 1000, 30_000, is_known=is_known)
    many[7].held_bytes += 10_000
    owners = _each("2001:db8:0:ff{}::/64", 2, 9_000_000, is_owner=True)
    office = _each("203.0.113.5", 12, 25_000)
    agent = _each("198.51.100.9", 1, 300_000)
    every = [*office, *agent, *owners, *many]
    await close_heaviest(every, 1)
    assert [each for each in every if each.is_closed] == [many[7]]
    await close_heaviest(every, 2_000_000)
    assert 40 < sum(each.is_closed for each in many) < 50
    assert not any(each.is_closed for each in (*office, *agent, *owners))
    await close_heaviest(every, 100_000_000)
    left = sum(30_000 + (15 << 10) for each in many if not each.is_closed)
    assert (16 << 20) - 50_000 < left < 16 << 20
    assert all(each.is_closed for each in (*office, *agent))
    assert not any(each.is_closed for each in owners)


@pytest.mark.parametrize("network", ["127.0.0.{}", "192.168.1.{}"])
async def test_memory_of_one_network_is_compared_by_address(network: str) -> None:
    """In an office, or on one machine, it is as if there were no networks: who holds little is not
    closed, however many they are."""
    every = _each(network, 256, 45_000)
    every[3].held_bytes = every[4].held_bytes = 100_000
    every[5].held_bytes = 200_000
    await close_heaviest(every, 1)
    assert [each for each in every if each.is_closed] == [every[5]]
    await close_heaviest(every, 100_000_000)
    assert [each for each in every if each.is_closed] == every[3:6]


async def test_others_run_while_the_rights_of_all_connections_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After each change of a group 2,000 held the loop for 0.14 s."""
    monkeypatch.setattr(eviction, "_RIGHTS_S", 0.0)
    monkeypatch.setattr(eviction, "_RIGHTS_AT_ONCE", 2)
    monkeypatch.setattr(eviction, "MAX_UNREAD", 1_000_000)
    looked, closed = list[Connection | None](), list[Connection]()
    monkeypatch.setattr(Connection, "is_known", property(lambda each: looked.append(each)))
    for close in ("close_displaced", "close_unread"):
        monkeypatch.setattr(Connection, close, lambda each, *_: closed.append(each))

    def run_others() -> None:
        looked.append(None)
        if not closed:
            asyncio.get_running_loop().call_soon(run_others)

    async with serving() as relay:
        visits = [await relay.visit() for _ in range(9)]
        for each in relay.server.connections:
            each.outbox.hold(200_000)
            each.unsent_since -= 3.0
        for job in ("memory", "unread rows"):
            looked.clear()
            closed.clear()
            run_others()
            if job == "memory":
                await close_heaviest(relay.server.connections, 1)
            else:
                relay.server._unread.make_room_soon(0.0)
                await eventually("they are closed", lambda: closed)
            runs = [[*run] for _, run in groupby(looked, lambda each: each is None)]
            at_once = [len(run) for run in runs if run[0] is not None]
            assert sum(at_once) == len(visits) == 9
            assert max(at_once) <= 2


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, _new_loop])
def test_room_can_be_asked_for_again_while_connections_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """On the relay's event loop that failed, and closed each client that was written to then."""
    monkeypatch.setattr(eviction, "_RIGHTS_S", 0.0)
    monkeypatch.setattr(eviction, "_RIGHTS_AT_ONCE", 2)
    looked = list[int]()

    def client(number: int) -> Any:
        def count_unsent(few: int) -> None:
            assert few == 0
            looked.append(number)
            room.make_room_soon()

        outbox = SimpleNamespace(waiting_bytes=0)
        return SimpleNamespace(outbox=outbox, unsent=0, count_unsent=count_unsent)

    room = UnreadRows([client(number) for number in range(5)])

    async def ask_again_and_again() -> None:
        room.make_room_soon(0.0)
        while not looked:
            room.make_room_soon(0.0)
            await asyncio.sleep(0)
        looked.clear()
        await eventually("it is done again", lambda: looked)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(ask_again_and_again())
    assert looked[:5] == [0, 1, 2, 3, 4]


async def test_a_commit_too_large_for_one_outbox_closes_nobody() -> None:
    async with serving("[limits]\noutbox_bytes = 5000\n") as relay:
        greedy, modest = await relay.visit(), await relay.visit()
        await greedy.asks({"kinds": [7]})
        await modest.asks({"kinds": [7], "authors": [bob.pubkey]})
        large = [alice.sign(7, [], str(n).rjust(3000), NOW) for n in range(3)]
        small = [bob.sign(7, [], f"for all {n}", NOW) for n in range(3)]
        sent = [event for pair in zip(large, small, strict=True) for event in pair]
        writer = await relay.visit()
        await asyncio.gather(*[writer.says("EVENT", fields(event)) for event in sent])
        assert [await modest.hears() for _ in small] == [shown(event) for event in small]
        assert [await greedy.hears() for _ in sent] == [shown(event) for event in sent]
        assert len(relay.fanout) == 2


@pytest.mark.proves("N01-99")
async def test_a_closed_client_can_read_the_reason() -> None:
    """Closed with a reason, for a client that reads on in time."""
    async with serving() as relay:
        slow = await overwhelmed(relay)
        assert (await slow.hears_all())[-1] == ["closed", 1013]


# the end -----------------------------------------------------------------------------------------


async def _stop(connection: Connection) -> None:
    asyncio.get_running_loop().create_task(connection.stop(Stop.FOR_GOOD))
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (Connection.close_displaced, 1013),
        (Connection.close_blocked, 1008),
        (Connection.close_unread, 1006),
        (Connection._too_slow, 1013),
        (Connection.close_subscriptions, None),
        (_stop, 1001),
    ],
)
async def test_nothing_more_is_sent_to_subscriptions_that_leave_the_index_in_turns(
    relay: Relay, ends: Callable[[Connection], Awaitable[None] | None], code: int | None
) -> None:
    """200 connections of thousands of filter values took a second of the loop when the relay
    stopped."""
    visit = await relay.visit()
    for sub in ("a", "b"):
        await visit.asks({"kinds": [7]}, sub=sub)
    (connection,) = relay.server.connections
    if (ending := ends(connection)) is not None:
        await ending
    assert len(relay.fanout) == 2
    deque(relay.fanout.deliver([Stored(1, unsigned(alice, 7))]))
    if code is None:
        heard = [await visit.hears(), await visit.hears()]
        assert await visit.asks({"kinds": [1]}) == [["EOSE", "s"]]
        await visit.says("CLOSE", "s")
    else:
        *heard, end = await visit.hears_all()
        assert end == ["closed", code]
    assert [frame[0] for frame in heard] == ["CLOSED"] * len(heard)
    await eventually("they have left", lambda: len(relay.fanout) == 0)


async def test_a_lost_connection_leaves_nothing_but_its_event(relay: Relay) -> None:
    said = note("good-bye")
    relay.disk.may_commit.clear()
    async with ClientSession() as cable:
        visit = Visit(await cable.ws_connect(f"ws://{relay.at}/"))
        await visit.hears()
        await visit.asks({})
        await visit.says("EVENT", fields(said))
        await relay.disk.append_called.wait()
    await relay.is_left()
    assert len(relay.fanout) == 0
    relay.disk.may_commit.set()
    other = await relay.visit()
    assert await other.publishes(note("hello", bob)) == (True, "")
    assert shown(said) in await other.asks({})


async def test_a_lost_connection_does_not_wait_for_answers(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 512 events or more that waited it kept its place and its subscriptions until then."""
    monkeypatch.setattr("relay.server.connection._MAX_UNANSWERED", 1)
    relay.disk.may_commit.clear()
    async with ClientSession() as cable:
        visit = Visit(await cable.ws_connect(f"ws://{relay.at}/"))
        await visit.asks({})
        await visit.says("EVENT", fields(note("good-bye")))
        await relay.disk.append_called.wait()
    await eventually("the connection has ended", lambda: not relay.server.connections)
    assert len(relay.fanout) == 0


@pytest.mark.parametrize("where", ["before a message", "after it", "after a ping", "when costly"])
async def test_a_lost_connection_ends_though_it_waits_for_its_turn(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Or those of who comes and goes wait in front of others, and for themselves."""
    waits = asyncio.Event()

    async def wait(_turns: Turns, _account: Account) -> None:
        waits.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(SocketInput, "_go_on", SocketInput._take)  # parsed at once
    monkeypatch.setattr("relay.server.socket_input.thread_time", lambda: 0)
    visit = await relay.visit()
    (connection,) = relay.server.connections
    monkeypatch.setattr(Turns, "wait", wait)

    async def begin(_costly: CostlyWork, _account: Account, _seconds: float) -> None:
        monkeypatch.setattr(Slice, "has_time", property(lambda _: False))

    monkeypatch.setattr(CostlyWork, "begin", begin)
    if where.startswith("after"):
        monkeypatch.setattr("relay.server.connection._FRAME_S", 1.0)
    elif where == "before a message":
        monkeypatch.setattr(Slice, "has_time", property(lambda _: False))
    if where == "after a ping":
        await visit.socket.ping()
    elif where == "when costly":
        await visit.says("REQ", "x", {"#t": [f"{number}" for number in range(1000)]})
    else:
        await visit.says("CLOSE", "x")
    await waits.wait()
    assert not connection.is_over
    visit.socket._writer.transport.abort()
    await eventually("it has ended", lambda: not relay.server.connections)


async def test_first_messages_from_a_network_of_members_wait_as_what_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A login waits only until it is read. Behind all accounts without a known key those of an
    office waited for seconds: it is one network of many."""
    waits = list[str]()
    wait, wait_for_input = Turns.wait, Turns.wait_for_input

    async def of_account(self: Turns, account: Account) -> None:
        waits.append(account.standing.name)
        await wait(self, account)

    async def of_arrival(self: Turns, address: str) -> None:
        waits.append(address)
        await wait_for_input(self, address)

    monkeypatch.setattr(Turns, "wait", of_account)
    monkeypatch.setattr(Turns, "wait_for_input", of_arrival)
    monkeypatch.setattr(Slice, "has_time", property(lambda _: False))
    address = "203.0.113.1"
    async with serving(PROXIED) as relay, ClientSession() as http:

        async def waits_of(who: SecretKey | None, *frames: list[Any]) -> list[str]:
            """Behind those of the request."""
            waits.clear()
            socket = await connected_from(address, relay, http, who)
            for frame in frames:
                await socket.send_json(frame)
                assert (await socket.receive_json())[0] == "NOTICE"
            first, *others = waits
            assert first == address
            await socket.close()
            return others

        small, large = ["CLOSE"], ["CLOSE", ["x" * 5000]]
        assert await waits_of(None, small) == ["UNKNOWN", "UNKNOWN"]  # to be read, and taken
        assert await waits_of(owner, small) == 2 * ["UNKNOWN"] + 2 * ["ADMITTED"]
        assert await waits_of(owner, small) == [address] + 2 * ["ADMITTED"]
        assert await waits_of(None, large) == ["UNKNOWN", "UNKNOWN"]
        assert await waits_of(None, *5 * [small]) == 9 * [address] + ["UNKNOWN"]


async def test_only_a_short_login_is_handled_without_a_further_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To parse a long one takes longer, and four of each websocket would be in nobody's turns."""
    waits = list[str]()
    wait_for_input = Turns.wait_for_input

    async def of_arrival(self: Turns, address: str) -> None:
        waits.append(address)
        await wait_for_input(self, address)

    monkeypatch.setattr(Turns, "wait_for_input", of_arrival)
    monkeypatch.setattr(Slice, "has_time", property(lambda _: False))
    address = "203.0.113.1"
    async with serving(PROXIED) as relay, ClientSession() as http:
        relay.server._turns.note_admitted(address)
        for size, turns in ((1024, 1), (1025, 2)):
            socket = await connected_from(address, relay, http, None)
            waits.clear()
            login = '["AUTH",""]'
            await socket.send_str(login + " " * (size - len(login)))
            await socket.receive_json()
            assert waits == turns * [address]
            await socket.close()


async def test_a_long_message_from_a_network_of_members_does_not_wait_as_what_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it when it comes in small pieces."""
    waits, address = list[str](), "203.0.113.1"
    wait, wait_for_input = Turns.wait, Turns.wait_for_input

    async def of_account(self: Turns, account: Account) -> None:
        waits.append("account")
        await wait(self, account)

    async def of_arrival(self: Turns, address: str) -> None:
        waits.append("arrival")
        await wait_for_input(self, address)

    async with serving(PROXIED) as relay, ClientSession() as http:
        relay.server._turns.note_admitted(address)
        socket = await connected_from(address, relay, http, None)
        assert socket._writer is not None
        monkeypatch.setattr(Turns, "wait", of_account)
        monkeypatch.setattr(Turns, "wait_for_input", of_arrival)
        monkeypatch.setattr(Slice, "has_time", property(lambda _: False))
        socket._writer.transport.write(b"\x81\xff%b\0\0\0\0" % (100_000).to_bytes(8))
        for number in range(1, 7):
            await eventually("it is read", lambda: len(waits) == number)  # noqa: B023
            socket._writer.transport.write(b"x" * 1000)
        await eventually("all is read", lambda: len(waits) == 7)
        assert waits == 5 * ["arrival"] + 2 * ["account"]
        await socket.close()


async def test_networks_are_those_of_members_once_an_admitted_key_has_logged_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = list[str]()
    monkeypatch.setattr(Turns, "note_admitted", lambda _, address: addresses.append(address))
    async with serving(PROXIED) as relay, ClientSession() as http:
        relay.state.adopt(relay.state.groups.with_group(DEN))
        sockets = [
            await connected_from(f"203.0.113.{number}", relay, http, who)
            for number, who in enumerate((None, stranger, alice, owner))
        ]
        assert addresses == ["203.0.113.3"]
        for connection in list(relay.server.connections):
            connection.check()  # it is still there
        assert addresses == ["203.0.113.3"] * 2
        for socket in sockets:
            await socket.close()


async def test_an_event_in_flight_gets_its_ok_before_the_close(relay: Relay) -> None:
    """SIGTERM: what is in flight is committed and gets its OK."""
    visit, other, event = await relay.visit(), await relay.visit(), note("in flight")
    await visit.asks({"kinds": [7]})
    relay.disk.may_commit.clear()
    await visit.says("EVENT", fields(event))
    await relay.disk.append_called.wait()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(relay.server.__aexit__())
        assert await other.hears_all() == [["closed", 1001]]  # so the goodbyes have begun
        relay.disk.may_commit.set()
        *heard, end = await visit.hears_all()
        stopping = ["CLOSED", "s", "error: the relay is stopping"]
        assert sorted(heard) == [stopping, ["OK", event.id, True, ""]]
        assert end == ["closed", 1001]


async def test_compression_does_not_change_the_messages() -> None:
    """Compressed frames of a client are read; sent frames are not compressed."""
    async with serving("[server]\ncompression = true\n") as relay:
        url = f"ws://{relay.at}/"
        visit = Visit(await relay.browser.ws_connect(url, compress=15))
        assert visit.socket.compress
        await visit.hears()
        long = note("tea " * 500)
        assert await visit.publishes(long) == (True, "")
        assert await visit.asks({}) == [shown(long), ["EOSE", "s"]]

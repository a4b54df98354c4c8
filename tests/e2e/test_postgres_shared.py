"""Two relays on one PostgreSQL database (`[storage] shared`)."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import aiohttp
import pytest
import websockets

from relay.cli.init import new_key
from relay.config import load_config
from tests import cast
from tests.faults.chaos.checker import STALE_S
from tests.harness.postgres import postgres
from tests.harness.relay_program import (
    OwnProcess,
    Rookery,
    command,
    connected,
    level,
    two_relays,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.harness.postgres import PostgresServer
    from tests.harness.relay_program import Wire

__all__ = ["postgres"]

pytestmark = pytest.mark.slow

KILLED_AT = 60
PUBLISHED = 150


@asynccontextmanager
async def started(folder: Path, server: PostgresServer) -> AsyncIterator[tuple[Rookery, Rookery]]:
    async with two_relays(folder, await server.new_schema()) as both:
        for each in both:
            await each.start()
        yield both


def made(who: SecretKey, kind: int, *tags: Sequence[str], content: str = "") -> Event:
    return who.sign(
        kind, [*map(list, tags), ["-n", str(time.monotonic_ns())]], content, int(time.time())
    )


def url_of(relay: Rookery) -> str:
    """Of its database."""
    return str(load_config(relay.folder / "rookery.toml").storage.url)


async def subscribe(wire: Wire, **filter_: object) -> None:
    await wire.send("REQ", "live", filter_)
    while (await wire.receive())[0] != "EOSE":
        pass


async def do(wire: Wire, event: Event) -> Event:
    assert await wire.publish(event) == (True, "")
    return event


async def next_event(wire: Wire) -> str:
    """Its id."""
    verb, sub, event = await wire.receive()
    assert (verb, sub) == ("EVENT", "live")
    return str(event["id"])


async def test_what_one_takes_the_other_sends_once(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with (
        started(tmp_path, postgres) as (one, other),
        connected(one.url) as writer,
        connected(other.url) as reader,
    ):
        await subscribe(reader, authors=[cast.alice.pubkey])
        sent = [
            await do(writer, made(cast.alice, kind, content="tea")) for kind in (1, 20_001, 1, 1)
        ]
        assert [await next_event(reader) for _ in sent] == [event.id for event in sent]
        found = await reader.query({"kinds": [1]})
        assert {event["id"] for event in found} == {e.id for e in sent if e.kind == 1}
        await do(writer, made(cast.alice, 5, ["e", sent[0].id], ["k", "1"]))
        await next_event(reader)  # the deletion itself
        assert await reader.query({"ids": [sent[0].id]}) == []


async def test_a_member_removed_on_one_hears_nothing_from_the_other(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with (
        started(tmp_path, postgres) as (one, other),
        connected(one.url) as admin,
        connected(other.url) as member,
    ):
        await admin.log_in(cast.admin, one.url, int(time.time()))
        await member.log_in(cast.alice, other.url, int(time.time()))
        await do(admin, made(cast.admin, 9007, ["h", "den"]))
        await do(admin, made(cast.admin, 9002, ["h", "den"], ["private"], ["name", "Den"]))
        await do(admin, made(cast.admin, 9000, ["h", "den"], ["p", cast.alice.pubkey]))
        await do(member, made(cast.alice, 9, ["h", "den"], content="I am in"))
        await subscribe(member, kinds=[1, 9], since=int(time.time()) - 1)
        post = await do(admin, made(cast.admin, 9, ["h", "den"], content="to members"))
        async with until("it is read") as tries:
            async for _ in tries:
                if await next_event(member) == post.id:
                    break
        await do(admin, made(cast.admin, 9001, ["h", "den"], ["p", cast.alice.pubkey]))
        await do(admin, made(cast.admin, 9, ["h", "den"], content="to fewer"))
        public = await do(admin, made(cast.admin, 1, content="to all"))
        assert await next_event(member) == public.id
        assert not (await member.publish(made(cast.alice, 9, ["h", "den"])))[0]


LISTS_WAIT = (
    "import sys; from relay.launcher import main; from relay.write import list_signing;"
    "list_signing._BURST = 0; list_signing._BYTES_PER_S = 1e-9; sys.argv[0] = 'rookery'; main()"
)


@pytest.mark.process
async def test_a_list_that_waits_is_compared_with_the_one_that_another_signed(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """It was compared with the one before: who was removed meanwhile stayed on it."""
    slow = OwnProcess(tmp_path / "one")
    slow.program = "-c", LISTS_WAIT
    async with two_relays(tmp_path, await postgres.new_schema()) as (_, other), slow:
        for each in (slow, other):
            await each.start()

        async def changes(
            relay: Rookery, kind: int, *people: SecretKey, group: str = "tea"
        ) -> None:
            tags = [["p", who.pubkey] for who in people]
            async with connected(relay.url) as wire:
                await do(wire, made(cast.owner, kind, ["h", group], *tags))
            await level((slow, other))

        await changes(slow, 9007, group="den")  # its lists are all that may be signed for now
        await changes(other, 9007)
        await changes(other, 9000, cast.alice, cast.bob)
        await changes(slow, 9001, cast.bob)
        await changes(other, 9000, cast.carol)
        await changes(slow, 9001, cast.carol)
        await changes(slow, 9000, cast.bob)
        await slow.stop()  # the end waits for no pause
        async with connected(other.url) as wire:
            (members,) = await wire.query({"kinds": [39002], "#d": ["tea"]})
        listed = {tag[1] for tag in members["tags"] if tag[0] == "p"}
        assert listed == {who.pubkey for who in (cast.owner, cast.alice, cast.bob)}


async def status(rookery: Rookery) -> int:
    address = rookery.url.replace("ws", "http", 1) + "/readyz"
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        return answer.status


async def test_without_the_database_nothing_is_given(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with (
        started(tmp_path, postgres) as (one, other),
        connected(other.url) as wire,
    ):
        await do(wire, made(cast.alice, 1))
        postgres.send_signal(signal.SIGSTOP)
        try:
            is_stored, why = await wire.publish(made(cast.alice, 1))
            assert (is_stored, why.split(":")[0]) == (False, "error")
            assert await wire.query({"kinds": [1]}) == []
            assert [await status(each) for each in (one, other)] == [503, 503]
            assert await one.metric("follow_lag_seconds") > 1
        finally:
            postgres.send_signal(signal.SIGCONT)
        async with until("it is stored") as tries:
            async for _ in tries:
                if (await wire.publish(made(cast.alice, 1)))[0]:
                    break
        assert await wire.query({"kinds": [1]})
        async with until("it is ready") as tries:
            async for _ in tries:
                if await status(other) == 200:
                    break


async def test_a_killed_relay_loses_nothing_and_nothing_comes_twice(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with (
        started(tmp_path, postgres) as (one, other),
        connected(other.url) as reader,
    ):
        await subscribe(reader, kinds=[1])
        acknowledged: set[str] = set()

        async def publish(rookery: Rookery, who: SecretKey) -> None:
            with suppress(websockets.ConnectionClosed):
                async with connected(rookery.url) as wire:
                    for number in range(PUBLISHED):
                        acknowledged.add((await do(wire, made(who, 1))).id)
                        if rookery is one and number == KILLED_AT:
                            rookery.send_signal(signal.SIGKILL)

        await asyncio.gather(
            publish(one, cast.alice), publish(one, cast.carol), publish(other, cast.bob)
        )
        async with connected(other.url) as wire:
            last = await do(wire, made(cast.bob, 1, content="last"))
            seen = Counter[str]()
            while last.id not in seen:
                seen[await next_event(reader)] += 1
            found = await wire.query_ids([*acknowledged, last.id])
            assert found == {*acknowledged, last.id}
            assert set(seen) >= found
            assert set(seen.values()) == {1}


async def test_a_relay_that_stood_still_wakes_with_what_the_others_did(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """Longer than the database tells what was done; the question was there before it woke."""
    async with (
        started(tmp_path, postgres) as (one, other),
        connected(one.url) as admin,
        connected(other.url) as member,
    ):
        await member.log_in(cast.alice, other.url, int(time.time()))
        h, alice = ["h", "den"], ["p", cast.alice.pubkey]
        await do(admin, made(cast.admin, 9007, h))
        await do(admin, made(cast.admin, 9002, h, ["private"], ["restricted"], ["name", "Den"]))
        await do(admin, made(cast.admin, 9000, h, alice))
        before = await do(member, made(cast.alice, 9, h))
        await subscribe(member, kinds=[9])
        other.send_signal(signal.SIGSTOP)
        try:
            await do(admin, made(cast.admin, 9001, h, alice))
            await do(admin, made(cast.admin, 9, h, content="to fewer"))
            await postgres.forget_changes(url_of(one))
            await member.send("REQ", "late", {"ids": [before.id]})
            await member.send_event(late := made(cast.alice, 9, h, content="I am in"))
            await asyncio.sleep(1.1 * STALE_S)
        finally:
            other.send_signal(signal.SIGCONT)
        told: dict[str, list[object]] = {}
        while not {"late", late.id} <= told.keys():
            verb, about, *more = await member.receive()
            told[about] = [verb, *more]
        assert told["late"][0] in {"EOSE", "CLOSED"}
        assert told[late.id][1] is False
        assert "live" not in told


async def test_relays_of_one_database_have_one_key(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """One with another key signed the groups again, which the others then signed back."""
    async with two_relays(tmp_path, await postgres.new_schema()) as (one, other):
        key, foreign = (one.folder / "relay.key").read_text(), new_key().nsec
        rotate = ("key", "rotate", "--yes", "--data", str(other.folder))
        await one.start()
        async with connected(one.url) as wire:
            await do(wire, made(cast.owner, 9007, ["h", "tea"]))
            (before,) = await wire.query({"kinds": [39000]})
            (other.folder / "relay.key").write_text(foreign)
            with pytest.raises(AssertionError, match="have another relay"):
                await other.start()
            code, text = await command("serve", "--check", "--data", str(other.folder))
            assert (code, "have another relay.key" in text) == (1, True), text
            code, text = await command(*rotate)
            assert (code, "stop it first" in text) == (1, True), text
            assert (other.folder / "relay.key").read_text() == foreign
            assert await wire.query({"kinds": [39000]}) == [before]
        assert await one.stop() == 0
        with pytest.raises(AssertionError, match="rookery key rotate"):
            await other.start()  # a key that was rotated away does not come back either

        (other.folder / "relay.key").write_text(key)
        code, text = await command(*rotate)
        assert code == 0, text
        with pytest.raises(AssertionError, match="copy it from one of them"):
            await one.start()
        await other.start()
        async with connected(other.url) as wire:
            (after,) = await wire.query({"kinds": [39000]})
        assert after["pubkey"] != before["pubkey"]
        shutil.copy(other.folder / "relay.key", one.folder)
        await one.start()

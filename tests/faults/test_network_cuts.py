"""The network between a relay and the database is gone for a while, and nobody is told so."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from tests import cast
from tests.effort import tries
from tests.harness.network import Cable, Place, why_not
from tests.harness.postgres import MISSING, PostgresServer, programs
from tests.harness.relay_program import OwnProcess, Rookery, connected, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.harness.relay_program import Wire

pytestmark = [pytest.mark.slow, pytest.mark.process]

AT_ONCE: Final = 16
"""More than a relay has connections."""


@pytest.fixture
def cable() -> Iterator[Cable]:
    if why := why_not():
        pytest.skip(f"no network namespaces: {why}")
    with Place() as database, Cable(database, 1) as cable:
        yield cable


@pytest.fixture
def server(cable: Cable) -> Iterator[PostgresServer]:
    bin_ = programs()
    if bin_ is None:
        pytest.skip(MISSING)
    made = PostgresServer(bin_, place=cable.database)
    yield made
    made.stop()


@asynccontextmanager
async def relays(
    folder: Path, server: PostgresServer, cable: Cable, *, is_shared: bool
) -> AsyncIterator[tuple[Rookery, OwnProcess]]:
    """One beside the database, which runs if both share it, and one behind the cable."""
    schema = server.schema_of(await server.new_schema())
    async with AsyncExitStack() as stack:
        near, far = Rookery(folder / "near"), OwnProcess(folder / "far")
        far.place = cable.place
        far.listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for relay, host in ((near, None), (far, cable.address)):
            await stack.enter_async_context(relay)
            await relay.init(
                *("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--preset", "open")
            )
            url = server.url(schema, host)
            relay.set_up("storage", f'url = "{url}"\nshared = {str(is_shared).lower()}')
        shutil.copy(near.folder / "relay.key", far.folder)
        await far.start()
        if is_shared:
            await near.start()
        yield near, far


def made(who: SecretKey, kind: int, *tags: Sequence[str]) -> Event:
    return who.sign(kind, [*map(list, tags)], f"{time.monotonic_ns()}", int(time.time()))


async def do(wire: Wire, event: Event) -> str:
    """Its id."""
    assert await wire.publish(event) == (True, "")
    return event.id


async def stored(wire: Wire, *events: Event) -> None:
    """Each as soon as the database answers."""
    for event in events:
        async with until("it is stored") as tries:
            async for _ in tries:
                if (await wire.publish(event))[0]:
                    break


async def connections(server: PostgresServer, cable: Cable) -> int:
    found: int = await server.value(
        f"SELECT count(*) FROM pg_stat_activity WHERE client_addr = '{cable.far_address}'"
    )
    return found


async def given_up(server: PostgresServer, cable: Cable) -> None:
    async with until("the server has given up the connections") as tries:
        async for _ in tries:
            if not await connections(server, cable):
                return
            await asyncio.sleep(0.5)  # it takes ten seconds


async def gives_nothing_and_goes_on_when_it_is_in(
    tmp_path: Path, server: PostgresServer, cable: Cable
) -> None:
    async with (
        relays(tmp_path, server, cable, is_shared=True) as (near, far),
        connected(near.url) as admin,
        connected(far.url) as member,
    ):
        await member.log_in(cast.alice, far.url, int(time.time()))
        h, alice = ["h", "den"], ["p", cast.alice.pubkey]
        await do(admin, made(cast.admin, 9007, h))
        await do(admin, made(cast.admin, 9002, h, ["private"], ["restricted"], ["name", "Den"]))
        await do(admin, made(cast.admin, 9000, h, alice))
        post = await do(member, made(cast.alice, 9, h))
        await asyncio.gather(*[_read(far) for _ in range(AT_ONCE)])
        assert await member.query_ids([post]) == {post}

        cable.unplug()
        is_stored, why = await member.publish(made(cast.alice, 9, h))
        assert (is_stored, why.split(":")[0]) == (False, "error")
        await do(admin, made(cast.admin, 9001, h, alice))
        assert await member.query_ids([post]) == set()
        await given_up(server, cable)

        cable.plug()
        await stored(member, note := made(cast.alice, 1))
        assert await asyncio.gather(*[_read(far) for _ in range(AT_ONCE)]) == [{note.id}] * AT_ONCE
        assert await member.query_ids([post]) == set()
        assert not (await member.publish(made(cast.alice, 9, h)))[0]


async def _read(relay: Rookery) -> set[str]:
    """Of notes: ids."""
    async with connected(relay.url) as wire:
        return {event["id"] for event in await wire.query({"kinds": [1]})}


async def another_relay_takes_the_database(
    tmp_path: Path, server: PostgresServer, cable: Cable
) -> None:
    async with relays(tmp_path, server, cable, is_shared=False) as (near, far):
        async with connected(far.url) as wire:
            post = await do(wire, made(cast.alice, 1))
        cable.unplug()
        await given_up(server, cable)
        await near.start()
        assert await _read(near) == {post}
        cable.plug()
        async with connected(near.url) as wire:
            await do(wire, made(cast.alice, 1))
        assert await _read(far) == set()
        async with connected(far.url) as wire:
            assert not (await wire.publish(made(cast.alice, 1)))[0]


@pytest.mark.parametrize(
    "scene",
    [gives_nothing_and_goes_on_when_it_is_in, another_relay_takes_the_database][: tries(2, 2, 1)],
    ids=lambda scene: scene.__name__,
)
async def test_a_relay_whose_cable_is_out(
    tmp_path: Path,
    server: PostgresServer,
    cable: Cable,
    scene: Callable[[Path, PostgresServer, Cable], Awaitable[None]],
) -> None:
    await scene(tmp_path, server, cable)

"""`rookery sync`: two relays become alike, and nothing leaves that not everybody may read."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Any

import pytest

from tests import cast
from tests.effort import tries
from tests.harness.fake_relay import FakeRelay
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Rookery, connected, outputs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.harness.fake_relay import Visitor

pytestmark = pytest.mark.slow


def notes(count: int) -> list[Event]:
    now = int(time.time())
    return [cast.robot.sign(1, [["t", f"{n % 7}"]], f"number {n}", now - n) for n in range(count)]


async def made(folder: Path, events: Iterable[Event] = (), preset: str = "open") -> Rookery:
    """A relay that has these events, and does not run yet."""
    rookery = Rookery(folder)
    await rookery.init(
        "--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--preset", preset
    )
    lines = b"".join(event.raw + b"\n" for event in events)
    if lines:
        code, out, err = await outputs("import", "-", "--data", str(folder), stdin=lines)
        assert code == 0, (out, err)
    return rookery


async def sync(url: str, *args: str) -> dict[str, Any]:
    code, out, err = await outputs("sync", url, "--json", *args)
    assert (code, err) == (0, ""), err
    told = json.loads(out)
    assert isinstance(told, dict)
    return told


async def ids(rookery: Rookery) -> set[str]:
    code, out, err = await outputs("export", "--data", str(rookery.folder))
    assert (code, err) == (0, "")
    return {json.loads(line)["id"] for line in out.splitlines()}


def ids_of(events: Iterable[Event]) -> set[str]:
    return {event.id for event in events}


# -- two of us -------------------------------------------------------------------------------------

UNIT = tries(100, 100, 20)
"""So many events are one part of fifteen."""


@pytest.mark.parametrize("our_side", ["a stopped relay's folder", "a running relay's", "a relay"])
async def test_two_relays_become_alike(tmp_path: Path, our_side: str) -> None:
    events = notes(15 * UNIT)
    ours = await made(tmp_path / "ours", events[: 12 * UNIT])
    theirs = await made(tmp_path / "theirs", events[5 * UNIT :])
    async with ours, theirs:
        await theirs.start()
        where = ["--data", str(ours.folder)]
        if our_side != "a stopped relay's folder":
            await ours.start()
        if our_side == "a relay":
            where = ["--relay", ours.url]
        told = await sync(theirs.url, *where, "--dry-run")
        need, have = 3 * UNIT, 5 * UNIT
        assert (told["need"], told["have"], told["received"], told["sent"]) == (need, have, 0, 0)
        told = await sync(theirs.url, *where)
        assert (told["compared"], told["received"], told["sent"]) == (12 * UNIT, need, have)
        assert (told["refused_here"], told["refused_there"]) == ({}, {})
        assert await ids(ours) == await ids(theirs) == ids_of(events)
        told = await sync(theirs.url, *where)
        assert (told["need"], told["have"], told["rounds"]) == (0, 0, 1)
        code, out, err = await outputs("sync", theirs.url, *where)
        assert (code, err) == (0, "")
        told_so = (
            rf"received 0, sent 0, compared {len(events):,} against {theirs.url} in 1 round, 1 kB, "
        )
        assert re.fullmatch(told_so + r"[\d.]+ s\n", out.decode())


async def test_one_way_and_a_filter(tmp_path: Path) -> None:
    events = notes(140)
    ours = await made(tmp_path / "ours", events[:70])
    theirs = await made(tmp_path / "theirs", events[70:])
    async with theirs:
        await theirs.start()
        where = ["--data", str(ours.folder), "--filter", '{"kinds":[1],"#t":["3"]}']
        told = await sync(theirs.url, *where, "--down")
        assert (told["received"], told["sent"]) == (10, 0)
        assert len(await ids(theirs)) == 70
        told = await sync(theirs.url, *where, "--up")
        assert (told["received"], told["sent"]) == (0, 10)
        assert len(await ids(ours)) == len(await ids(theirs)) == 80


FOUNDED = "has group records: 1 × 9000, 1 × 9002, 1 × 9007; they create 1 group (tea), add 1 member"


@pytest.mark.parametrize("is_running", [False, True], ids=["stopped", "running"])
async def test_the_policies_of_a_folder_say_whose_h_names_no_group(
    tmp_path: Path, *, is_running: bool
) -> None:
    event = cast.robot.sign(30315, [["d", "a"], ["h", "aa"]], "", int(time.time()))
    ours, theirs = await made(tmp_path / "ours"), await made(tmp_path / "theirs")
    for side in (ours, theirs):
        own = side.folder / "policies" / "50-own.toml"
        own.write_text("[groups]\nforeign_h = [445, 30315]\n")
    async with ours, theirs:
        await theirs.start()
        if is_running:
            await ours.start()
        async with connected(theirs.url) as wire:
            assert await wire.publish(event) == (True, "")
        told = await sync(theirs.url, "--data", str(ours.folder))
        assert (told["received"], told["refused_here"]) == (1, {})
        assert await ids(ours) == {event.id}


async def test_a_folder_that_is_new_becomes_a_copy(tmp_path: Path) -> None:
    """Of what anybody may read: also of the groups, in whatever order their events come."""
    theirs = await made(tmp_path / "theirs")
    h, now = ["h", "tea"], int(time.time())
    async with theirs:
        await theirs.start()
        async with connected(theirs.url) as wire:
            for event in (
                cast.alice.sign(9007, [h], "", now - 500),
                cast.alice.sign(9002, [h, ["name", "Tea"], ["public"], ["open"]], "", now - 400),
                *(cast.alice.sign(9, [h], f"line {n}", now - 300 + n) for n in range(200)),
            ):
                assert await wire.publish(event) == (True, ""), event
        ours = await made(tmp_path / "ours")
        where = [theirs.url, "--data", str(ours.folder), "--down"]
        told = await sync(*where)
        assert (told["received"], told["moderation"]) == (0, 3)  # the relay put the founder in
        assert told["relay_signed"] >= 1
        code, out, err = await outputs("sync", *where, "--moderation", "--json")
        assert (code, err) == (0, f"{theirs.url} {FOUNDED}\n")
        told = json.loads(out)
        assert (told["not_given"], told["sent"]) == (0, 0)
        async with ours:
            await ours.start()
            async with connected(ours.url) as wire:
                assert len(await wire.query({"kinds": [9], "#h": ["tea"]})) == 200


async def test_a_group_of_the_same_name_that_ended_elsewhere_ends_none_here(tmp_path: Path) -> None:
    """The admin of both is the same key."""
    alice, bob = cast.alice, cast.bob
    ours, theirs = await made(tmp_path / "ours"), await made(tmp_path / "theirs")
    now, h = int(time.time()), ["h", "tea"]
    async with theirs, ours:
        for relay, events in (
            (theirs, [alice.sign(9007, [h], "", now - 500), alice.sign(9008, [h], "", now - 400)]),
            (
                ours,
                [
                    alice.sign(9007, [h], "", now - 100),
                    alice.sign(9000, [h, ["p", bob.pubkey]], "", now - 90),
                    bob.sign(9, [h], "hello", now),
                ],
            ),
        ):
            await relay.start()
            async with connected(relay.url) as wire:
                for event in events:
                    assert await wire.publish(event) == (True, "")
        where = [theirs.url, "--data", str(ours.folder), "--down"]
        code, out, err = await outputs("sync", *where)
        assert (code, err) == (
            0,
            "skipped: 1 × group records (kinds 9000 to 9022); include them with --moderation\n",
        )
        assert out.startswith(b"received 0, compared ")
        says = f"{theirs.url} has group records: 1 × 9008; they delete 1 group (tea)\n"
        code, out, err = await outputs("sync", *where, "--moderation", "--dry-run")
        assert (code, err) == (0, says)
        code, out, err = await outputs("sync", *where, "--moderation")
        assert (code, err.startswith(says)) == (0, True)
        assert "1 × invalid: created_at: older than the group of this name here" in err
        async with connected(ours.url) as wire:
            assert await wire.publish(bob.sign(9, [h], "still here", now)) == (True, "")


async def test_a_second_run_beside_the_first_says_so(tmp_path: Path) -> None:
    """Runs from cron would pile up beside one that a slow relay holds up."""
    ours = await made(tmp_path / "ours")
    never = asyncio.Event()
    came = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await never.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    first = await start_rookery("sync", url, "--data", str(ours.folder), stderr=DEVNULL)
    try:
        await came.wait()
        code, _, err = await outputs("sync", url, "--data", str(ours.folder))
        assert code == 1
        assert f"a sync of {ours.folder} with {url} still runs: process {first.pid}" in err
    finally:
        first.kill()
        await first.wait()
        never.set()
        server.close()
        await server.wait_closed()


async def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    events = notes(6000)
    ours = await made(tmp_path / "ours", events[:3000])
    theirs = await made(tmp_path / "theirs", events[3000:])
    async with ours, theirs:
        await ours.start()
        await theirs.start()
        async with connected(ours.url) as wire:
            await wire.send("REQ", "what comes", {"kinds": [1], "limit": 0})
            process = await start_rookery(
                "sync",
                theirs.url,
                "--data",
                str(ours.folder),
                stdout=DEVNULL,
                stderr=DEVNULL,
            )
            while (await wire.receive())[0] != "EVENT":
                pass
            # With the first of some twelve batches, while the second is fetched.
            process.kill()
            wire.abort()  # what came meanwhile is nobody's business
        assert await process.wait() == -signal.SIGKILL
        told = await sync(theirs.url, "--data", str(ours.folder))
        assert 0 < told["need"] < 3000
        assert await ids(ours) == await ids(theirs) == ids_of(events)


# -- what must not leave ---------------------------------------------------------------------------


async def with_secrets(folder: Path) -> tuple[Rookery, dict[str, set[str]]]:
    """A running relay with public and other events; what it has, by who may read it."""
    rookery = await made(folder)
    await rookery.start()
    now, h = int(time.time()), ["h", "den"]
    alice, bob, owner, robot = cast.alice, cast.bob, cast.owner, cast.robot
    public = [alice.sign(1, [], "hello", now), alice.sign(0, [], "{}", now)]
    secret = [
        alice.sign(9007, [h, ["private"], ["hidden"], ["closed"]], "", now - 5),
        alice.sign(9000, [h, ["p", bob.pubkey]], "", now - 4),
        bob.sign(9, [h], "between us", now - 3),
        robot.sign(31234, [["d", "x"]], "remember", now),
        robot.sign(30078, [["d", "snowclaw:core:x"]], "a fact", now),
        owner.sign(30078, [["d", "snowclaw:config:global"]], "{}", now),
        robot.sign(1059, [["p", owner.pubkey]], "a wrap", now),
        alice.sign(4, [["p", bob.pubkey]], "old style", now),
    ]
    protected = [alice.sign(1, [["-"]], "only by me", now)]
    async with connected(rookery.url) as wire:
        for key in (alice, bob, owner, robot):
            await wire.log_in(key, rookery.url, now)
        for event in (*public, *secret, *protected):
            assert await wire.publish(event) == (True, ""), event
    return rookery, {
        "public": ids_of(public),
        "secret": ids_of(secret),
        "protected": ids_of(protected),
    }


@pytest.mark.parametrize("our_side", ["a stopped relay's folder", "a running relay's", "a relay"])
async def test_only_what_anybody_may_read_leaves(tmp_path: Path, our_side: str) -> None:
    ours, has = await with_secrets(tmp_path / "ours")
    key_file = tmp_path / "owner.nsec"
    key_file.write_text(cast.owner.nsec)
    key_file.chmod(0o600)
    async with ours, FakeRelay() as theirs:
        where = ["--data", str(ours.folder)]
        if our_side == "a relay":
            where = ["--relay", ours.url, "--key-file", str(key_file)]
        elif our_side == "a stopped relay's folder":
            assert await ours.stop() == 0
        told = await sync(theirs.url, *where)
        sent = {frame[1]["id"] for frame in theirs.verbs("EVENT")}
        assert sent == has["public"]
        assert (told["sent"], told["protected"]) == (2, 1)
        # Nor were their ids named while sets were compared.
        named = "".join(frame[-1] for frame in theirs.seen if frame[0].startswith("NEG-"))
        assert all(id_ not in named for id_ in has["secret"])
        assert any(id_ in named for id_ in has["public"])


async def test_all_leaves_when_it_is_asked_for(tmp_path: Path) -> None:
    ours, has = await with_secrets(tmp_path / "ours")
    async with ours, FakeRelay() as theirs:
        await sync(theirs.url, "--data", str(ours.folder), "--all")
        sent = {frame[1]["id"] for frame in theirs.verbs("EVENT")}
        assert has["public"] | has["secret"] <= sent
        assert not sent & has["protected"]
        assert all(not 39000 <= frame[1]["kind"] <= 39005 for frame in theirs.verbs("EVENT"))


async def test_of_a_relay_all_is_what_the_key_may_read(tmp_path: Path) -> None:
    ours, _ = await with_secrets(tmp_path / "ours")
    key_file = tmp_path / "bob.nsec"
    key_file.write_text(cast.bob.nsec)
    key_file.chmod(0o600)
    filter_ = '{"kinds":[1,9,9007,30078]}'
    async with ours, FakeRelay() as theirs:
        args = ["--relay", ours.url, "--key-file", str(key_file), "--filter", filter_, "--all"]
        await sync(theirs.url, *args)
        frames = theirs.verbs("EVENT")
        said = {frame[1]["content"] for frame in frames if frame[1]["kind"] != 9007}
        assert said == {"hello", "between us"}


async def test_a_key_fetches_what_it_may_read(tmp_path: Path) -> None:
    theirs, _ = await with_secrets(tmp_path / "theirs")
    ours = await made(tmp_path / "ours")
    key_file = tmp_path / "bob.nsec"
    key_file.write_text(cast.bob.nsec)
    key_file.chmod(0o600)
    where = ["--data", str(ours.folder), "--down", "--filter", '{"kinds":[9]}']
    async with theirs:
        told = await sync(theirs.url, *where)
        assert told["need"] == 0
        told = await sync(theirs.url, *where, "--key-file", str(key_file), "--dry-run")
        assert told["need"] == 1


# -- what goes wrong -------------------------------------------------------------------------------


async def test_what_is_refused_is_reported_and_is_no_failure(tmp_path: Path) -> None:
    now = int(time.time())
    mine, known = cast.stranger.sign(1, [], "let me in", now), cast.robot.sign(1, [], "hi", now)
    ours = await made(tmp_path / "ours", [mine, known])
    theirs = await made(tmp_path / "theirs", [], "group")
    async with theirs:
        await theirs.start()
        code, out, err = await outputs("sync", theirs.url, "--data", str(ours.folder))
        assert code == 0
        assert out.decode().startswith("received 0, sent 1 (1 refused), compared 2 against")
        assert re.fullmatch(r"refused there: 1 × restricted: .+\n", err)
        # … and the other way: a folder applies its own rules, unless its owner trusts.
        code, out, err = await outputs("sync", theirs.url, "--data", str(ours.folder), "--json")
        told = json.loads(out)
        assert (told["have"], told["sent"], sum(told["refused_there"].values())) == (1, 0, 1)
    async with ours:
        await ours.start()
        where = [ours.url, "--data", str(theirs.folder), "--down"]
        code, out, err = await outputs("sync", *where)
        assert (code, out[:22]) == (0, b"received 0 (1 refused)")
        told = await sync(*where, "--trust")
        assert (told["received"], told["refused_here"]) == (1, {})


async def fails(*args: str) -> tuple[int, str]:
    code, out, err = await outputs("sync", *args)
    assert out == b""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return code, err


async def test_a_relay_without_negentropy_is_told(tmp_path: Path) -> None:
    async def say_what(visitor: Visitor, frame: list[Any]) -> None:
        await visitor.say("NOTICE", f"could not parse command {frame[0]}")

    ours = await made(tmp_path / "ours", notes(3))
    async with FakeRelay() as theirs:
        theirs.on["NEG-OPEN"] = say_what
        code, err = await fails(theirs.url, "--data", str(ours.folder))
    assert code == 1
    assert f"cannot compare with {theirs.url}: the relay offers no negentropy (NIP-77)" in err


async def test_a_relay_that_goes_away_in_the_middle_is_told_with_what_was_done(
    tmp_path: Path,
) -> None:
    ours = await made(tmp_path / "ours", notes(300))
    async with FakeRelay() as theirs:

        async def stop_taking(visitor: Visitor, frame: list[Any]) -> None:
            await visitor.say_no(frame[1]["id"], "error: disk full")

        theirs.on["EVENT"] = stop_taking
        code, err = await fails(theirs.url, "--data", str(ours.folder))
    assert code == 1
    assert "disk full; received 0, sent 0; repeat the command to continue" in err


async def test_what_the_user_can_put_right_is_one_line(tmp_path: Path) -> None:
    ours = await made(tmp_path / "ours")
    data = ["--data", str(ours.folder)]
    nowhere = "ws://127.0.0.1:9"
    assert await fails(nowhere, *data) == (
        1,
        f"rookery: cannot reach {nowhere}: connection refused; nothing was transferred: repeat the"
        " command when the relay is reachable\n",
    )
    for args, says in (
        ((nowhere, "--data", str(tmp_path / "none")), (1, "is no data folder")),
        (("https://example.com", *data), (2, "relay URL")),
        ((nowhere, *data, "--relay", nowhere), (2, "exclude each other")),
        ((nowhere, "--relay", "ws://127.0.0.1:9/"), (2, "is on both sides")),
        (
            (nowhere, "--relay", "ws://127.0.0.1:8", "--trust"),
            (2, "--trust works with --data only"),
        ),
        ((nowhere, *data, "--filter", "{"), (2, "not JSON")),
        ((nowhere, *data, "--filter", '{"limit":3}'), (2, "limit")),
        ((nowhere, *data, "--filter", '{"kinds":[39000]}'), (2, "nothing")),
    ):
        code, err = await fails(*args)
        assert (code, says[1] in err) == (says[0], True), err

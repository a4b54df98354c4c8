"""Members of a relay from outside (NIP-43): how Flotilla joins a space, and kills in between."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import websockets

from tests import cast
from tests.harness.relay_program import Rookery, Wire, connected, outputs

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.keys import SecretKey

WELCOME = (True, "info: welcome to this relay")
MEMBER = (True, "duplicate: you are already a member of this relay")


def now() -> int:
    return int(time.time())


async def member(rookery: Rookery, key_file: Path, *args: str) -> Any:
    """What `rookery member … --json` prints, run by the owner."""
    by = ("--relay", rookery.url, "--key-file", str(key_file))
    code, out, err = await outputs("member", *args, *by, "--json")
    assert code == 0, err
    return json.loads(out)


async def asks_to_join(wire: Wire, who: SecretKey, code: str) -> tuple[bool, str]:
    """Flotilla's "Join a space": a claim that may be empty, no tag `-` (core/commands.ts)."""
    return await wire.publish(who.sign(28934, [["claim", code]], "", now()))


@pytest.mark.proves("N43-03", "N43-04", "N43-05")
async def test_a_space_is_joined_with_a_code_used_and_left(tmp_path: Path) -> None:
    key_file = tmp_path / "owner.nsec"
    key_file.write_text(cast.owner.nsec)
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey)
        settings = rookery.folder / "rookery.toml"
        settings.write_text(settings.read_text().replace('# level = "info"', 'level = "debug"'))
        assert 'level = "debug"' in settings.read_text()
        await rookery.start()
        code = (await member(rookery, key_file, "invite"))["code"]
        async with connected(rookery.url) as owner, connected(rookery.url) as alice:
            await owner.log_in(cast.owner, rookery.url, now())
            # Flotilla shares what a REQ gives: the owner's own code, not that of the command.
            (invite,) = await owner.query({"kinds": [28935]})
            ((_, asked),) = [tag for tag in invite["tags"] if tag[0] == "claim"]
            assert asked != code
            assert await asks_to_join(owner, cast.owner, "") == MEMBER
            refused, text = await asks_to_join(alice, cast.alice, "")
            assert (refused, text) == (
                False,
                "restricted: an invite code is needed to join this relay",
            )
            assert await asks_to_join(alice, cast.alice, code) == WELCOME
            await alice.log_in(cast.alice, rookery.url, now())
            seen = await alice.query({"kinds": [13534]}, {"kinds": [8000, 8001]})
            assert sorted(event["kind"] for event in seen) == [8000, 13534]
            assert await alice.publish(cast.alice.sign(1, [], "hello", now())) == (True, "")
            listed = {each["pubkey"] for each in await member(rookery, key_file, "list")}
            assert listed == {cast.owner.pubkey, cast.alice.pubkey}
            leave = cast.alice.sign(28936, [["-"]], "", now())
            assert await alice.publish(leave) == (True, "info: you have left this relay")
            accepted, text = await alice.publish(cast.alice.sign(1, [], "me again", now()))
            assert not accepted
            assert text.startswith("restricted: ")
            assert await asks_to_join(alice, cast.alice, "guess") == (
                False,
                "restricted: this invite code is not valid",
            )
        assert await rookery.stop() == 0
        said = "\n".join(rookery.lines)
        for secret in (code, asked, "guess"):
            assert secret not in said
        _, out, _ = await outputs("export", "--data", str(rookery.folder))
        kinds = {json.loads(line)["kind"] for line in out.splitlines()}
        assert kinds == {1, 8000, 8001, 13534}


@pytest.mark.slow
@pytest.mark.proves("N43-01", "N43-02")
async def test_register_list_and_announcements_agree_after_kills_in_the_middle(
    tmp_path: Path,
) -> None:
    key_file = tmp_path / "owner.nsec"
    key_file.write_text(cast.owner.nsec)
    chance, numbers = random.Random(43), itertools.count()
    welcome: set[str] = set()
    gone: set[str] = set()
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey)
        (rookery.folder / "policies" / "90-members.toml").write_text(
            '[members]\njoin = "anyone"\n'
            '[[rule]]\nname = "pace of unknown senders"\nenabled = false\n'
            '[[rule]]\nname = "pace of members that come and go"\nenabled = false\n'
        )
        for _ in range(4):
            await rookery.start()
            async with connected(rookery.url) as wire:
                moving = asyncio.create_task(come_and_go(wire, rookery.url, numbers, welcome, gone))
                await asyncio.wait([moving], timeout=chance.uniform(0.3, 1.0))
                assert not moving.done(), "\n".join(rookery.lines)
                await rookery.stop(signal.SIGKILL)
                await moving
        await rookery.start()
        register = {
            each["pubkey"]
            for each in await member(rookery, key_file, "list")
            if each["reason"] is not None
        }
        async with connected(rookery.url) as wire:
            await wire.log_in(cast.owner, rookery.url, now())
            (shown,) = await wire.query({"kinds": [13534]})
            changes = await wire.query({"kinds": [8000, 8001]})
        assert {tag[1] for tag in shown["tags"][1:]} == register | {cast.owner.pubkey}
        folded: set[str] = set()
        for change in sorted(changes, key=lambda event: int(event["created_at"])):
            key = next(tag[1] for tag in change["tags"] if tag[0] == "p")
            (folded.add if change["kind"] == 8000 else folded.discard)(key)
        assert folded == register
        assert len(welcome) > 20
        assert welcome - gone <= register
        assert await rookery.stop() == 0


async def come_and_go(
    wire: Wire, url: str, numbers: itertools.count[int], welcome: set[str], gone: set[str]
) -> None:
    """Keys join one by one, every third leaves; until the relay is gone."""
    try:
        for number in itertools.islice(numbers, 250):
            who = cast.person(f"neighbour {number}")
            assert await asks_to_join(wire, who, "") == WELCOME
            welcome.add(who.pubkey)
            if number % 3 == 0:
                gone.add(who.pubkey)  # whether or not that is acknowledged
                async with connected(url) as own:
                    await own.log_in(who, url, now())
                    accepted, _ = await own.publish(who.sign(28936, [["-"]], "", now()))
                    assert accepted
        await wire.receive()
    except (websockets.WebSocketException, OSError):
        pass  # the relay was killed

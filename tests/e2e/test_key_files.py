"""Files of banned and allowed keys of a running relay: changed, missing, wrong, put right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests import cast
from tests.harness.relay_program import Rookery, Wire, connected, eventually, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

pytestmark = pytest.mark.slow

FILES = '[bans]\nfiles = ["bans.txt"]\nstored = "delete"\n[allow]\nfiles = ["friends.txt"]\n'
BANNED = (False, "blocked: this key is banned here")
UNKNOWN = (False, "restricted: only people known here may write; join a group first")


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as made:
        await made.init("--owner", cast.owner.pubkey)
        yield made
    assert "Traceback" not in "\n".join(made.lines)


def note(who: SecretKey, text: str) -> Event:
    return who.sign(1, [], text, int(time.time()))


async def hears(wire: Wire, who: SecretKey, answer: tuple[bool, str]) -> None:
    async with until(f"{answer} is the answer") as tries:
        async for number in tries:
            if await wire.publish(note(who, f"{answer} {number}")) == answer:
                break


async def test_keys_come_and_go_with_their_files(rookery: Rookery) -> None:
    policies = rookery.folder / "policies"
    friends, bans = policies / "friends.txt", policies / "bans.txt"
    friends.write_text(f"{cast.alice.npub} # a friend\n")
    bans.write_text("# nobody yet\n")
    (policies / "20-lists.toml").write_text(FILES)
    await rookery.start()
    async with connected(rookery.url) as wire:
        said = note(cast.alice, "hello")
        assert await wire.publish(said) == (True, "")
        assert await wire.publish(note(cast.bob, "hello")) == UNKNOWN
        friends.write_text(f"{cast.alice.npub}\n{cast.bob.pubkey}\n")
        await hears(wire, cast.bob, (True, ""))
        bans.write_text(cast.alice.npub)
        await hears(wire, cast.alice, BANNED)
        assert await wire.query_ids([said.id]) == set()
        bans.write_text("# nobody any more\n")
        await hears(wire, cast.alice, (True, ""))
        # `stored = "delete"`: it went with the ban, and does not come back with its end.
        assert await wire.query_ids([said.id]) == set()
        assert await wire.publish(said) == (False, "blocked: deleted")
    assert await rookery.stop() == 0


async def test_a_file_that_is_missing_keeps_the_old_set_until_it_is_there(rookery: Rookery) -> None:
    policies = rookery.folder / "policies"
    await rookery.start()
    async with connected(rookery.url) as wire:
        (policies / "friends.txt").write_text(cast.alice.npub)
        (policies / "20-lists.toml").write_text(FILES)
        await eventually(
            "the log names the file", lambda: any("bans.txt" in line for line in rookery.lines)
        )
        assert await wire.publish(note(cast.alice, "too early")) == UNKNOWN
        (policies / "bans.txt").write_text("")
        await hears(wire, cast.alice, (True, ""))
    assert await rookery.stop() == 0

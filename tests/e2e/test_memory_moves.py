"""Memory moves to another relay as a file, and everything about it ends the same there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests import cast
from tests.harness.relay_program import Rookery, command, connected, outputs

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

pytestmark = pytest.mark.slow

T = 1_770_000_000
NEWER_IS_STORED = (False, "duplicate: a newer version is stored")
TAKEN_BY_THE_FIRST = (True, "duplicate: already stored under this d")
ALREADY_HERE = (True, "duplicate: already have this event")
DELETED = (False, "blocked: deleted")


def record(d: str, content: object, at: int, by: SecretKey = cast.robot) -> Event:
    return by.sign(30078, [["d", d]], json.dumps(content), at)


def preference(ts: int, at: int) -> Event:
    tags = [
        ["d", "a:preference"],
        ["k", "aman_preference"],
        ["hk", "a"],
        ["v", "1"],
        ["ts", str(ts)],
    ]
    content = {"history_key": "a", "preference": f"tea {ts}", "updated_at": ts}
    return cast.robot.sign(30093, tags, json.dumps(content), at)


def tool(name: str, text: str, at: int) -> Event:
    tags = [
        ["d", f"a:{name}"],
        ["k", "aman_tool_history"],
        ["hk", "a"],
        ["v", "1"],
        ["ts", str(at)],
    ]
    content = {
        "history_key": "a",
        "tool_name": "kettle",
        "success": True,
        "content": text,
        "created_at": at,
    }
    return cast.robot.sign(30095, tags, json.dumps(content), at)


USER = "snowclaw:memory:npub:7e7e9c42a91bfef19fa929e5fda1b72e"
TWINS = sorted(
    (record("snowclaw:core:twins", text, T) for text in ("one", "other")), key=lambda e: e.id
)
FORGOTTEN, FORGOTTEN_BY_ADDRESS = record(USER, {"notes": ["x"]}, T), tool("gone", "x", T)
OLD, NEW = preference(T + 5, T + 9), preference(T + 9, T + 5)
FIRST, SECOND = tool("kept", "hot", T + 3), tool("kept", "cold", T + 4)

WRITTEN = [
    OLD,
    NEW,
    FIRST,
    *reversed(TWINS),
    FORGOTTEN,
    FORGOTTEN_BY_ADDRESS,
    cast.robot.sign(5, [["e", FORGOTTEN.id]], "", T + 1),
    cast.robot.sign(5, [["a", f"30095:{cast.robot.pubkey}:a:gone"]], "", T + 1),
    record("snowclaw:config:global", {"respond_mode": "all"}, T, cast.owner),
    cast.robot.sign(1988, [["d", "s"], ["role", "user"]], 'é\u2028 \\ "tea"', T),
    cast.robot.sign(1988, [["d", "s"], ["role", "assistant"]], "", T),
    cast.robot.sign(78, [["d", "my-app"]], "x", T),
]
"""All of it is taken, in this order."""

LATE = [
    (OLD, NEWER_IS_STORED),
    (NEW, ALREADY_HERE),
    (SECOND, TAKEN_BY_THE_FIRST),
    (FIRST, ALREADY_HERE),
    (TWINS[1], NEWER_IS_STORED),
    (TWINS[0], ALREADY_HERE),
    (FORGOTTEN, DELETED),
    (FORGOTTEN_BY_ADDRESS, DELETED),
    (tool("gone", "y", T + 1), DELETED),
]


async def made(folder: Path) -> Rookery:
    rookery = Rookery(folder)
    await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
    return rookery


async def exported(rookery: Rookery) -> bytes:
    code, out, err = await outputs("export", "--data", str(rookery.folder))
    assert (code, err) == (0, "")
    return out


async def imported(rookery: Rookery, path: Path) -> None:
    """What the file has too much is no fault: superseded, or here already."""
    code, said = await command("import", str(path), "--data", str(rookery.folder))
    assert code == 0, said


async def late_answers(rookery: Rookery) -> list[tuple[bool, str]]:
    await rookery.start()
    async with connected(rookery.url) as wire:
        answers = [await wire.publish(event) for event, _ in LATE]
    assert await rookery.stop() == 0
    return answers


@pytest.mark.proves("G-28", "G-06", "G-12")
async def test_every_slot_tombstone_and_duplicate_ends_the_same(tmp_path: Path) -> None:
    one, two, three = [await made(tmp_path / name) for name in ("one", "two", "three")]
    async with one, two, three:
        await one.start()
        async with connected(one.url) as wire:
            assert {await wire.publish(event) for event in WRITTEN} == {(True, "")}
        assert await one.stop() == 0
        all_of_it = await exported(one)
        stays = [event for event in WRITTEN if event not in (OLD, TWINS[1])]
        stays = [event for event in stays if event not in (FORGOTTEN, FORGOTTEN_BY_ADDRESS)]
        assert all_of_it == b"".join(event.raw + b"\n" for event in stays)

        file = tmp_path / "memory.jsonl"
        file.write_bytes(all_of_it)
        await imported(two, file)
        assert await exported(two) == all_of_it

        backwards = tmp_path / "backwards.jsonl"
        backwards.write_bytes(b"".join(line + b"\n" for line in reversed(all_of_it.splitlines())))
        await imported(three, backwards)
        assert sorted((await exported(three)).splitlines()) == sorted(all_of_it.splitlines())

        for rookery in (one, two, three):
            assert await late_answers(rookery) == [answer for _, answer in LATE]
        assert await exported(two) == all_of_it

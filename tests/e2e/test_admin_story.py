"""A new admin, with README.md and policies/README.md: from `init` to rules that hold on the wire.

"Only members of techteam may post notes, agents at most 30 a minute, tool history 14 days": the
recipes of these names, as they stand on the page, put into a folder whose relay runs.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from relay.nostr.keys import read_key_file
from tests.harness.relay_program import Rookery, command, connected, until
from tests.unit.policies import readme

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

pytestmark = pytest.mark.slow

RECIPES = {recipe.slug: recipe.policy for recipe in readme.recipes()}
NOTES = RECIPES["only_members_of_a_group_may_post_notes"]
PACE = RECIPES["agents_at_most_30_a_minute"]
TOOLS = RECIPES["keep_tool_history_for_14_days"]
OUTSIDE = "restricted: notes belong into the group techteam"
SWEPT_BY = "tool history for 14 days"
NO_MEMBER = "restricted: only people known here may write; join a group first"
DAY_S = 86_400

EXPECTED = """\
[[case]]
says  = "a member of techteam posts a note there"
event = { kind = 1, by = "ada", tags = [["h", "techteam"]] }
given = { group = "techteam", members = ["ada"], flags = ["private", "restricted", "closed"] }
want  = "accept"

[[case]]
says  = "and nowhere else"
event = { kind = 1, by = "ada" }
given = { group = "techteam", members = ["ada"] }
want  = "restricted"
rule  = "notes are written in techteam"
"""


async def made_key(folder: Path, name: str) -> SecretKey:
    code, text = await command("keygen", "-o", str(folder / f"{name}.nsec"))
    key = read_key_file((folder / f"{name}.nsec").read_text(), name)
    assert (code, key.npub in text) == (0, True), text
    return key


async def done(*args: str) -> str:
    code, text = await command(*args)
    assert code == 0, text
    return text


def now() -> int:
    return int(time.time())


def tool_call(robot: SecretKey, said: str, at: int) -> Event:
    payload = {
        "history_key": "tea",
        "tool_name": "weather",
        "success": True,
        "content": said,
        "created_at": at,
    }
    tags = [["d", f"tea:{said}"], ["k", "aman_tool_history"], ["hk", "tea"], ["v", "1"]]
    return robot.sign(30095, [*tags, ["ts", str(at)]], json.dumps(payload), at)


async def test_a_new_admin_gets_what_they_asked_for(tmp_path: Path) -> None:
    me, robot, ada, bob = [await made_key(tmp_path, name) for name in ("me", "robot", "ada", "bob")]
    async with Rookery(tmp_path / "team") as rookery:
        data, mine = str(rookery.folder), rookery.folder / "policies" / "20-mine.toml"
        await rookery.init("--owner", me.npub, "--agent", robot.npub, "--name", "Our team")
        await rookery.start()
        as_me = ("--key-file", str(tmp_path / "me.nsec"), "--relay", rookery.url)
        await done("group", "create", "techteam", "--name", "Tech team", *as_me)
        await done("group", "add", "techteam", ada.npub, *as_me)

        # A slip of the pen is told with its line, and changes nothing.
        mine.write_text(NOTES.replace('"insider"', '"insidr"'))
        code, text = await command("policy", "check", "--data", data)
        line = mine.read_text().splitlines().index('write  = ["insidr"]') + 1
        assert code == 1
        assert f'20-mine.toml:{line}: unknown who-word "insidr" in write' in text
        assert 'did you mean "insider"?' in text

        mine.write_text("\n".join([NOTES, PACE, TOOLS]))
        assert (await done("policy", "check", "--data", data)).splitlines()[-1].startswith("ok: ")
        shown = await done("policy", "show", "--data", data)
        for rule in ("notes are written by techteam", "agents keep a pace", SWEPT_BY):
            assert rule in shown

        # Only members of techteam post notes; in force while the relay runs.
        async with connected(rookery.url) as wire:
            async with until("the new rules are in force") as tries:
                async for number in tries:
                    note = ada.sign(1, [], f"outside {number}", now())
                    verdict = await wire.publish(note)
                    if not verdict[0]:
                        break
            assert verdict == (False, OUTSIDE)
            inside = ada.sign(1, [["h", "techteam"]], "inside", now())
            assert await wire.publish(inside) == (True, "")
            other = bob.sign(1, [["h", "techteam"]], "who am I?", now())
            assert await wire.publish(other) == (False, NO_MEMBER)

        # Why, and whether it will stay so.
        (tmp_path / "note.json").write_bytes(note.raw)
        _, text = await command("policy", "explain", str(tmp_path / "note.json"), "--data", data)
        assert "notes are written in techteam" in text
        (tmp_path / "expected.toml").write_text(EXPECTED)
        await done("policy", "test", str(tmp_path / "expected.toml"), "--data", data)

        # Tool history of 14 days: told before it goes, gone when the relay has swept.
        async with connected(rookery.url) as wire:
            old = tool_call(robot, "old", now() - 20 * DAY_S)
            new = tool_call(robot, "new", now() - DAY_S)
            assert await wire.publish(new) == (True, "")
            assert await wire.publish(old) == (True, "")
            kept = [new.id]
            # Agents say at most 30 a minute; what they store is not slowed.
            for number in range(40):
                other = tool_call(robot, f"call {number}", now())
                assert await wire.publish(other) == (True, "")
                kept.append(other.id)
            began, taken = time.monotonic(), 0
            while taken < 100:
                accepted, text = await wire.publish(robot.sign(9, [], str(taken), now()))
                if not accepted:
                    break
                taken += 1
            came_free = (time.monotonic() - began) / 2 + 1
            assert text.startswith("rate-limited: ")
            assert 30 <= taken <= 30 + came_free
        await rookery.stop()
        told = await done("policy", "sweep", "--dry-run", "--data", data, "--json")
        assert SWEPT_BY in told
        await rookery.start()
        async with connected(rookery.url) as wire:
            await wire.log_in(robot, rookery.url, now())
            async with until("the old row is swept") as tries:
                async for _ in tries:
                    left = [row["id"] for row in await wire.query({"kinds": [30095]})]
                    if old.id not in left:
                        break
            assert sorted(left) == sorted(kept)
    assert "Traceback" not in "\n".join(rookery.lines)

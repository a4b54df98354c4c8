"""nmem on two machines of an agent whose records a group reads."""

from __future__ import annotations

from contextlib import closing
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, Nmem
from relay.client.nmem.database import Database
from relay.memory.fields import compact
from relay.memory.nmem.summary import summary_from
from relay.nostr import kinds
from tests import cast
from tests.harness.relay_program import Rookery

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.proves("M-11")
@pytest.mark.parametrize("then", ["nothing more", "the group ends", "removed", "left"])
async def test_what_was_purged_leaves_the_other_machine_whatever_became_of_the_group(
    tmp_path: Path, then: str
) -> None:
    """The kind 5 was a row of the group, and gone with it, or not readable any more."""
    robot, owner = cast.robot, cast.owner

    def machine(name: str) -> Nmem:
        return Nmem(rookery.url, robot, tmp_path / name / "nmem.db", group="tea")

    async with Rookery(tmp_path / "relay") as rookery:
        await rookery.init("--owner", owner.pubkey, "--agent", robot.pubkey)
        await rookery.start()
        async with Client(rookery.url, owner) as client:
            await client.send(kinds.CREATE_GROUP, "", [["h", "tea"]])
            edits = [["h", "tea"], ["name", "Tea"], ["private"], ["closed"]]
            await client.send(kinds.EDIT_METADATA, "", edits)
            for member in (robot, cast.alice):
                await client.send(kinds.PUT_USER, "", [["h", "tea"], ["p", member.pubkey]])
            async with machine("one") as one:
                await one.session("s", "kettle")
                await one.prompt("s", "oolong prompt")
                await one.observe("s", "mark", "oolong observation")
                lists = ("learned", "completed", "next_steps", "files_read", "files_edited")
                told: dict[str, Any] = {"intent": "oolong summary", "notes": None}
                await one.end_session("s", summary_from(told | {name: [] for name in lists}))
                await one.sync()
            async with machine("other") as other:
                await other.sync()
                assert "oolong" in str(await other.context("kettle"))
            async with machine("one") as one:
                await one.purge(session="s", confirm=True)
                assert (await one.sync()).waiting == 0
            for reader in ((), (cast.bob,)):
                async with Client(rookery.url, *reader) as outsider:
                    assert await outsider.query({"kinds": [kinds.DELETION]}) == []
            if then == "the group ends":
                await client.send(kinds.DELETE_GROUP, "", [["h", "tea"]])
            elif then == "removed":
                await client.send(kinds.REMOVE_USER, "", [["h", "tea"], ["p", robot.pubkey]])
            elif then == "left":
                async with Client(rookery.url, robot) as agent:
                    await agent.send(kinds.LEAVE_REQUEST, "", [["h", "tea"]])
            async with machine("other") as other:
                await other.sync()
                assert "oolong" not in str(await other.context("kettle"))
                assert await other.search("oolong") == []


async def test_what_was_deleted_leaves_the_cache_however_many_others_name_it(
    tmp_path: Path,
) -> None:
    """More kinds 5 of another key than the relay returns at once, all later than one's own."""
    robot, most = cast.robot, 3
    async with Rookery(tmp_path / "relay") as rookery:
        await rookery.init(
            "--preset", "open", "--owner", cast.owner.pubkey, "--agent", robot.pubkey
        )
        rookery.set_up("limits", f"max_limit = {most}")
        await rookery.start()
        async with (
            Nmem(rookery.url, robot, tmp_path / "nmem.db") as machine,
            Client(rookery.url, robot) as other_machine,
            Client(rookery.url, cast.alice) as somebody,
        ):
            await machine.mark("oolong", "kettle")
            await machine.sync()
            (record,) = await other_machine.query({"kinds": [kinds.APP_RECORD], "#t": ["nmem"]})
            deleted = await other_machine.send(kinds.DELETION, "", [["e", record.id]])
            for number in range(1, most + 2):
                at = deleted.created_at + number
                named = [["e", record.id]]
                await somebody.publish(cast.alice.sign(kinds.DELETION, named, "", at))
            await machine.sync()
            assert await machine.search("oolong") == []


async def test_what_another_agent_wrote_badly_and_deleted_is_forgotten(tmp_path: Path) -> None:
    """Its id stayed in the cache, and each later synchronisation asked for its deletion."""
    robot, rover = cast.robot, cast.rover
    async with Rookery(tmp_path / "relay") as rookery:
        agents = [each for key in (robot, rover) for each in ("--agent", key.pubkey)]
        await rookery.init("--preset", "open", "--owner", cast.owner.pubkey, *agents)
        await rookery.start()
        async with (
            Nmem(rookery.url, robot, tmp_path / "nmem.db", group="tea") as machine,
            Client(rookery.url, rover) as other,
            Client(rookery.url, cast.owner) as owner,
        ):
            await owner.send(kinds.CREATE_GROUP, "", [["h", "tea"]])
            for key in (robot, rover):
                await owner.send(kinds.PUT_USER, "", [["h", "tea"], ["p", key.pubkey]])
            content = compact(
                {
                    "session_id": "s",
                    "prompt": None,
                    "timestamp": other.now(),
                    "obs_type": "marker",
                    "source_event": "x",
                    "tool_name": None,
                    "file_path": None,
                    "content": "oolong",
                    "metadata": None,
                    "at": 2**63,
                }
            )
            d = f"nmem:obs:s:{sha256(content.encode()).hexdigest()}"
            tags = [["d", d], ["s", "s"], ["h", "tea"], ["t", "nmem"], ["t", "type:marker"]]
            record = await other.send(kinds.APP_RECORD, content, tags)
            await machine.sync()
            assert passed_over(tmp_path / "nmem.db") == [record.id]
            await other.send(kinds.DELETION, "", [["e", record.id], ["h", "tea"]])
            await machine.sync()
            assert passed_over(tmp_path / "nmem.db") == []


def passed_over(path: Path) -> list[str]:
    with closing(Database(path, None)) as cache, cache.reading() as db:
        return [id_ for (id_,) in db.execute("SELECT event_id FROM _rk_passed_over")]

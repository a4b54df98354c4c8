"""relay/console/pages/context.py: what a model is given, for the owners of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from relay.memory.aman.fold import Fold
from relay.memory.aman.prompt import format_prompt
from relay.memory.aman.records import ToolCall, draft_of
from relay.memory.fence import DATA
from relay.memory.nmem.records import (
    Observation,
    Pin,
    Session,
    observation_draft,
    pin_draft,
    session_draft,
)
from relay.memory.nmem.summary import Summary
from relay.memory.snowclaw.groups import GroupMemory
from relay.memory.snowclaw.keys import group_d
from relay.memory.snowclaw.records import record_draft
from tests.cast import alice, bob, carol, owner, robot
from tests.unit.console.browsing import PUBLIC, site
from tests.unit.server.test_app import NOW

if TYPE_CHECKING:
    from typing import Any

    from relay.nostr.keys import SecretKey
    from tests.unit.console.browsing import Browser

HK = "group:tea"
HOME = (
    PUBLIC
    + f'[[actors.household]]\nname = "attic"\nowner = "{alice.npub}"\nagents = ["{carol.npub}"]\n'
)


def path(agent: SecretKey, system: str = "", of: str = "") -> str:
    query = {"agent": agent.pubkey, "system": system, "of": of}
    return f"/console/context.json?{urlencode(query)}"


async def given(browser: Browser, agent: SecretKey, system: str, of: str) -> Any:
    found = (await browser.json(path(agent, system, of)))["made"]
    assert found["bytes"] == len(found["text"].encode())
    assert found["tokens"] == ((len(found["text"]) + 5) // 4 if found["text"] else 0)
    return found


async def test_who_owns_no_agent_is_told_of_none() -> None:
    async with site() as here:
        await here.publish(robot.sign(*draft_of(ToolCall(HK, "", True, "t", None, None, NOW))))  # noqa: FBT003
        for browser in (here.browser(), await here.browser_of(alice)):
            assert (await browser.json("/console/context.json"))["agents"] == []
            for agent in (robot, carol):
                assert (await browser.get(path(agent, "aman", HK))).status == 404
        for who in (owner, robot):
            browser = await here.browser_of(who)
            assert (await browser.json("/console/context.json"))["agents"] == [robot.pubkey]


async def test_the_prompt_of_aman_is_the_one_that_its_program_makes() -> None:
    async with site() as here:
        calls = [
            robot.sign(*draft_of(ToolCall(HK, "", True, f"tool {n}", None, None, NOW + n)))  # noqa: FBT003
            for n in range(2)
        ]
        await here.publish(*calls)
        browser = await here.browser_of(owner)
        found = await given(browser, robot, "aman", HK)
        fold = Fold()
        for event in calls:
            fold.apply(event)
        assert found["text"] == format_prompt(fold.snapshot(HK, robot.pubkey, reader=robot.pubkey))
        assert {each["id"] for each in found["sources"]} == {event.id for event in calls}
        choices = (await browser.json(path(robot)))["choices"]
        assert choices == [{"system": "aman", "of": HK}]


async def test_the_context_of_nmem_has_summaries_fresh_edits_and_pins() -> None:
    async with site() as here:

        def observed(text: str, at: int) -> Any:
            seen = Observation("s1", at, "file_edit", text, text, "Edit", f"{text}.py")
            return robot.sign(*observation_draft(seen, "rook"))

        session = Session("s1", "rook", NOW - 60, NOW, (), Summary("mend the gate", (), ()))
        fresh, old, forgotten = (
            observed("fresh", NOW - 30),
            observed("pinned", NOW - 40 * 86_400),
            observed("forgotten", NOW - 40 * 86_400),
        )
        await here.publish(
            robot.sign(*session_draft(session)),
            fresh,
            old,
            forgotten,
            robot.sign(*pin_draft(Pin(old.id, is_pinned=True, at=NOW))),
        )
        browser = await here.browser_of(owner)
        text = (await given(browser, robot, "nmem", "rook"))["text"]
        assert text.startswith('<memory source="nmem"')
        for part in (DATA, "mend the gate", "fresh", "pinned"):
            assert part in text
        assert "forgotten" not in text
        assert {"system": "nmem", "of": "rook"} in (await browser.json(path(robot)))["choices"]


async def test_the_context_of_snowclaw_has_its_parts_with_reasons() -> None:
    async with site() as here:
        await here.make_group("tea", members=[alice, robot])
        memory = GroupMemory(purpose="to drink tea")
        await here.publish(
            robot.sign(*record_draft(memory, group_d("tea"), NOW, "tea")),
            alice.sign(0, [], '{"name": "Alice"}', NOW),
            alice.sign(9, [["h", "tea"]], "the kettle sings", NOW),
            alice.sign(9, [["h", "tea"]], "is it green?", NOW + 1),
            robot.sign(9, [["h", "tea"]], "it is", NOW + 2),
        )
        browser = await here.browser_of(owner)
        found = await given(browser, robot, "snowclaw", "tea")
        for part in ("# Current", "is it green?", "the kettle sings", "Alice", "to drink tea"):
            assert part.lower() in found["text"].lower(), part
        assert found["text"].rstrip().endswith("is it green?")
        assert {piece["kept"] for piece in found["pieces"]} == {True}
        page = await browser.text(path(robot, "snowclaw", "tea").replace(".json", ""))
        assert "Kept and trimmed parts" in page


@pytest.mark.parametrize("private", [("private",), ("private", "hidden")])
async def test_only_what_both_may_read_is_in_it(private: tuple[str, ...]) -> None:
    async with site(policy=HOME) as here:
        await here.make_group("den", *private, members=[bob, carol])
        await here.make_group("hall", *private, members=[alice])
        await here.make_group("tea", *private, members=[alice, carol])
        for group, who in (("den", bob), ("hall", alice), ("tea", alice)):
            await here.publish(who.sign(9, [["h", group]], f"said in the {group}", NOW))
        of_alice, of_carol = await here.browser_of(alice), await here.browser_of(carol)
        # Of the agent's groups that its owner is not in, and of those of its owner alone: nothing.
        for browser, group, sees in (
            (of_alice, "den", False),
            (of_alice, "hall", False),
            (of_alice, "tea", True),
            (of_carol, "den", True),
            (of_carol, "hall", False),
        ):
            response = await browser.get(path(carol, "snowclaw", group))
            text = await response.text()
            assert (f"said in the {group}" in text) is sees, (group, text)
        choices = (await of_alice.json(path(carol)))["choices"]
        assert choices == [{"system": "snowclaw", "of": "tea"}]

"""A session of a coding agent in the console: the blocks that the terminal draws too."""

from __future__ import annotations

import asyncio
from threading import Event as Flag
from threading import current_thread
from typing import TYPE_CHECKING

from relay.console.pages import memory
from relay.console.places import Places
from relay.console.sessions import Standing
from tests.cast import owner, person, robot, rover
from tests.unit.console.browsing import PUBLIC, site
from tests.unit.console.test_pages import PAYLOADS, check_harmless
from tests.unit.memory.transcripts.telling import (
    SESSION,
    call_block,
    line,
    result_block,
    text_block,
    told,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from relay.memory.transcripts.display import Note
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey


async def test_tools_are_folded_and_changes_of_files_are_diffs() -> None:
    edit = call_block("t", "Edit", file_path="x.py", old_string="a\nb", new_string="a\nB")
    data = (
        line(message="go")
        + line("assistant", message=[text_block("I go"), edit])
        + line(message=[result_block("t", "done")])
        + b'{"type":"summary","summary":"Tea"}\n'
    )
    async with site() as here:
        await here.publish(*told(data))
        browser = await here.browser_of(robot)
        found = await browser.json(f"/console/session.json?id={SESSION}")
        shown = [(each["speaker"], each["title"], each["head"]) for each in found["blocks"]]
        assert shown == [
            ("user", "user", []),
            ("agent", "assistant", []),
            ("tool", "tool_call", ["Edit: x.py", "→ done"]),
            ("other", "summary", []),
        ]
        page = await browser.text(f"/console/session?id={SESSION}")
        assert "<del>-b</del>" in page
        assert "<ins>+B</ins>" in page
        assert "Edit: x.py" in page
        stranger = await here.browser_of(person("eve"))
        await stranger.text(f"/console/session?id={SESSION}", 404)


async def test_the_order_is_that_of_the_replies_and_a_broken_chain_is_told() -> None:
    notes: list[Event] = []
    for number in range(9):
        thread = []
        if notes:
            thread = [["e", notes[0].id, "", "root"], ["e", notes[-1].id, "", "reply"]]
        tags = [["d", SESSION], *thread, ["role", "user"]]
        notes.append(robot.sign(1988, tags, str(number), 1_700_000_000))
    async with site() as here:
        await here.publish(*sorted(notes[:4] + notes[5:], key=lambda note: note.id))
        browser = await here.browser_of(robot)
        found = await browser.json(f"/console/session.json?id={SESSION}")
        assert [each["lines"][0]["text"] for each in found["blocks"]] == [*"01235678"]
        assert found["notice"] == "the reply chain is broken: 1 note is placed by time"


async def test_the_authors_of_a_session_of_several_keys_are_named() -> None:
    def used(by: SecretKey, command: str) -> list[Event]:
        call = call_block("t", "Bash", command=command)
        return told(line("assistant", message=[text_block("I run"), call]), by=by)

    async with site(
        policy=f'{PUBLIC}[actors]\nagents = ["{robot.npub}", "{rover.npub}"]\n'
    ) as here:
        await here.publish(*used(robot, "ls"))
        browser = await here.browser_of(owner)
        assert 'class="person"' not in (await browser.text(f"/console/session?id={SESSION}"))
        await here.publish(*used(rover, "curl"))
        found = await browser.json(f"/console/session.json?id={SESSION}")
        tools = {each["pubkey"]: each["head"] for each in found["blocks"] if each["folds"]}
        assert tools == {robot.pubkey: ["Bash: ls"], rover.pubkey: ["Bash: curl"]}
        page = await browser.text(f"/console/session?id={SESSION}")
        for key in (robot, rover):
            assert page.count(f'<a class="person" href="/console/person?key={key.pubkey}"') == 2


async def test_texts_of_a_session_stay_texts() -> None:
    data = b"".join(
        line(message=text)
        + line(
            "assistant",
            message=[call_block(f"t{at}", text, command=text, old_string=text, new_string="x")],
        )
        + line(message=[result_block(f"t{at}", text)])
        for at, text in enumerate(PAYLOADS)
    )
    async with site() as here:
        await here.publish(*told(data))
        browser = await here.browser_of(robot)
        check_harmless(await browser.text(f"/console/session?id={SESSION}"))


async def test_a_session_is_drawn_in_a_thread_of_the_console_whose_time_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages that were abandoned held all threads for minutes: no search, no commit went on."""
    drawn_in: list[str] = []
    counted: list[tuple[Standing, float]] = []

    def blocks(*_: object) -> list[object]:
        drawn_in.append(current_thread().name)
        return []

    def count(_: object, standing: Standing, seconds: float) -> None:
        counted.append((standing, seconds))

    monkeypatch.setattr(memory, "blocks", blocks)
    monkeypatch.setattr(Places, "count", count)
    async with site() as here:
        await here.publish(*told(line(message="go")))
        browser = await here.browser_of(robot)
        assert (await browser.json(f"/console/session.json?id={SESSION}"))["blocks"] == []
    assert [name.partition("_")[0] for name in drawn_in] == ["console"]
    assert {standing for standing, _ in counted} == {Standing.KNOWN}
    assert len(counted) == 3  # the thread, the page's queries, its answer


async def test_owners_see_sessions_while_those_of_others_take_long_to_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two that had been abandoned held both threads."""
    begun, ends, loop = asyncio.Event(), Flag(), asyncio.get_running_loop()

    def slow(given: Iterable[Note], *_: object) -> list[object]:
        if [note.author for note in given] != [owner.pubkey]:
            loop.call_soon_threadsafe(begun.set)
            ends.wait()
        return []

    monkeypatch.setattr(memory, "blocks", slow)
    async with site() as here:
        own = owner.sign(1988, [["d", "own"], ["role", "user"]], "go", 1_700_000_000)
        await here.publish(own, *told(line(message="go")))
        agents, owners = await here.browser_of(robot), await here.browser_of(owner)
        path = f"/console/session.json?id={SESSION}"
        asked = [asyncio.create_task(agents.get(path)) for _ in range(2)]
        try:
            await begun.wait()
            await owners.json("/console/session.json?id=own")
        finally:
            ends.set()
        assert [(await each).status for each in asked] == [200, 200]

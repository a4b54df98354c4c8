"""What leaves a folder as public rows is what anybody may read, by other rows too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from relay.cli import run
from relay.cli.data_folder import open_folder
from relay.facts import Origin
from relay.nostr.event import event_from_raw
from relay.nostr.filters import Filter
from relay.server.control import Rows
from tests.cast import owner
from tests.harness.clock import now

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event

RULE = (
    '[[rule]]\nname = "like their notes"\nmatch = { kinds = [1111] }\nread = ["target"]\n'
    'target = { kinds = [1], tag = "r" }\n'
)


def test_what_points_to_a_public_row_is_public(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert run(["init", str(folder), "--owner", owner.npub]) == 0
    (folder / "policies" / "20-own.toml").write_text(RULE)
    at = now()
    events = [
        owner.sign(9007, [["h", "tea"]], "", at - 50),
        owner.sign(1, [["r", "open"]], "said to all", at - 40),
        owner.sign(1, [["r", "shut"], ["h", "tea"]], "said in the group", at - 30),
        *[owner.sign(1111, [["r", about]], about, at - 20) for about in ("open", "shut", "none")],
    ]
    assert asyncio.run(_public(folder, events)) == ["said to all", "open"]


async def _public(folder: Path, events: list[Event]) -> list[str]:
    async with open_folder(folder) as opened:
        answers = await opened.submit(events, Origin.IMPORT)
        assert answers == [(True, "")] * len(events)
        filter_ = Filter(kinds=frozenset({1, 1111}))
        pages = [page async for page in opened.events(filter_, Rows.PUBLIC)]
        return [event_from_raw(raw).content for page in pages for raw in page]

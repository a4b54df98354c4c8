"""Events by an agent and by an owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from tests.cast import owner, robot

if TYPE_CHECKING:
    from relay.memory.draft import Draft
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

AT = 1_771_372_800
TAGS_OF_COLLECTIVE = [
    ["snow:tier", "public"],
    ["snow:model", "m"],
    ["snow:confidence", "0.5"],
    ["snow:source", robot.pubkey],
    ["snow:version", "1"],
]


def record(
    d: str, fields: object = None, *tags: list[str], by: SecretKey = robot, at: int = AT
) -> Event:
    """A memory of the agent with this JSON as its content."""
    content = orjson.dumps({} if fields is None else fields).decode()
    return by.sign(30078, [["d", d], *tags], content, at)


def text_record(d: str, content: str, *tags: list[str], by: SecretKey = robot) -> Event:
    return by.sign(30078, [["d", d], *tags], content, AT)


def config(
    scope: str, fields: object = None, *tags: list[str], by: SecretKey = owner, at: int = AT
) -> Event:
    """A configuration; empty content without `fields`."""
    content = "" if fields is None else orjson.dumps(fields).decode()
    return by.sign(30078, [["d", f"snowclaw:config:{scope}"], *tags], content, at)


def signed(draft: Draft, by: SecretKey = robot) -> Event:
    return by.sign(*draft)

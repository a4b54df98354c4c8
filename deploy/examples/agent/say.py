"""Sends a message to a group and prints the answer: python say.py tea "robot, are you there?"

Finds relay and key as `rookery` does: ROOKERY_RELAY, ROOKERY_KEY, client.toml, else ./data.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from relay.client import Client
from relay.client.settings import Actor, find_settings
from relay.errors import RookeryError


def printable(text: str) -> str:
    """Another's text without what would control this terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "�" for char in text)


async def say(group: str, text: str) -> None:
    found = find_settings(
        Actor.OWNER, relay=None, key_file=None, environ=os.environ, home=Path.home(), here=Path()
    )
    async with Client(found.relay, found.key) as client:
        message = await client.send(9, text, [["h", group]])
        async with (
            asyncio.timeout(20),
            client.subscribe({"kinds": [9], "#h": [group], "#q": [message.id]}) as answers,
        ):
            print(printable((await anext(answers)).content))  # noqa: T201  command-line output


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit('usage: python say.py GROUP "TEXT"')
    try:
        asyncio.run(say(*sys.argv[1:]))
    except TimeoutError:
        sys.exit("no answer within 20 s")
    except RookeryError as error:
        sys.exit(printable(str(error)))

"""relay/memory/snowclaw/respond.py: which messages an agent answers."""

from __future__ import annotations

import pytest

from relay.memory.snowclaw.config import RespondMode
from relay.memory.snowclaw.respond import Agent, is_mentioned, should_respond
from tests.cast import alice, owner, robot

ME = Agent(robot.pubkey, ("Snowclaw", "Schneeklaue ß"), frozenset({owner.pubkey}))
MINE = "e" * 64
pytestmark = pytest.mark.proves("S-35")


def mentions(text: str, *tags: list[str], agent: Agent = ME) -> bool:
    return is_mentioned(alice.sign(9, list(tags), text, 1), agent, frozenset({MINE}))


@pytest.mark.parametrize(
    "text",
    [
        "snowclaw?",
        "ask SNOWCLAW",
        "@Snowclaw: hi",
        "SCHNEEKLAUE SS!",
        f"nostr:{robot.npub}",
        robot.npub.upper(),
        f"key {robot.pubkey}",
        "@all",
        "hello @ALL!",
        "(@All)",
    ],
)
def test_a_text_that_holds_a_name_or_a_key_is_for_the_agent(text: str) -> None:
    assert mentions(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello all",
        "snow claw",
        "snowclaws are not one",
        "a supersnowclaw",
        "snowclaw_2 is another",
        alice.npub,
        f"{robot.npub}q",
        f"{robot.pubkey}00",
        "mail@allhands.org",
        "mail me@all",
    ],
)
def test_any_other_text_is_not(text: str) -> None:
    assert not mentions(text)


def test_tags_say_it_too() -> None:
    assert mentions("", ["p", robot.pubkey])
    assert mentions("", ["p", alice.pubkey], ["p", robot.pubkey, "wss://x"])
    assert mentions("", ["e", MINE])
    assert mentions("", ["e", "f" * 64], ["e", MINE, "", "reply"])
    assert mentions("", ["q", MINE])
    assert not mentions("", ["p", alice.pubkey], ["e", "f" * 64], ["t", MINE], ["p"], ["e"], [])


def test_an_agent_without_a_name_is_not_in_every_text() -> None:
    assert not mentions("hello", agent=Agent(robot.pubkey, ("",)))


def test_the_mode_decides() -> None:
    def answered(text: str, mode: RespondMode) -> list[bool]:
        return [
            should_respond(by.sign(9, [], text, 1), mode, ME, frozenset())
            for by in (alice, owner, robot)
        ]

    assert answered("hello", RespondMode.ALL) == [True, True, False]
    assert answered("hello", RespondMode.MENTION) == [False, False, False]
    assert answered("hello @all", RespondMode.MENTION) == [True, True, False]
    assert answered("hello @all", RespondMode.OWNER) == [False, True, False]
    assert answered("hello @all", RespondMode.NONE) == [False, False, False]

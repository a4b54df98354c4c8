"""Planted texts, through every way into Snowclaw's memory and chat, into the context for a model.

A way is judged by the same texts as all others, so a new way is one function.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Snowclaw
from relay.memory.draft import Draft
from relay.memory.snowclaw.chat import Chat
from relay.memory.snowclaw.context import HistoryStyle, Section, TrimOrder
from relay.memory.snowclaw.encryption import OwnKey, encrypted
from relay.memory.snowclaw.respond import Agent
from relay.memory.snowclaw.system_prompt import IN_DIRECT_MESSAGES, RULES
from relay.memory.snowclaw.working_copy import WorkingCopy
from relay.nostr.nip59 import unsigned
from tests import cast
from tests.harness.fake_relay import FakeRelay
from tests.leaks.planted import (
    END,
    EVE,
    MARK,
    PLANTED,
    by,
    check_authors,
    check_fenced,
    check_head,
    check_record,
    check_shown,
    each_planted,
    lines_of,
    looks,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.memory.snowclaw.context import Context
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

AT = 1_700_000_000
GROUP = "tea"
USER = f"snowclaw:memory:npub:{cast.alice.pubkey[:32]}"
PRIVATE = f"snowclaw:private:npub:{cast.alice.pubkey[:32]}"
SYSTEM = "Be kind."


@cache
def said(text: str, signer: SecretKey = EVE, at: int = AT, group: str = GROUP) -> Event:
    return signer.sign(9, [["h", group]], text, at)


def record(d: str, fields: object, signer: SecretKey, *tags: list[str]) -> Event:
    content = fields if isinstance(fields, str) else json.dumps(fields)
    return signer.sign(30078, [["d", d], *tags], content, AT)


def profile(name: str, signer: SecretKey = EVE, field: str = "name") -> Event:
    return signer.sign(0, [], json.dumps({field: name}), AT)


@dataclass(frozen=True, slots=True)
class Way:
    """How a text comes to an agent, and whose it is."""

    plant: Callable[[str], list[Event]]
    author: SecretKey | None = EVE
    """Whose name its lines bear; None: the agent's own."""
    sender: SecretKey = cast.alice
    """Of the message to answer."""
    is_told: bool = True
    is_owners_note: bool = False
    group: str = GROUP


def _of_user(signer: SecretKey, **plant: Callable[[str], object]) -> Callable[[str], list[Event]]:
    ((field, value),) = plant.items()
    return lambda text: [record(USER, {field: value(text)}, signer)]


def _of_group(signer: SecretKey, **plant: Callable[[str], object]) -> Callable[[str], list[Event]]:
    ((field, value),) = plant.items()
    return lambda text: [record("snowclaw:memory:group:tea", {field: value(text)}, signer)]


def _encrypted_by_robot(signer: SecretKey) -> Callable[[str], list[Event]]:
    """What the agent noted for itself alone, in a record of `signer`."""

    def plant(text: str) -> list[Event]:
        draft = Draft(30078, [["d", USER]], json.dumps({"notes": [text]}), AT)
        return [signer.sign(*encrypted(draft, OwnKey.of(cast.robot), bytes(32)))]

    return plant


def _listed(text: str) -> list[str]:
    return [text]


def _dated(text: str) -> list[list[Any]]:
    return [[text, AT]]


RELAY = cast.person("relay")
OTHER = cast.rover
"""Another agent, listed in the settings."""
WAYS = {
    "message": Way(lambda text: [said(text)]),
    "the message to answer": Way(lambda _: [], sender=EVE),
    "name": Way(lambda text: [profile(text), said(MARK)]),
    "display name": Way(lambda text: [profile(text, field="display_name"), said(MARK)]),
    "name of who is answered": Way(lambda text: [profile(text), said(MARK)], sender=EVE),
    "remembered name": Way(_of_user(cast.robot, display_names=_dated), None),
    "own note": Way(_of_user(cast.robot, notes=_listed), None),
    "own note for an owner": Way(
        _of_user(cast.robot, owner_notes=_listed), None, is_owners_note=True
    ),
    "own preference": Way(_of_user(cast.robot, preferences=lambda text: {"x": text}), None),
    "own purpose": Way(_of_group(cast.robot, purpose=str), None),
    "own private note": Way(
        lambda text: [
            record(PRIVATE, " ".join(text.split()), cast.robot),
            record(USER, {}, cast.robot, ["h", GROUP]),
        ],
        None,
        is_owners_note=True,
    ),
    "own encrypted note": Way(_encrypted_by_robot(cast.robot), None),
    "own encrypted note pasted by an owner": Way(_encrypted_by_robot(cast.owner), is_told=False),
    "own encrypted note pasted by another": Way(_encrypted_by_robot(OTHER), is_told=False),
    "note": Way(_of_user(OTHER, notes=_listed), OTHER),
    "note for an owner": Way(_of_user(OTHER, owner_notes=_listed), OTHER, is_owners_note=True),
    "name of a preference": Way(_of_user(OTHER, preferences=lambda text: {text: "x"}), OTHER),
    "preference": Way(_of_user(OTHER, preferences=lambda text: {"x": text}), OTHER),
    "name remembered by another": Way(_of_user(OTHER, display_names=_dated), None),
    "note of an owner": Way(_of_user(cast.owner, notes=_listed), cast.owner, is_owners_note=True),
    "purpose": Way(_of_group(OTHER, purpose=str), OTHER),
    "theme": Way(_of_group(OTHER, themes=_listed), OTHER),
    "decision": Way(_of_group(OTHER, decisions=_dated), OTHER),
    "group id": Way(lambda _: [], is_told=False, group="planted"),
    "stranger's note": Way(_of_user(EVE, notes=_listed), is_told=False),
    "stranger's purpose": Way(_of_group(EVE, purpose=str), is_told=False),
    "stranger's configuration": Way(
        lambda text: [record("snowclaw:config:global", {"respond_mode": text}, EVE)], is_told=False
    ),
    "stranger's collective memory": Way(
        lambda text: [record(f"snow:memory:{MARK}", {"summary": text}, EVE)], is_told=False
    ),
    "record of another group": Way(
        lambda text: [record(USER, {"notes": [text]}, OTHER, ["h", "den"])], is_told=False
    ),
    "message of another group": Way(lambda text: [said(text, group="den")], is_told=False),
    "group's name and about": Way(
        lambda text: [RELAY.sign(39000, [["d", GROUP], ["name", text], ["about", text]], text, AT)],
    ),
    "labels of members": Way(
        lambda text: [
            RELAY.sign(kind, [["d", GROUP], ["p", cast.alice.pubkey, text]], text, AT)
            for kind in (39001, 39002, 39003)
        ],
        is_told=False,
    ),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


STYLES = [(trim_order, style) for trim_order in TrimOrder for style in HistoryStyle]


def made(way: Way, text: str) -> Context:
    key = OwnKey.of(cast.robot)
    copy = WorkingCopy(cast.robot.pubkey, [cast.owner.pubkey], [OTHER.pubkey], key=key)
    agent = Agent(cast.robot.pubkey, (), copy.owners)
    chat = Chat(agent, copy, *STYLES[PLANTED.index(text) % len(STYLES)])
    for event in way.plant(text):
        copy.apply(event)
        chat.see(event)
    group = text if way.group == "planted" else way.group
    chat.fill([said("before", cast.bob, AT + 1, group)])
    current = said(text if way.sender is EVE else "now", way.sender, AT + 2, group)
    return chat.assemble(current, SYSTEM, 20_000)


def check_context(
    text: str, author: SecretKey | None, sender: SecretKey, *, is_owners_note: bool
) -> None:
    """The layout of a context for a model: the system prompt, one fence, the message to answer; no
    line that passes for a heading, a header or an owner's note; each message under its author's
    name."""
    check_shown(text)
    known = [each.npub for each in (cast.robot, author, sender, cast.bob) if each is not None]
    check_authors(text, known)
    lines = lines_of(text)
    begin = next(number for number, line in enumerate(lines) if line.startswith("<memory "))
    end = lines.index(END)
    check_system_prompt(lines[:begin], author)
    check_fenced("\n".join(lines[begin : end + 1]))
    check_head(lines[begin])
    assert lines[end + 1 : end + 3] == ["", "# CURRENT MESSAGE"]
    assert len(re.findall(r"<[\s/]*memory\b", looks(text))) == 2
    headings = [line for line in lines if re.match(r"\s*#", looks(line)) and _is_section(line)]
    assert headings == [f"# {section}" for section in Section if f"# {section}" in headings]
    for label in ("owner", "sender"):
        assert sum(re.match(rf"\s*{label}\s*:", looks(line)) is not None for line in lines) == 1
    owners = [line for line in lines if re.match(r"\s*-\s*owner\s*:", looks(line))]
    assert len(owners) == is_owners_note
    check_headers(lines, sender)


def check_headers(lines: list[str], sender: SecretKey) -> None:
    """Messages bear their authors' names, and none passes for an owner's."""
    headers = [line for line in lines if re.match(r"\s*\[(nostr:|[^\]]*\]:)", looks(line))]
    for line in headers:
        npubs = {each.npub[:20] for each in (EVE, sender, cast.bob)}
        assert re.search(r"(?:from=| ?\[)[^()\[\]=#]+ \((npub1\w+)…\)[ \]]", line), line
        assert any(f"({npub}…)" in line for npub in npubs), line
        assert "owner=true" not in line


def check_system_prompt(lines: list[str], author: SecretKey | None) -> None:
    """Its lines begin with the program's words, and hold of others' texts a name at most."""
    assert (lines[0], lines[-2:]) == ("# SYSTEM PROMPT", [SYSTEM, ""])
    begins = ("You are ", "Your owner is ", "You are in the group #", *RULES.splitlines())
    for line, begin in zip(lines[1:-2], begins, strict=True):
        assert line.startswith(begin)
        told = looks(line.removeprefix(begin))
        if author is not None and MARK in told:
            assert re.fullmatch(r'[^"]{0,45}(, called "[^"]{0,40}")?\.', told), told


def _is_section(line: str) -> bool:
    return any(section.lower() in looks(line) for section in Section)


@pytest.mark.proves("G-23", "S-37", "S-38", "S-40")
def test_a_context_tells_it_fenced_with_its_author_or_not_at_all(way: Way) -> None:
    for text in each_planted():
        context = made(way, text)
        told = context.text
        check_context(told, way.author, way.sender, is_owners_note=way.is_owners_note)
        assert (MARK in told) == way.is_told or way.group == "planted"
        if way.author in (OTHER, cast.owner):
            marked = [line for line in told.splitlines() if MARK in line]
            assert marked
            assert all(line.endswith(by(way.author.npub)) for line in marked)
        # Nor do its parts end a fence that a program puts around them.
        for part in (*context.sections.values(), *(piece.text for piece in context.pieces)):
            assert not re.search(r"<[\s/]*memory\b", looks(part))
            check_shown(part)


@pytest.mark.proves("G-23", "S-37", "S-38")
def test_a_direct_message_is_fenced_as_those_of_groups_are() -> None:
    def direct(text: str, at: int) -> Event:
        return unsigned(EVE.pubkey, 14, [["p", cast.robot.pubkey]], text, at)

    for text in each_planted():
        copy = WorkingCopy(cast.robot.pubkey, [cast.owner.pubkey])
        chat = Chat(Agent(cast.robot.pubkey, (), copy.owners), copy)
        chat.see(profile(text))
        chat.see(direct(text, AT))
        told = chat.assemble(direct(text, AT + 1), SYSTEM, 20_000).text
        assert MARK in told.partition(END)[0]
        place = told.partition("# SYSTEM PROMPT\n")[2].splitlines()[2]
        assert place == IN_DIRECT_MESSAGES
        check_fenced(told[told.index("<memory ") : told.index(f"\n{END}\n") + len(END) + 1])
        check_authors(told, [EVE.npub, cast.robot.npub])
        check_headers(told.splitlines(), EVE)


@pytest.mark.proves("G-23", "S-33")
async def test_what_is_recalled_is_fenced_with_its_author() -> None:
    async with FakeRelay() as relay:
        for number, text in enumerate(PLANTED):
            relay.events += [
                record(f"snowclaw:core:{number}", text, OTHER),
                record(f"snowclaw:core:{text}", f"{MARK} {number}", OTHER),
                record(f"snowclaw:daily:{number}", text, EVE),
                record(f"snowclaw:own:{number}", text, cast.robot),
            ]
        relay.events.append(profile(PLANTED[24], OTHER))
        async with Snowclaw(
            relay.url, cast.robot, cast.owner.npub, agents=[OTHER.pubkey], groups=[GROUP]
        ) as claw:
            await claw.load()
            await claw.learn_name(OTHER.pubkey)
            found = await claw.recall(MARK, 999)
    assert {hit.event.pubkey for hit in found} == {OTHER.pubkey, cast.robot.pubkey}
    assert len(found) == 3 * len(PLANTED)
    for hit in found:
        if hit.event.pubkey == OTHER.pubkey:
            check_record(hit.fenced, OTHER.npub)
        else:
            check_fenced(hit.fenced)
            check_authors(hit.fenced, [])

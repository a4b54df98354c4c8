"""Two agents, their owner, two members and an outsider, in two groups, on one relay.

An Aman-style assistant and a Snowclaw-style agent write memory, the relay is killed under them,
their caches are deleted, and afterwards all is there, for everybody who may read it and for nobody
else. Run it with `-s` to see what the owner sees at the terminal.
"""

from __future__ import annotations

import shlex
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from relay.client import Aman, Client, Snowclaw
from relay.client.writer import Outcome
from tests import cast
from tests.harness.relay_program import Rookery, connected, eventually, outputs, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.keys import SecretKey
    from tests.harness.relay_program import Wire

pytestmark = pytest.mark.slow

ROBOT, ROVER = cast.robot, cast.rover
"""An assistant that remembers by Aman; one that lives in groups, by Snowclaw."""
MEMBERS: Final = {
    "tea": {"owner": cast.owner, "robot": ROBOT, "rover": ROVER, "alice": cast.alice},
    "coffee": {"owner": cast.owner, "rover": ROVER, "bob": cast.bob},
}
PEOPLE: Final[dict[str, SecretKey | None]] = {
    **MEMBERS["tea"],
    **MEMBERS["coffee"],
    "outsider": cast.stranger,
    "nobody": None,
}
KINDS: Final = [9, 30078, 30093, 30094, 30095, 30096, 30097]
WORDS: Final = ("oolong", "arabica", "kettle", "grinder", "spout", "beans", "steep")
"""Each is in the text of some record."""
ALL_IDS: Final = "6100000200"
"""Negentropy: we have nothing, say all that you have."""
ALICE: Final = cast.alice.npub


class Terminal:
    """Commands, one after the other, with what they print."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("COLUMNS", "100")
        self._monkeypatch = monkeypatch
        self.url = ""

    def tells(self, what: str) -> None:
        print(f"\n# {what}")

    async def runs(self, who: str, *args: str, code: int = 0) -> str:
        """Both streams."""
        key = PEOPLE[who]
        assert key is not None
        self._monkeypatch.setenv("ROOKERY_RELAY", self.url)
        self._monkeypatch.setenv("ROOKERY_KEY", key.nsec)
        ended, out, err = await outputs(*args)
        text = out.decode() + err
        print(f"{who}$ {shlex.join(['rookery', *args])}\n{text}", end="")
        assert ended == code, (args, text)
        return text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    return Terminal(monkeypatch, tmp_path)


@asynccontextmanager
async def agents(url: str, folder: Path) -> AsyncIterator[tuple[Aman, Snowclaw]]:
    async with (
        Aman(url, ROBOT, folder=folder / "robot") as aman,
        Snowclaw(
            url,
            ROVER,
            cast.owner.npub,
            folder=folder / "rover",
            names=["rover"],
            groups=["tea", "coffee"],
        ) as claw,
    ):
        await claw.start()
        yield aman, claw


@pytest.mark.proves("G-16", "G-17", "S-26", "S-32", "S-33")
async def test_two_agents_remember_and_nobody_hears_what_is_not_theirs(
    tmp_path: Path, terminal: Terminal
) -> None:
    async with Rookery(tmp_path / "relay") as rookery:
        await rookery.init("--owner", cast.owner.npub, "--agent", ROBOT.npub, "--agent", ROVER.npub)
        await rookery.start()
        terminal.url = rookery.url
        terminal.tells("An owner makes two groups; alice is in one, bob in the other.")
        for group, people in MEMBERS.items():
            others = [key.npub for name, key in people.items() if name != "owner"]
            await terminal.runs("owner", "group", "create", group, "--name", group.title())
            await terminal.runs("owner", "group", "add", group, *others)

        async with AsyncExitStack() as ears:
            listening = {
                name: await ears.enter_async_context(connected(rookery.url)) for name in PEOPLE
            }
            for name, wire in listening.items():
                await log_in(wire, PEOPLE[name], rookery.url)
                await wire.send("REQ", "live", {"kinds": [1, *KINDS], "since": 0})
            terminal.tells("Both agents write.")
            async with agents(rookery.url, tmp_path) as (aman, claw):
                await write_memory(aman, claw)
                await talk(rookery.url)
                await eventually(
                    "rover has heard both groups",
                    lambda: claw.history("tea") and claw.history("coffee"),
                )
                await claw.flush()
                await look(terminal)
                await heard_only_theirs(listening, rookery.url)

                terminal.tells("kill -9 of the relay; the agents go on, and end without it.")
                await rookery.stop(signal.SIGKILL)
                await eventually(
                    "both know that it is away", lambda: not (aman.is_online or claw.is_online)
                )
                written = [
                    await aman.add_tool("u-alice", "timer", success=True, content="steep: 3 min"),
                    await aman.set_preference("u-alice", "prefers oolong, no sugar"),
                ]
                claw.note_user(ALICE, "asked for the spout")
                written += await claw.flush()
                assert {one.outcome for one in written} == {Outcome.QUEUED}
                known = claw.users(), claw.groups()

        delete(tmp_path, "*.cache*")
        await rookery.start("--port", rookery.url.rsplit(":", 1)[1].rstrip("/"))
        terminal.tells("The relay is back, the agents too, with their caches deleted.")
        async with agents(rookery.url, tmp_path) as (aman, claw):
            async with until("nothing waits any more") as tries:
                async for _ in tries:
                    if await aman.waiting() + await claw.waiting() == 0:
                        break
            assert await aman.refused() + await claw.refused() == []

        delete(tmp_path, "*")
        async with agents(rookery.url, tmp_path) as (aman, claw):
            assert (claw.users(), claw.groups()) == known
            assert await claw.verify_isolation([cast.alice, cast.bob]) == []
            snapshot = await aman.snapshot("u-alice")
            assert snapshot.preference is not None
            assert snapshot.preference.record.preference == "prefers oolong, no sugar"
            tools = {row.record.content for row in snapshot.tools}
            assert tools == {"steep: 3 min", "the kettle is on"}
            assert snapshot.summary is not None
        await look_again(terminal)
        await nobody_is_given_what_is_not_theirs(rookery.url)


def delete(home: Path, files: str) -> None:
    """… of both agents."""
    for agent in ("robot", "rover"):
        for file in (home / agent).glob(files):
            file.unlink()


async def write_memory(aman: Aman, claw: Snowclaw) -> None:
    await aman.set_preference("u-alice", "prefers oolong")
    await aman.clear("u-alice")
    await aman.set_summary("u-alice", "U: is the kettle on? A: it is", 1)
    await aman.add_tool("u-alice", "kettle", success=True, content="the kettle is on")
    await aman.set_subscriptions("u-alice", ["kettle"])
    await aman.set_preference("group:tea", "short answers about the spout")

    claw.set_purpose("tea", "oolong and its kettle")
    claw.add_decision("tea", "buy a new spout", 1_800_000_000)
    claw.set_purpose("coffee", "arabica beans")
    claw.note_user(ALICE, "likes to steep it long", group="tea")
    claw.note_user(cast.bob.npub, "owns a grinder", group="coffee")
    claw.note_user(cast.carol.npub, "wrote about beans, in private")
    await claw.flush()
    await claw.store("grinder", "the grinder stands in the hall", encrypted=True)


async def talk(url: str) -> None:
    async with Client(url, cast.alice) as alice, Client(url, cast.bob) as bob:
        await alice.send(0, '{"name":"alice"}')
        await alice.send(9, "rover, which oolong shall I take?", [["h", "tea"]])
        await bob.send(9, "rover, whose beans are these?", [["h", "coffee"]])


# -- at the terminal -------------------------------------------------------------------------------


async def look(terminal: Terminal) -> None:
    assert "prefers oolong" in await terminal.runs("robot", "aman", "show", "u-alice")
    assert await terminal.runs("owner", "config", "get", "group:tea") == (
        "respond_mode=mention (default)\ncontext_history=20 (default)\n"
    )
    await terminal.runs(
        "owner", "config", "set", "group:tea", "respond_mode=owner", "context_history=30"
    )
    assert await terminal.runs("rover", "config", "get", "group:tea") == (
        "respond_mode=owner (group)\ncontext_history=30 (group)\n"
    )
    told = await terminal.runs("alice", "config", "set", "group:tea", "respond_mode=all", code=1)
    assert "restricted: only an owner may write config" in told


async def look_again(terminal: Terminal) -> None:
    """After all that: what the owner asks, and what others are told who ask the same."""
    shown = await terminal.runs("robot", "aman", "show", "u-alice")
    assert "steep: 3 min" in shown
    assert "prefers oolong, no sugar" in shown
    shown = await terminal.runs("rover", "memory", "get", ALICE)
    assert "likes to steep it long" in shown
    assert "asked for the spout" in shown
    listed = {
        who: {line.split()[0] for line in (await terminal.runs(who, "memory", "list")).splitlines()}
        for who in ("rover", "alice", "bob")
    }
    memory = "snowclaw:memory:"
    assert listed["rover"] >= listed["alice"] | listed["bob"] | {"snowclaw:core:grinder"}
    assert listed["alice"] == {f"{memory}group:tea", f"{memory}npub:{cast.alice.pubkey[:32]}"}
    assert listed["bob"] == {f"{memory}group:coffee", f"{memory}npub:{cast.bob.pubkey[:32]}"}
    assert (await terminal.runs("outsider", "memory", "list")).startswith("nothing found")
    found = await terminal.runs("rover", "memory", "search", "arabica")
    assert "arabica beans" in found
    for who in ("alice", "outsider"):
        assert await terminal.runs(who, "memory", "search", "arabica") == "nothing found\n"
        told = await terminal.runs(who, "memory", "get", "group:coffee", code=1)
        assert told == "no memory for group:coffee\n"
        told = await terminal.runs(who, "aman", "show", "u-alice", code=1)
        assert told == "nothing stored for u-alice\n"
    made = await terminal.runs("rover", "context", "tea", "--budget", "400")
    assert "Purpose: oolong and its kettle" in made
    assert "rover, which oolong shall I take?" in made
    for of_coffee in ("arabica", "beans", "grinder"):
        assert of_coffee not in made


# -- on the wire -----------------------------------------------------------------------------------


async def log_in(wire: Wire, key: SecretKey | None, url: str) -> None:
    if key is not None:
        await wire.log_in(key, url, int(time.time()))


def may_read(name: str, event: dict[str, Any]) -> bool:
    """As the tables of memory say it, of what is written here."""
    if tag_of(event, "d").startswith("snowclaw:config:"):
        return name in ("owner", "robot", "rover")
    if group := tag_of(event, "h"):
        return name in MEMBERS[group]
    key = PEOPLE[name]
    return name == "owner" or (key is not None and key.pubkey == event["pubkey"])


def tag_of(event: dict[str, Any], name: str) -> str:
    """Empty when there is none."""
    return next((tag[1] for tag in event["tags"] if tag[0] == name), "")


async def heard_only_theirs(listening: dict[str, Wire], url: str) -> None:
    """What came live while the agents wrote, up to a note that everybody may read."""
    async with Client(url, cast.owner) as owner:
        marker = await owner.send(1, "that was all")
    heard: dict[str, list[dict[str, Any]]] = {}
    for name, wire in listening.items():
        heard[name] = []
        while True:
            frame = await wire.receive()
            if frame[0] == "EVENT" and frame[2]["id"] == marker.id:
                break
            if frame[0] == "EVENT":
                heard[name].append(frame[2])
            else:
                assert frame == ["EOSE", "live"], (name, frame)
    everything = {event["id"]: event for event in heard["owner"]}
    assert len(everything) >= 15
    for name, events in heard.items():
        theirs = {id_ for id_, event in everything.items() if may_read(name, event)}
        assert {event["id"] for event in events} == theirs, name
    assert heard["outsider"] == heard["nobody"] == []


async def nobody_is_given_what_is_not_theirs(url: str) -> None:
    async with connected(url) as wire:
        await log_in(wire, cast.owner, url)
        rows = {event["id"]: event for event in await wire.query({"kinds": KINDS})}
    assert {event["kind"] for event in rows.values()} == set(KINDS)
    for name, key in PEOPLE.items():
        async with connected(url) as wire:
            await log_in(wire, key, url)
            theirs = {id_ for id_, event in rows.items() if may_read(name, event)}
            for filter_, matching in questions(rows):
                expected = matching & theirs
                found = {event["id"] for event in await wire.query(filter_)} & rows.keys()
                assert found == expected, (name, "REQ", filter_)
                assert await number(wire, filter_) == len(expected), (name, "COUNT", filter_)
                told = await ids_told(wire, filter_)
                assert {id_ for id_ in rows if id_ in told} == expected, (name, "NEG", filter_)
            for word in WORDS:
                found = {event["id"] for event in await wire.query({"search": word})}
                assert found <= theirs, (name, "search", word)
                assert name != "owner" or found, word


def questions(
    rows: dict[str, dict[str, Any]],
) -> list[tuple[dict[str, Any], set[str]]]:
    """Filters, each with what matches it."""
    asked: list[tuple[dict[str, Any], set[str]]] = [
        ({"kinds": KINDS}, set(rows)),
        ({"ids": sorted(rows)}, set(rows)),
    ]
    asked += [({"ids": [id_]}, {id_}) for id_ in rows]
    asked += [
        ({"kinds": [kind]}, {id_ for id_, event in rows.items() if event["kind"] == kind})
        for kind in KINDS
    ]
    for author in (ROBOT, ROVER):
        written = {id_ for id_, event in rows.items() if event["pubkey"] == author.pubkey}
        asked.append(({"kinds": KINDS, "authors": [author.pubkey]}, written))
    for name in ("h", "d", "hk"):
        values = {tag[1] for event in rows.values() for tag in event["tags"] if tag[0] == name}
        for value in sorted(values):
            tagged = {id_ for id_, event in rows.items() if [name, value] in event["tags"]}
            asked.append(({"kinds": KINDS, f"#{name}": [value]}, tagged))
    prefix = "snowclaw:memory:npub:"
    of_users = {id_ for id_, event in rows.items() if tag_of(event, "d").startswith(prefix)}
    asked.append(({"kinds": [30078], "#d": [prefix]}, of_users))
    return asked


async def number(wire: Wire, filter_: dict[str, Any]) -> int:
    """What COUNT says; a CLOSED is none."""
    await wire.send("COUNT", "c", filter_)
    frame = await wire.receive()
    return int(frame[2]["count"]) if frame[0] == "COUNT" else 0


async def ids_told(wire: Wire, filter_: dict[str, Any]) -> str:
    """The hex of a negentropy answer: of so few events it has each id."""
    await wire.send("NEG-OPEN", "n", filter_, ALL_IDS)
    frame = await wire.receive()
    if frame[0] != "NEG-MSG":
        assert frame[0] == "NEG-ERR", frame
        return ""
    await wire.send("NEG-CLOSE", "n")
    return str(frame[2])

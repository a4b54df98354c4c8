"""`rookery memory history`, `show --as-of`, `diff`, `restore` and `why`, on a real relay."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from relay.nostr.nip19 import AddressPointer, encode_pointer
from tests import cast
from tests.harness.relay_program import Rookery, connected, outputs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

ROBOT, ALICE = cast.robot, cast.alice
RECORD = f"30023:{ALICE.pubkey}:tea"


@cache
def at() -> int:
    """When this test began, less 1000 s."""
    return int(time.time()) - 1000


class People:
    """Who run commands on one relay."""

    def __init__(self, relay: Rookery, folder: Path) -> None:
        self.relay = relay
        self._folder = folder

    def key_file(self, who: SecretKey) -> Path:
        file = self._folder / f"{who.pubkey[:8]}.key"
        file.touch(0o600)
        file.write_text(who.nsec)
        return file

    async def run(self, who: SecretKey, *args: str, code: int = 0) -> str:
        server = ("--relay", self.relay.url, "--key-file", str(self.key_file(who)))
        ended, out, err = await outputs("memory", *args, *server)
        assert ended == code, (args, out, err)
        return out.decode() + err

    async def json(self, who: SecretKey, *args: str) -> Any:
        server = ("--relay", self.relay.url, "--key-file", str(self.key_file(who)))
        ended, out, err = await outputs("memory", *args, "--json", *server)
        assert ended == 0, (args, out, err)
        return json.loads(out)

    async def publish(self, *events: Event) -> None:
        async with connected(self.relay.url) as wire:
            for key in (cast.owner, ALICE, ROBOT, cast.admin):
                await wire.log_in(key, self.relay.url, int(time.time()))
            for event in events:
                assert await wire.publish(event) == (True, ""), event


@pytest.fixture
async def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[People]:
    at.cache_clear()
    monkeypatch.setenv("HOME", str(tmp_path))
    async with Rookery(tmp_path / "data") as rookery:
        agent = ("--agent", ROBOT.pubkey)
        await rookery.init("--owner", cast.owner.pubkey, *agent, "--preset", "open")
        (tmp_path / "data" / "policies" / "50-history.toml").write_text(
            'include = ["memory-history"]\n[[retention]]\nname = "articles"\n'
            "match = { kinds = [10002, 30023] }\nhistory = { count = 9 }\n"
        )
        await rookery.start()
        yield People(rookery, tmp_path)


def article(number: int, text: str, *tags: list[str]) -> Event:
    return ALICE.sign(30023, [["d", "tea"], *tags], text, at() + number)


@pytest.mark.proves("G-13", "G-27")
async def test_a_change_by_mistake_is_found_and_undone(people: People) -> None:
    """What one types, from the first look to the last."""
    first = article(0, "Oolong\nGreen tea\nBlack tea", ["title", "Tea"])
    second = article(100, "Oolong\nBlack tea", ["title", "Teas"])
    await people.publish(first, second)
    listed = await people.run(cast.bob, "history", RECORD)
    lines = [line.split() for line in listed.splitlines() if "20" in line and "Z" in line]
    assert [line[0] for line in lines] == [second.id[:12], first.id[:12]]
    assert listed.splitlines()[0] == RECORD
    assert "current" in listed

    shown = await people.run(cast.bob, "show", RECORD, "--as-of", str(at() + 50))
    assert "Green tea" in shown.splitlines()
    assert f"version  {first.id[:12]} of" in shown
    assert "replaced 20" in shown
    assert "Green tea" not in await people.run(cast.bob, "show", RECORD)
    assert "Green tea" in await people.run(cast.bob, "show", RECORD, "--version", first.id[:6])

    told = await people.run(cast.bob, "diff", RECORD)
    assert told.splitlines()[0].startswith(f"--- {first.id[:12]}")
    assert {"-Green tea", "-title: Tea", "+title: Teas", " Oolong"} <= set(told.splitlines())
    assert "-title: Teas" in await people.run(cast.bob, "diff", RECORD, second.id[:8], first.id[:8])

    said = await people.run(ALICE, "restore", RECORD, first.id[:8])
    assert said.startswith("restored as ")
    versions = (await people.json(cast.bob, "history", RECORD))["versions"]
    assert [version["id"] for version in versions[1:]] == [second.id, first.id]
    current = await people.json(cast.bob, "show", RECORD)
    assert (current["content"], current["tags"]) == (first.content, first.tags)
    assert current["created_at"] > second.created_at
    assert current["current"] is True
    again = await people.run(ALICE, "restore", RECORD, first.id[:8])
    assert again == "unchanged: the current version is equal\n"


async def test_what_a_version_was_made_from_is_not_restored_with_it(people: People) -> None:
    """It named the version before, so the relay would refuse it."""
    begun = ["noted-since", "1700000000"]
    first = article(0, "one", begun, ["made-from", ""])
    second = article(100, "two", begun, ["made-from", first.id, str(first.created_at)])
    await people.publish(first, second, article(200, "three"))
    shown = await people.run(cast.bob, "diff", RECORD, first.id[:8])
    assert "made-from" not in shown
    assert "noted-since" not in shown
    said = await people.run(ALICE, "restore", RECORD, second.id[:8])
    assert said.startswith("restored as ")
    current = await people.json(cast.bob, "show", RECORD)
    assert (current["content"], current["tags"]) == ("two", second.tags[:-1])


async def test_a_replaceable_kind_and_an_naddr_are_records_too(people: People) -> None:
    relays = [ALICE.sign(10002, [["r", f"wss://{n}.example"]], "", at() + n) for n in (1, 2)]
    await people.publish(*relays, article(1, "one"), article(2, "two"))
    listed = await people.json(cast.bob, "history", f"10002:{ALICE.pubkey}:")
    assert [version["id"] for version in listed["versions"]] == [relays[1].id, relays[0].id]
    naddr = encode_pointer(AddressPointer("tea", ALICE.pubkey, 30023))
    listed = await people.json(cast.bob, "history", naddr)
    assert (listed["record"], len(listed["versions"])) == (RECORD, 2)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("history", f"1:{ALICE.pubkey}:"), 2, "events of kind 1 are never replaced"),
        (("history", "30023:abc:tea"), 2, "no address KIND:PUBLIC-KEY:D"),
        (("history", f"30023:{ALICE.pubkey}:none"), 1, "nothing is stored under 30023:"),
        (("history", "group:none"), 1, "no memory for group:none"),
        (("show", RECORD, "--as-of", "{before}"), 1, "the oldest that is kept is of 20"),
        (("show", RECORD, "--as-of", "yesterday"), 2, "neither Unix seconds nor a time"),
        (("show", RECORD, "--version", "0" * 64), 2, "names no versions of this record"),
        (("diff", RECORD), 1, "is kept"),
        (("restore", RECORD, "{first}"), 1, "only its author can restore it"),
        (("why", "nobody said that"), 1, "no memory record that this key may read contains this"),
    ],
)
async def test_what_cannot_be_done_is_said(
    people: People, args: tuple[str, ...], code: int, says: str
) -> None:
    first = article(0, "one")
    await people.publish(first)
    if args[0] == "restore":
        await people.publish(article(1, "two"))
    given = [each.format(before=at() - 1, first=first.id) for each in args]
    assert says in await people.run(cast.bob, *given, code=code)


async def test_a_version_cannot_draw_on_the_terminal(people: People) -> None:
    await people.publish(article(0, "one"), article(1, "\x1b[2J\u202eone\rtwo"))
    for command in ("show", "diff"):
        printed = await people.run(cast.bob, command, RECORD)
        assert "one" in printed
        assert not {"\x1b", "\u202e", "\r"} & set(printed)


async def test_the_memory_of_an_agent_has_a_history(people: People) -> None:
    for note in ("prefers oolong", "prefers green tea"):
        await people.run(ROBOT, "set", ALICE.npub, "--note", note)
    listed = await people.json(ROBOT, "history", ALICE.npub)
    assert len(listed["versions"]) == 2
    told = await people.run(ROBOT, "diff", ALICE.npub)
    assert [line for line in told.splitlines() if line.startswith("+") and "green tea" in line]
    assert "no memory for" in await people.run(cast.bob, "history", ALICE.npub, code=1)
    record = listed["record"]
    assert "nothing is stored under" in await people.run(cast.bob, "history", record, code=1)


async def test_what_was_encrypted_is_compared_by_its_author(people: People) -> None:
    for text in ("kettle one", "kettle two"):
        await people.run(ROBOT, "set", "core:kettle", text, "--encrypted")
    told = await people.run(ROBOT, "diff", "core:kettle")
    assert "kettle one" in told
    assert "kettle two" in told
    record = (await people.json(ROBOT, "history", "core:kettle"))["record"]
    of_owner = await people.run(cast.owner, "show", record)
    assert "kettle" not in of_owner.split("\n\n", 1)[1]


async def test_why_tells_where_a_line_comes_from(people: People) -> None:
    h = ["h", "tea"]
    await people.publish(
        cast.admin.sign(9007, [h], "", at() + 990),
        cast.admin.sign(9000, [h, ["p", ROBOT.pubkey]], "", at() + 991),
        ROBOT.sign(0, [], '{"name":"Rosie"}', at()),
    )
    for args in (
        ("set", "group:tea", "--decision", "We buy an iron kettle"),
        ("set", "group:tea", "--decision", "We brew oolong at ninety degrees"),
        ("set", "group:tea", "--theme", "cups"),
    ):
        await people.run(ROBOT, *args)
    versions = (await people.json(ROBOT, "history", "group:tea"))["versions"]
    told = await people.json(ROBOT, "why", "oolong at ninety degrees")
    assert told["line"] == "We brew oolong at ninety degrees"
    assert (told["version"], told["versions"]) == (2, 3)
    assert told["id"] == versions[1]["id"]
    assert told["replaced"]["id"] == versions[2]["id"]
    assert (told["signed_by"], told["name"]) == (ROBOT.pubkey, "Rosie")
    printed = await people.run(ROBOT, "why", "We brew OOLONG  at ninety")
    assert f"signed by   Rosie, {ROBOT.npub}" in printed
    assert "version     2 of 3 that are kept; unchanged since" in printed
    assert "which did not say it" in printed
    assert "read by" in printed
    refused = await people.run(cast.bob, "why", "oolong at ninety degrees", code=1)
    assert "no memory record that this key may read contains this" in refused


async def test_why_tells_who_vouched_for_a_claim(people: People) -> None:
    """An entry is never replaced: it is superseded."""
    robot, owner = (str(people.key_file(key)) for key in (ROBOT, cast.owner))
    server = ("--relay", people.relay.url, "--key-file")
    hashed = (await ran("anamnesis", "remember", "The kettle is in B2", *server, robot)).split()[0]
    await ran("anamnesis", "vouch", hashed, *server, owner)
    told = await people.json(ROBOT, "why", "kettle is in B2")
    assert [voucher["id"] for voucher in told["vouchers"]] == [cast.owner.pubkey]
    assert (told["system"], told["versions"], told["replaced"]) == ("X", 1, None)
    printed = await people.run(ROBOT, "why", "kettle is in B2")
    assert f"vouched by  {cast.owner.npub}" in printed
    assert "trust       0.5 attested (confirm 1, disputes 0, anchors 0)" in printed
    assert "read by     the owner, agents and members of any group here" in printed


async def ran(*args: str) -> str:
    code, out, err = await outputs(*args)
    assert code == 0, err
    return out.decode()


async def test_where_nothing_is_kept_that_is_said(people: People) -> None:
    policies = people.relay.folder / "policies"
    (policies / "50-history.toml").unlink()
    await people.relay.stop()
    await people.relay.start()
    await people.publish(article(0, "one"), article(1, "two"))
    told = await people.run(cast.bob, "history", RECORD)
    assert f"the policies of {people.relay.url}" in told
    assert 'keep no old versions; its admin turns that on with include = ["memory-history"]' in told
    assert told.count("Z") == 1

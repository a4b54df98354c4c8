"""`rookery member`, `ban`, `unban`, `allow`, against a relay at work."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import run
from relay.client import Client
from relay.clock import unix_now
from relay.nostr.nip98 import header_for
from tests.cast import alice, bob, carol, owner, robot
from tests.unit.server import test_app
from tests.unit.server.test_app import Relay, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from relay.nostr.keys import SecretKey


class Admin:
    """Runs commands as an owner of the relay."""

    def __init__(self, relay: Relay, capsys: pytest.CaptureFixture[str]) -> None:
        self.relay = relay
        self._capsys = capsys

    async def run(self, *args: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = await asyncio.to_thread(run, list(args))
        said = self._capsys.readouterr()
        return code, said.out, said.err

    async def json(self, *args: str) -> Any:
        code, out, err = await self.run(*args, "--json")
        assert code == 0, err
        return json.loads(out)

    async def members(self) -> dict[str, dict[str, Any]]:
        return {each["pubkey"]: each for each in await self.json("member", "list")}


@pytest.fixture
async def admin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Admin]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROOKERY_KEY", owner.nsec)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(test_app, "NOW", unix_now())  # the commands sign with the clock's time
    async with serving(policy="") as relay:
        monkeypatch.setenv("ROOKERY_RELAY", f"ws://{relay.at}")
        yield Admin(relay, capsys)


async def joined(admin: Admin, who: SecretKey, code: str) -> str:
    visit = await admin.relay.visit()
    _, text = await visit.publishes(who.sign(28934, [["claim", code]], "", test_app.NOW))
    return text


async def test_members_are_added_listed_and_removed(admin: Admin) -> None:
    code, out, _ = await admin.run("member", "add", bob.npub, alice.pubkey, "--reason", "friends")
    assert (code, out) == (0, f"added: {bob.npub}, {alice.npub}\n")
    visit = await admin.relay.visit()
    profile = bob.sign(0, [], '{"name": "Bob"}', test_app.NOW)
    assert await visit.publishes(profile) == (True, "")
    members = await admin.members()
    assert set(members) == {bob.pubkey, alice.pubkey, owner.pubkey, robot.pubkey}
    assert members[bob.pubkey] == {
        "pubkey": bob.pubkey,
        "npub": bob.npub,
        "name": "Bob",
        "roles": [],
        "reason": "friends",
    }
    assert members[owner.pubkey]["reason"] is None
    _, table, _ = await admin.run("member", "list")
    assert "Bob" in table
    assert alice.npub in table
    code, out, _ = await admin.run("member", "remove", bob.npub)
    assert (code, out) == (0, f"removed: {bob.npub}\n")
    assert bob.pubkey not in await admin.members()


async def test_who_was_added_without_a_reason_is_listed_as_added(admin: Admin) -> None:
    await admin.run("member", "add", bob.npub)
    assert (await admin.members())[bob.pubkey]["reason"] == ""
    _, table, _ = await admin.run("member", "list")
    (line,) = (line for line in table.splitlines() if bob.npub in line)
    assert line.split()[-1] == "added"


async def test_an_invite_is_made_listed_and_withdrawn(admin: Admin) -> None:
    made = await admin.json("member", "invite", "--uses", "2", "--days", "0")
    assert (made["left"], made["until"]) == (2, None)
    assert await joined(admin, bob, made["code"]) == "info: welcome to this relay"
    (listed,) = await admin.json("member", "invite", "--list")
    assert listed == {**made, "left": 1}
    code, out, _ = await admin.run("member", "invite", "--list")
    assert code == 0
    assert made["code"] in out
    assert "1 key" in out
    assert await admin.json("member", "invite", "--revoke", made["id"]) == {"id": made["id"]}
    answer = await joined(admin, carol, made["code"])
    assert answer == "restricted: this invite code is not valid"
    code, _, err = await admin.run("member", "invite", "--revoke", made["code"])
    assert code == 1
    assert "there is no invite with this id" in err
    code, out, _ = await admin.run("member", "invite")
    assert code == 0
    assert out.startswith("code  ")
    assert "1 key, until " in out


async def test_a_ban_ends_membership_until_the_key_is_allowed_again(admin: Admin) -> None:
    for command, done in (
        (("allow", bob.npub), f"added: {bob.npub}\n"),
        (("ban", bob.npub, "--reason", "spam"), f"banned: {bob.npub}\n"),
    ):
        assert (await admin.run(*command))[:2] == (0, done)
    assert bob.pubkey not in await admin.members()
    code, _, err = await admin.run("allow", bob.npub)
    assert code == 1
    assert "this key is banned" in err
    assert (await admin.run("unban", bob.npub))[:2] == (0, f"unbanned: {bob.npub}\n")
    assert await admin.json("allow", bob.npub) == [{"pubkey": bob.pubkey, "changed": True}]
    assert await admin.json("allow", bob.npub) == [{"pubkey": bob.pubkey, "changed": False}]
    assert bob.pubkey in await admin.members()


async def test_what_had_no_effect_is_not_called_done(admin: Admin) -> None:
    await admin.run("ban", bob.npub)
    said = await admin.run("unban", bob.npub, alice.npub)
    assert said == (0, f"unbanned: {bob.npub}\n", f"{alice.npub} was not banned\n")
    assert await admin.json("unban", bob.npub) == [{"pubkey": bob.pubkey, "changed": False}]
    _, out, err = await admin.run("member", "remove", carol.npub)
    assert (out, err) == ("", f"{carol.npub} was not added and has not joined\n")


async def test_owners_and_agents_are_listed_before_the_first_change(admin: Admin) -> None:
    members = await admin.members()
    assert {key: each["reason"] for key, each in members.items()} == {
        owner.pubkey: None,
        robot.pubkey: None,
    }
    code, out, err = await admin.run("member", "list")
    assert code == 0
    assert owner.npub in out
    assert "owner or agent" in out
    assert "members of groups: `rookery group show ID`" in err


async def test_members_of_a_relay_without_listmembers_are_of_its_register_and_13534(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def methods(_: object) -> list[str]:
        return ["listallowedpubkeys"]

    monkeypatch.setattr("relay.cli.member._methods", methods)
    code, out, err = await admin.run("member", "list")
    assert (code, out) == (0, "")
    assert "nobody was added or has joined yet" in err
    await admin.run("member", "add", bob.npub, "--reason", "friend")
    members = await admin.members()
    assert members.keys() == {owner.pubkey, robot.pubkey, bob.pubkey}
    assert members[bob.pubkey]["reason"] == "friend"


async def test_an_answer_of_another_form_is_told_as_one(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"pubkey": alice.pubkey, "by": alice.pubkey, "code": "c", "id": "i"}
    wrong: list[object] = ["x", {}, [1], [{}], [{**row, "pubkey": "x", "by": "x", "left": 1}]]
    for answer in wrong:
        monkeypatch.setattr(Client, "call", returning(answer))
        for command in ("member invite", "member invite --list", "member list", "ban --list"):
            code, out, err = await admin.run(*command.split())
            assert (code, out) == (1, "")
            assert "returned an unexpected answer to " in err
        assert (await admin.run("ban", alice.npub))[0] == 1


async def test_no_field_of_an_invite_controls_the_terminal(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = "\x1b[31m\x9b2J\u202e"
    made = {"code": bad, "id": bad, "by": alice.pubkey, "left": 1, "until": None}
    for command in ("member invite", "member invite --list"):
        monkeypatch.setattr(Client, "call", returning([made] if "--list" in command else made))
        code, out, err = await admin.run(*command.split())
        assert (code, err) == (0, "")
        assert not {"\x1b", "\x9b", "\u202e"} & set(out)


def returning(answer: object) -> Callable[..., Awaitable[object]]:
    async def call(*_: object) -> object:
        return answer

    return call


async def test_who_is_no_owner_is_told_which_key_signed(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOKERY_KEY", alice.nsec)
    code, _, err = await admin.run("member", "add", bob.npub)
    assert code == 1
    assert "restricted: only owners of this relay may call" in err
    assert alice.npub in err
    assert "--key-file" in err


async def test_what_was_done_before_a_refusal_is_told(admin: Admin) -> None:
    code, out, err = await admin.run("ban", bob.npub, alice.npub, owner.npub)
    assert (code, out) == (1, "")
    assert f"done so far: {bob.npub}, {alice.npub}\n" in err
    assert "cannot be banned" in err
    assert "done" not in (await admin.run("ban", owner.npub))[2]


async def test_what_no_key_may_do_is_not_advised_for_another_key(admin: Admin) -> None:
    code, _, err = await admin.run("ban", owner.npub)
    assert code == 1
    assert "an owner and the relay itself cannot be banned" in err
    assert "--key-file" not in err


async def test_a_console_of_no_relay_is_told_as_by_other_commands(admin: Admin) -> None:
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        nobody = f"ws://127.0.0.1:{kept.getsockname()[1]}"
        code, _, console = await admin.run("console", "--no-browser", "--relay", nobody)
        assert code == 1
        assert "Connect call" not in console
        assert console == (await admin.run("group", "list", "--relay", nobody))[2]


@pytest.mark.parametrize(
    "args",
    [
        ["member", "add"],
        ["member", "add", "npub1nobody"],
        ["member", "add", owner.nsec],
        ["member", "invite", "--list", "--revoke", "x"],
        ["member", "invite", "--list", "--uses", "1"],
        ["member", "invite", "--uses", "-1"],
        ["member", "invite", "--uses", "some"],
    ],
)
def test_wrong_usage(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 2
    assert owner.nsec not in capsys.readouterr().err


def test_two_equal_calls_of_one_second_are_signed_differently() -> None:
    first, second = (header_for(owner, "http://a/", b"{}", 1, nonce) for nonce in "ab")
    assert first != second

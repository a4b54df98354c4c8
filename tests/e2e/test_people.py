"""People and groups by the command line alone: names, requests, invites, chat."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests import cast
from tests.harness.relay_program import Rookery, outputs
from tests.harness.screen import on_screen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.keys import SecretKey

REVIEWED = '[groups]\njoins = "review"\nalways = []\nnew = ["restricted"]\n'


class Town:
    """A relay, and people who sit at its command line."""

    def __init__(self, relay: Rookery, folder: Path) -> None:
        self.relay = relay
        self._folder = folder

    def by(self, who: SecretKey) -> tuple[str, ...]:
        file = self._folder / f"{who.pubkey}.nsec"
        file.write_text(who.nsec)
        return ("--relay", self.relay.url, "--key-file", str(file))

    async def run(self, who: SecretKey, *args: str, stdin: str = "") -> tuple[int, str, str]:
        code, out, err = await outputs(*args, *self.by(who), stdin=stdin.encode())
        return code, out.decode(), err

    async def says(self, who: SecretKey, *args: str, stdin: str = "") -> str:
        code, out, err = await self.run(who, *args, stdin=stdin)
        assert code == 0, err
        return out

    async def json(self, who: SecretKey, *args: str) -> Any:
        return json.loads(await self.says(who, *args, "--json"))


@asynccontextmanager
async def town(tmp_path: Path, policy: str = REVIEWED) -> AsyncIterator[Town]:
    async with Rookery(tmp_path / "data") as relay:
        await relay.init("--owner", cast.owner.pubkey)
        (relay.folder / "policies" / "90-people.toml").write_text(policy)
        await relay.start()
        yield Town(relay, tmp_path)
        assert await relay.stop() == 0
        assert "Traceback" not in "\n".join(relay.lines)


async def test_a_request_is_made_seen_by_name_and_accepted(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        await here.says(cast.owner, "group", "create", "tea", "--name", "Tea")
        await here.says(cast.owner, "member", "add", cast.bob.npub, cast.carol.npub)
        await here.says(cast.bob, "profile", "set", "--name", "Bob")
        said = await here.says(cast.bob, "group", "join", "tea", "--reason", "for the tea")
        assert said == "asked to join tea: an admin of the group decides\n"
        (asked,) = await here.json(cast.owner, "group", "requests", "tea")
        assert (asked["pubkey"], asked["name"]) == (cast.bob.pubkey, "Bob")
        assert asked["reason"] == "for the tea"
        assert f"Bob ({cast.bob.npub[:20]}…)" in await here.says(
            cast.owner, "group", "requests", "tea"
        )
        code, _, err = await here.run(cast.owner, "group", "accept", "tea", cast.carol.npub)
        assert code == 1
        assert "no request to join tea" in err
        code, out, err = await here.run(cast.owner, "group", "accept", "tea", "bob")
        assert (code, out) == (0, f"added {cast.bob.npub} to tea\n")
        assert err == f"bob is {cast.bob.npub}\n"
        assert await here.json(cast.owner, "group", "requests", "tea") == []
        assert await here.says(cast.bob, "group", "join", "tea") == "already a member of tea\n"
        assert f"Bob ({cast.bob.npub[:20]}…)" in await here.says(cast.bob, "group", "show", "tea")
        assert await here.says(cast.bob, "group", "leave", "tea") == "left tea\n"
        shown = await here.json(cast.owner, "group", "show", "tea")
        assert cast.bob.pubkey not in shown["members"]
        # Declined is declined.
        await here.says(cast.carol, "group", "join", "tea")
        await here.says(cast.owner, "group", "remove", "tea", cast.carol.npub)
        assert await here.json(cast.owner, "group", "requests", "tea") == []


async def test_an_invite_is_used_listed_and_withdrawn(tmp_path: Path) -> None:
    async with town(tmp_path, "") as here:
        await here.says(cast.owner, "group", "create", "tea")
        used = await here.json(cast.owner, "group", "invite", "tea", "--reusable")
        other = await here.json(cast.owner, "group", "invite", "tea", "--days", "7")
        assert await here.says(cast.bob, "group", "join", used["link"]) == "joined tea\n"
        listed = {
            each["code"]: each for each in await here.json(cast.owner, "group", "invites", "tea")
        }
        assert {code: each["uses"] for code, each in listed.items()} == {
            used["code"]: 1,
            other["code"]: 0,
        }
        assert listed[other["code"]]["until"] is not None
        assert other["code"] in await here.says(cast.owner, "group", "invites", "tea")
        code, _, err = await here.run(cast.owner, "group", "revoke", "tea", "no such code")
        assert code == 1
        assert "no such invite of tea: no such code" in err
        await here.says(cast.owner, "group", "revoke", "tea", other["code"])
        code, _, err = await here.run(cast.carol, "group", "join", "tea", "--code", other["code"])
        assert code == 1
        assert "this code is not valid" in err
        assert len(await here.json(cast.owner, "group", "invites", "tea")) == 1


async def test_a_group_is_edited_pinned_in_and_deleted(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        await here.says(
            cast.owner, "group", "create", "tea", "--name", "Tea", "--about", "All of it"
        )
        said = await here.says(cast.owner, "group", "edit", "tea", "--name", "Green", "--private")
        assert said == "changed tea (private, restricted)\n"
        await here.says(cast.owner, "group", "edit", "tea", "--about", "", "--public")
        shown = await here.json(cast.owner, "group", "show", "tea")
        assert (shown["name"], shown["about"], shown["flags"]) == ("Green", None, ["restricted"])
        robot, helper = cast.robot.npub, cast.carol.npub
        await here.says(cast.owner, "group", "add", "tea", robot, "--role", "agent")
        await here.says(
            cast.owner, "group", "add", "tea", helper, "--role", "admin", "--role", "agent"
        )
        shown = await here.json(cast.owner, "group", "show", "tea")
        assert shown["admins"].keys() == {cast.owner.pubkey, cast.carol.pubkey}
        assert sorted(shown["agents"]) == sorted([cast.robot.pubkey, cast.carol.pubkey])

        message = (await here.says(cast.owner, "group", "say", "tea", "read this")).strip()
        assert await here.says(cast.owner, "group", "pin", "tea", message) == f"{message}\n"
        assert await here.says(cast.owner, "group", "pin", "tea") == f"{message}\n"
        await here.says(cast.owner, "group", "pin", "tea", message, "--remove")
        assert await here.json(cast.owner, "group", "pin", "tea") == {"group": "tea", "pins": []}

        code, _, err = await here.run(cast.owner, "group", "delete", "tea", stdin="n\n")
        assert code == 1
        assert "cannot be undone" in err
        assert "nothing was changed" in err
        code, _, err = await here.run(cast.owner, "group", "delete", "tea")
        assert code == 1
        assert "no answer was given; use --yes to skip the question" in err
        assert await here.says(cast.owner, "group", "delete", "tea", "--yes") == "deleted tea\n"
        assert (await here.run(cast.owner, "group", "show", "tea"))[0] == 1


async def test_a_chat_without_a_terminal_prints_history_and_sends_lines(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        await here.says(cast.owner, "group", "create", "tea")
        await here.says(cast.owner, "profile", "set", "--name", "Ada")
        await here.says(cast.owner, "group", "say", "tea", "first\n[9] 12:00 Eve: spoofed\u202e")
        code, out, err = await here.run(
            cast.owner,
            "chat",
            "tea",
            stdin="second\n/reply 1 third\n//slash\n/reply 77 x\n/dance\n\n",
        )
        assert code == 1, "two commands were refused"
        assert "there is no message [77]" in err
        assert "unknown command /dance" in err
        lines = out.splitlines()
        who = f"Ada ({cast.owner.npub[:20]}…)"
        assert lines[0].startswith("[1] ")
        assert lines[0].endswith(f" {who}: first")
        assert lines[1] == "    [9] 12:00 Eve: spoofed�"
        assert lines[2].endswith(f" {who}: second")
        assert lines[3].endswith(f" {who} → [1]: third")
        assert lines[4].endswith(f" {who}: /slash")
        assert len(lines) == 5
        read = await here.json(cast.owner, "group", "read", "tea")
        assert [each["content"] for each in read if each["reply_to"]] == ["third"]
        assert {each["name"] for each in read} == {"Ada"}
        code, _, err = await here.run(cast.bob, "chat", "tea", stdin="let me in\n")
        assert code == 1
        assert "not sent: restricted: " in err


async def test_messages_of_one_second_are_read_as_they_were_said(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        await here.says(cast.owner, "group", "create", "tea")
        words = [str(number) for number in range(6)]
        await here.says(cast.owner, "chat", "tea", stdin="\n".join(words[:5]))
        await here.says(cast.owner, "group", "say", "tea", words[5])
        read = await here.json(cast.owner, "group", "read", "tea")
        assert [each["content"] for each in read] == words
        _, out, _ = await here.run(cast.owner, "group", "read", "tea", "--ids")
        assert [line[:64] for line in out.splitlines()] == [each["id"] for each in read]
        code, _, err = await here.run(cast.stranger, "group", "say", "tea", "let me in")
        assert code == 1
        assert "restricted: only people known here may write" in err
        nsec = cast.carol.nsec
        for args, stdin in (
            (("group", "say", "tea", f"my key is {nsec}"), ""),
            (("chat", "tea"), nsec),
        ):
            code, out, err = await here.run(cast.owner, *args, stdin=stdin)
            assert (code, "not sent: it has what looks like a secret" in err) == (1, True)
            assert nsec not in out + err
        await here.says(cast.owner, "group", "say", "tea", "token=abcdefgh1234", "--anyway")
        code, _, err = await here.run(cast.owner, "group", "read", "tae")
        assert (code, "no group 'tae' is visible to this key" in err) == (1, True)


async def test_what_arrives_does_not_destroy_what_is_being_typed(tmp_path: Path) -> None:
    async with town(tmp_path) as here:
        await here.says(cast.owner, "group", "create", "tea")
        async with on_screen("chat", "tea", *here.by(cast.owner)) as screen:
            await screen.until("> ")
            screen.type("hé lo")
            await screen.until("> hé lo")
            await here.says(cast.owner, "group", "say", "tea", "in between")
            await screen.until("in between\r\n\r\x1b[K> hé lo")
            screen.type("\x7f\x7f\x1b[Dllo\n")
            await screen.until("hé llo\r\n")
            screen.type("\x04")
            assert await screen.exit_code() == 0
        said = await here.json(cast.owner, "group", "read", "tea")
        assert sorted(each["content"] for each in said) == ["hé llo", "in between"]


@pytest.mark.parametrize(
    ("group_id", "proposed"),
    [
        ("Tea", "tea"),
        ("tea room", "tea-room"),
        ("Tée Salon!", "tee-salon"),
        ("a/b", "a-b"),
        ("x" * 65, "x" * 64),
    ],
)
async def test_a_bad_id_is_refused_before_anything_is_made(
    tmp_path: Path, group_id: str, proposed: str
) -> None:
    key = tmp_path / "owner.nsec"
    key.write_text(cast.owner.nsec)
    by = ("--relay", "ws://127.0.0.1:9", "--key-file", str(key))  # nothing listens there
    code, _, err = await outputs("group", "create", group_id, *by)
    assert code == 2
    assert "is no group id" in err
    assert f"such as {proposed};" in err

"""Names in place of keys: `[names]` of client.toml, and profiles at a relay at work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from relay.cli import run
from relay.cli.log import text_of
from relay.cli.names import Names
from relay.cli.user_keys import user_in
from relay.errors import Invalid
from relay.observe import Refusal
from tests.cast import alice, bob, carol, owner
from tests.unit.cli.test_member import Admin, admin
from tests.unit.server import test_app

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.keys import SecretKey

__all__ = ["admin"]


def name_them(home: Path, *lines: str) -> None:
    file = home / ".config/rookery/client.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["[names]", *lines]))


async def calls_itself(admin: Admin, who: SecretKey, content: str) -> None:
    await admin.run("member", "add", who.npub)
    visit = await admin.relay.visit()
    assert await visit.publishes(who.sign(0, [], content, test_app.NOW)) == (True, "")


async def banned(admin: Admin) -> set[str]:
    return {each["pubkey"] for each in await admin.json("ban", "--list")}


async def test_a_member_is_banned_by_name_and_the_key_is_told_first(admin: Admin) -> None:
    await calls_itself(admin, bob, '{"name": "Bob", "display_name": "Robert B."}')
    code, out, err = await admin.run("ban", "bob", "--reason", "spam")
    assert (code, out) == (0, f"banned: {bob.npub}\n")
    assert err == f"bob is {bob.npub}\n"
    assert await banned(admin) == {bob.pubkey}
    code, out, _ = await admin.run("ban", "--list")
    assert bob.npub in out
    assert "spam" in out


async def test_a_name_of_two_people_is_refused_with_both(admin: Admin) -> None:
    await calls_itself(admin, bob, '{"name": "Bob"}')
    await calls_itself(admin, carol, '{"display_name": "BOB"}')
    code, _, err = await admin.run("ban", "Bob")
    assert code == 1
    assert "2 keys are named 'Bob'; give the npub of one:" in err
    assert bob.npub in err
    assert carol.npub in err
    assert await banned(admin) == set()


async def test_a_name_of_ones_own_wins_over_profiles(admin: Admin, tmp_path: Path) -> None:
    await calls_itself(admin, carol, '{"name": "bob"}')
    name_them(tmp_path, f'Bob = "{bob.npub}"')
    code, _, err = await admin.run("ban", "bob")
    assert (code, err) == (0, f"bob is {bob.npub}\n")
    assert await banned(admin) == {bob.pubkey}


async def test_a_banned_key_is_named_by_its_own_name_alone(admin: Admin, tmp_path: Path) -> None:
    name_them(tmp_path, f'mallory = "{alice.pubkey}"')
    assert (await admin.run("ban", "mallory"))[0] == 0
    code, out, err = await admin.run("unban", "Mallory")
    assert (code, out) == (0, f"unbanned: {alice.npub}\n"), err
    assert await banned(admin) == set()


async def test_tables_have_names_beside_keys(admin: Admin) -> None:
    await calls_itself(admin, bob, '{"name": "Bob\\u202e\\u001b[31m (npub1evil) by"}')
    _, out, _ = await admin.run("member", "list")
    assert f"({bob.npub[:20]}…)" in out
    assert owner.npub in out, "a key without a name is shown whole"
    for hidden in ("\u202e", "\x1b", "npub1evil"):
        assert hidden not in out


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("nobody-here", 1, "nobody is named 'nobody-here' here: give an npub or 64 hex"),
        ("npub1xyz", 2, "not a valid npub"),
        (owner.nsec, 2, "that is a secret key"),
        ("NSEC1abc", 2, "that is a secret key"),
        ("\u202e", 2, "not a public key"),
        ("", 2, "not a public key"),
    ],
)
async def test_what_names_nobody_is_refused(admin: Admin, text: str, code: int, said: str) -> None:
    ended, _, err = await admin.run("ban", text)
    assert ended == code
    assert said in err
    assert owner.nsec not in err
    assert await banned(admin) == set()


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (f'bob = "{bob.nsec}"', "[names] bob: must be a public key, npub or 64 hex"),
        ("bob = 1", "[names] bob: must be a public key, npub or 64 hex"),
        ('bob = "npub1zzz"', "[names] bob: must be a public key, npub or 64 hex"),
        (f'"" = "{bob.npub}"', "[names]: a name has 1 to 40"),
        (f'"a(b)" = "{bob.npub}"', "[names]: a name has 1 to 40"),
        (f'"{"b" * 41}" = "{bob.npub}"', "[names]: a name has 1 to 40"),
        (f'"{bob.npub}" = "{bob.npub}"', "[names]: a name has 1 to 40"),
        (f'"{bob.pubkey}" = "{bob.npub}"', "[names]: a name has 1 to 40"),
    ],
)
def test_a_bad_entry_of_names_is_told_with_its_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    fault: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    name_them(tmp_path, f'ada = "{alice.npub}"', line)
    assert run(["ban", "bob"]) == 1
    err = capsys.readouterr().err
    assert fault in err
    assert bob.nsec not in err


def test_two_entries_that_differ_in_case_are_ambiguous() -> None:
    names = Names({"Bob": bob.pubkey, "bob": carol.pubkey})
    assert sorted(names.keys_of("BOB")) == sorted([bob.pubkey, carol.pubkey])


def test_a_refusal_is_logged_with_the_name_of_its_author() -> None:
    refusal = Refusal(1, 0, "articles", "restricted", 30023, bob.pubkey, "0" * 64, 7, "10.1.2.3")
    assert f"  by Bob ({bob.npub[:20]}…)  " in text_of(refusal, Names({"Bob": bob.pubkey}))
    assert f" by {bob.npub} " in text_of(refusal, Names())


def test_a_name_is_a_user_of_memory_and_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    name_them(tmp_path, f'Bob = "{bob.npub}"')
    assert user_in("bob") == bob.pubkey
    with pytest.raises(Invalid, match="not a user's key: 'mallory'"):
        user_in("mallory")


async def test_owners_see_who_is_banned_and_unban_by_name(admin: Admin) -> None:
    await admin.run("group", "create", "tea")
    await admin.run("group", "add", "tea", bob.npub)
    await calls_itself(admin, bob, '{"name": "Bob\\u001b[31m"}')
    assert (await admin.run("ban", bob.npub, "--reason", "spam"))[0] == 0
    _, out, _ = await admin.run("ban", "--list")
    assert re.search(r"Bob.* +spam", out), out
    assert "\x1b" not in out
    _, out, _ = await admin.run("group", "show", "tea")
    assert re.search(rf"Bob.* \({bob.npub[:20]}…\) +banned", out), out
    assert (await admin.json("group", "show", "tea"))["banned"] == [bob.pubkey]
    (row,) = await admin.json("ban", "--list")
    code, out, err = await admin.run("unban", row["name"])
    assert (code, out) == (0, f"unbanned: {bob.npub}\n"), err
    assert (await admin.json("group", "show", "tea"))["banned"] == []


async def test_members_are_not_told_who_is_banned(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.run("group", "create", "tea")
    await admin.run("group", "add", "tea", bob.npub, alice.npub)
    await admin.run("ban", bob.npub)
    monkeypatch.setenv("ROOKERY_KEY", alice.nsec)
    shown = await admin.json("group", "show", "tea")
    assert bob.pubkey in shown["members"]
    assert shown["banned"] == []

"""`rookery key show` and `rookery profile set`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from relay.cli import run
from relay.clock import unix_now
from tests.cast import bob, owner
from tests.unit.cli.test_member import Admin, admin

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["admin"]


@pytest.mark.parametrize("text", [owner.nsec, owner.hex, f"\n{owner.nsec}\n"])
def test_a_key_file_is_shown_without_its_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "me.nsec"
    file.write_text(text)
    assert run(["key", "show", str(file)]) == 0
    assert run(["key", "show", str(file), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count(owner.npub) == 2
    assert out.count(owner.pubkey) == 2
    assert owner.nsec not in out
    assert owner.hex not in out
    for form, key in (("--npub", owner.npub), ("--hex", owner.pubkey)):
        assert run(["key", "show", str(file), form]) == 0
        assert capsys.readouterr().out == f"{key}\n"
        assert run(["key", "show", str(file), form, "--json"]) == 2
        capsys.readouterr()


def test_the_secret_is_printed_to_a_terminal_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "me.nsec"
    file.write_text(owner.nsec)
    assert run(["key", "show", str(file), "--secret"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "--secret prints to a terminal only" in err
    assert owner.nsec not in err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(["key", "show", str(file), "--secret"]) == 0
    assert owner.nsec in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"npub1x", b"\xff\xfe", b"nsec1broken"])
def test_what_is_no_key_file_is_not_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    file = tmp_path / "me.nsec"
    file.write_bytes(content)
    assert run(["key", "show", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert str(file) in err
    assert "broken" not in err


async def test_fields_that_are_not_named_are_kept(admin: Admin) -> None:
    visit = await admin.relay.visit()
    before = {"name": "Old", "about": "me", "lud16": "a@b", "bot": False, "x": {"y": [1]}}
    profile = owner.sign(0, [["i", "github:ada"]], json.dumps(before), unix_now())
    assert await visit.publishes(profile) == (True, "")
    shown = await admin.json("profile", "set", "--name", "Ada", "--about", "")
    assert shown == {"name": "Ada", "lud16": "a@b", "bot": False, "x": {"y": [1]}}
    again = await admin.json("profile", "set", "--picture", "https://x.example/a.png")
    assert again == {**shown, "picture": "https://x.example/a.png"}
    (_, _, stored), _ = await visit.asks({"kinds": [0]})
    assert stored["tags"] == [["i", "github:ada"]]


async def test_a_profile_with_half_a_surrogate_pair_can_be_changed(admin: Admin) -> None:
    visit = await admin.relay.visit()
    profile = owner.sign(0, [], '{"name":"Old","about":"\\ud800"}', unix_now())
    assert await visit.publishes(profile) == (True, "")
    shown = await admin.json("profile", "set", "--name", "Ada")
    assert shown == {"name": "Ada", "about": "\ufffd"}


async def test_a_profile_that_cannot_be_read_is_not_replaced(admin: Admin) -> None:
    visit = await admin.relay.visit()
    profile = owner.sign(0, [], '["no object"]', unix_now())
    assert await visit.publishes(profile) == (True, "")
    code, _, err = await admin.run("profile", "set", "--name", "Ada")
    assert code == 1
    assert "is no JSON object" in err
    code, _, err = await admin.run("profile", "set")
    assert code == 2
    assert "give --name, --about or --picture" in err


async def test_another_key_signs_its_own_profile(admin: Admin, tmp_path: Path) -> None:
    await admin.run("member", "add", bob.npub)
    file = tmp_path / "bob.nsec"
    file.write_text(bob.nsec)
    code, out, err = await admin.run("profile", "set", "--name", "Bob", "--key-file", str(file))
    assert (code, out) == (0, "name: Bob\n"), err

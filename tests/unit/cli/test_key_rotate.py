"""`rookery key rotate`: a stopped relay gets a new key, and signs with it what it has signed."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from relay.cli import key as key_module
from relay.cli.folder_lock import locked
from relay.cli.services import run_services
from relay.config import load_config
from relay.errors import UserError
from relay.nostr import kinds
from relay.nostr.event import event_from_raw
from relay.nostr.keys import SecretKey, read_key_file
from tests.harness.stocked_folder import exported, findings, rookery, stocked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from relay.nostr.event import Event

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    stocked(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "data")


def key_of(folder: Path) -> SecretKey:
    return read_key_file((folder / "relay.key").read_text(), "relay.key")


def signed_state(folder: Path) -> Mapping[tuple[int, str], Event]:
    """39000 to 39005 and what else only the relay signs for others to replace it."""
    events = [event_from_raw(line.encode()) for line in exported(folder).splitlines()]
    wanted = {*kinds.GROUP_STATE, *kinds.MEMBERSHIP_STATE}
    found = [event for event in events if event.kind in wanted]
    assert len({(event.kind, event.d) for event in found}) == len(found)
    return {(event.kind, event.d): event for event in found}


def test_the_relay_signs_with_a_new_key_what_it_had_signed(folder: Path) -> None:
    old, before = key_of(folder), signed_state(folder)
    assert {event.pubkey for event in before.values()} == {old.pubkey}
    printed, code = rookery("key", "rotate", "--data", folder, "--yes")
    assert code == 0, printed
    new, after = key_of(folder), signed_state(folder)
    assert new.pubkey != old.pubkey
    assert {event.pubkey for event in after.values()} == {new.pubkey}
    assert {place: event.tags for place, event in after.items()} == {
        place: event.tags for place, event in before.items()
    }
    assert findings(folder) == []
    assert f"new key  {new.npub}" in printed
    assert f"old key  {old.npub}" in printed
    assert new.nsec not in printed
    assert old.nsec not in printed


def test_the_old_key_is_kept_and_in_no_backup(folder: Path, tmp_path: Path) -> None:
    old = key_of(folder)
    printed, code = rookery("key", "rotate", "--data", folder, "--yes", "--json")
    assert code == 0, printed
    told = json.loads(printed.splitlines()[-1])
    (kept,) = folder.glob("relay-*.key")
    assert told["kept"] == str(kept)
    assert (told["old"], told["new"], told["groups"]) == (old.npub, key_of(folder).npub, 2)
    assert read_key_file(kept.read_text(), "kept").pubkey == old.pubkey
    for path in (kept, folder / "relay.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert not (folder / "relay.key.new").exists()
    printed, code = rookery("backup", tmp_path / "b.tar.gz", "--data", folder)
    assert code == 0, printed
    printed, code = rookery("restore", tmp_path / "b.tar.gz", tmp_path / "restored")
    assert code == 0, printed
    assert [path.name for path in (tmp_path / "restored").glob("*.key")] == ["relay.key"]


def test_the_members_of_the_relay_are_signed_again(folder: Path) -> None:
    async def listed() -> None:
        from relay.access.management import ListChange, ListName
        from relay.write.commands import ManagementChange

        async with run_services(folder, load_config(folder / "rookery.toml")) as services:
            done = asyncio.Event()
            change = ListChange(ListName.ALLOWED_KEYS, "ab" * 32, "")
            services.ingest.manage(ManagementChange((change,), lambda _: done.set()))
            await done.wait()

    asyncio.run(listed())
    before = signed_state(folder)
    assert (kinds.RELAY_MEMBERS, "") in before
    assert rookery("key", "rotate", "--data", folder, "--yes")[1] == 0
    after = signed_state(folder)
    assert after.keys() == before.keys()
    assert after[kinds.RELAY_MEMBERS, ""].pubkey == key_of(folder).pubkey
    assert findings(folder) == []


def test_what_it_does_is_said_before_it_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = key_of(folder)
    (folder / "policies" / "50-own.toml").write_text(f'[actors]\nagents = ["{old.npub}"]\n')
    said: list[str] = []
    monkeypatch.setattr("click.confirm", _no(said))
    printed, code = rookery("key", "rotate", "--data", folder)
    assert code == 1
    assert "nothing was changed" in printed
    assert key_of(folder).pubkey == old.pubkey
    for word in ("2 groups", "naddr", "39000 to 39005", "13534", "Invite codes", "receipts"):
        assert word in printed
    assert "50-own.toml in policies/ names the old key" in printed
    assert said == ["Give the relay a new key?"]


def _no(said: list[str]) -> object:
    def confirm(question: str, **_: object) -> bool:
        said.append(question)
        return False

    return confirm


def test_a_running_relay_keeps_its_key(folder: Path) -> None:
    old = key_of(folder)
    with locked(folder):
        printed, code = rookery("key", "rotate", "--data", folder, "--yes")
    assert code == 1
    assert "stop it first" in printed
    assert printed.count("stop it") == 1
    assert key_of(folder).pubkey == old.pubkey


@pytest.mark.parametrize("missing", ["relay.key", "rookery.db"])
def test_a_folder_without_a_key_or_with_a_broken_one_gets_none(folder: Path, missing: str) -> None:
    if missing == "relay.key":
        (folder / "relay.key").unlink()
        named = "relay.key is missing"
    else:
        (folder / "rookery.db").write_bytes(b"no database" * 1000)
        named = "rookery.db"
    files = {path.name for path in folder.glob("*.key")}
    printed, code = rookery("key", "rotate", "--data", folder, "--yes")
    assert code == 1
    assert named in printed
    assert {path.name for path in folder.glob("*.key*")} == files


def test_a_disk_that_takes_nothing_leaves_the_old_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = key_of(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("relay.cli.init.os.fsync", full)
    with pytest.raises(UserError, match="was not replaced: No space left"):
        key_module.replace_relay_key(folder, old)
    assert key_of(folder).pubkey == old.pubkey

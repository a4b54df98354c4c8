"""`[bans] files` and `[allow] files`: keys beside the policies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from policies import PolicySet, load
from policies.reload import fingerprint, reloaded
from relay.access.management import MAX_ENTRIES
from relay.errors import ConfigFaults
from relay.memory.systems import MEMORY_SYSTEMS
from tests.cast import alice, bob, carol, owner
from tests.harness.folders import faults_of, loaded, written

if TYPE_CHECKING:
    from pathlib import Path

BANS = '[bans]\nfiles = ["bans.txt"]'


def with_keys(folder: Path, *lines: str) -> Path:
    (folder / "bans.txt").write_text("\n".join(lines))
    return written(folder, a=BANS)


def told(folder: Path) -> list[str]:
    return faults_of(folder, a=BANS)


def test_a_key_a_line_npub_or_hex_with_comments(tmp_path: Path) -> None:
    with_keys(
        tmp_path,
        "\ufeff# spammers",
        "",
        f"{alice.npub}  # sold shoes",
        f"  {bob.pubkey}\r",
        carol.pubkey.upper(),
        alice.pubkey,
    )
    actors = load(tmp_path, MEMORY_SYSTEMS).actors
    assert actors.banned == {alice.pubkey, bob.pubkey, carol.pubkey}
    assert actors.allowed == frozenset()


def test_who_is_allowed_is_known(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "friends").write_text(alice.npub)
    (tmp_path / "more").write_text(bob.npub)
    actors = loaded(tmp_path, a='[allow]\nfiles = ["lists/friends", "more"]').actors
    assert actors.allowed == {alice.pubkey, bob.pubkey}


def test_a_later_list_of_files_replaces_the_earlier(tmp_path: Path) -> None:
    with_keys(tmp_path, alice.npub)
    assert loaded(tmp_path, b="[bans]\nfiles = []").actors.banned == frozenset()


def test_all_wrong_lines_are_told_at_once(tmp_path: Path) -> None:
    with_keys(tmp_path, alice.npub, "alice", "# fine", alice.npub[:-1], alice.nsec)
    text = told(tmp_path)
    assert text[0] == "bans.txt:2: not a public key: an npub or 64 hex characters are needed"
    assert [line.split(":")[1] for line in text] == ["2", "4", "5"]
    assert "secret key" in text[2]
    assert alice.nsec[5:20] not in "".join(text)


def test_thousands_of_wrong_lines_are_not_all_told(tmp_path: Path) -> None:
    with_keys(tmp_path, *["nobody"] * 5000)
    text = told(tmp_path)
    assert len(text) == 21
    assert text[-1] == "bans.txt:21: 4980 more invalid lines"


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "bans.txt").write_bytes(b"# a\n\xff\xfe")
    assert told(tmp_path) == ["bans.txt:2: is not UTF-8 text"]


@pytest.mark.parametrize(
    "text",
    ["\r", "\r\r", "\x00", "\x0b", "\x0c", "\x1b[8m", "\x7f", "\x85", "\x9b", "\u2028", "\u2029"],
)
def test_a_comment_has_no_control_characters(tmp_path: Path, text: str) -> None:
    """Behind a CR, Python and YAML read another line than this."""
    (tmp_path / "bans.txt").write_bytes(f"# a\tb\r\n# keys{text}import os\n".encode())
    (fault,) = told(tmp_path)
    assert fault == (
        f"bans.txt:2: has the control character U+{ord(text[0]):04X}: only LF and CR LF end a line"
    )


@pytest.mark.parametrize("name", ["bans.txt", "pipe"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, name: str) -> None:
    """To open a pipe would be to wait for its other end."""
    if name == "bans.txt":
        (tmp_path / name).mkdir()
    else:
        os.mkfifo(tmp_path / name)
    text = faults_of(tmp_path, a=f'[bans]\nfiles = ["{name}"]')
    assert text == [
        f'a.toml:2: files: "{name}" there is no such file in the folder of the policies'
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    with_keys(tmp_path, alice.npub)
    (tmp_path / "bans.txt").chmod(0)
    assert told(tmp_path) == ['a.toml:2: files: "bans.txt" cannot be read: Permission denied']


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "bans.txt").open("wb") as stream:
        stream.truncate(17 << 20)
    assert told(tmp_path) == ['a.toml:2: files: "bans.txt" has more than 16 MiB']


def test_an_owner_is_never_banned(tmp_path: Path) -> None:
    with_keys(tmp_path, alice.npub, owner.npub)
    text = faults_of(tmp_path, b=f'[actors]\nowners = ["{owner.npub}"]')
    assert text == ["bans.txt:2: this key is an owner's: no ban on it"]
    with pytest.raises(ConfigFaults, match="the relay's own"):
        load(tmp_path / ".." / tmp_path.name, MEMORY_SYSTEMS, alice.pubkey)


def test_bans_are_not_without_number(tmp_path: Path) -> None:
    with_keys(tmp_path, *[f"{number:064x}" for number in range(1, MAX_ENTRIES + 2)])
    assert told(tmp_path) == [
        f"bans.txt:{MAX_ENTRIES + 1}: {MAX_ENTRIES + 1} keys are banned in files, "
        f"at most {MAX_ENTRIES} may be"
    ]


def test_a_change_of_a_key_file_is_seen(tmp_path: Path) -> None:
    policy = load(with_keys(tmp_path, alice.npub), MEMORY_SYSTEMS)
    before = fingerprint(tmp_path, policy.watched)
    (tmp_path / "bans.txt").write_text(f"{alice.npub}\n{bob.npub}")
    assert fingerprint(tmp_path, policy.watched) != before
    again = reloaded(policy, tmp_path)
    assert isinstance(again, PolicySet)
    assert again.actors.banned == {alice.pubkey, bob.pubkey}


def test_one_wrong_key_keeps_the_whole_old_set(tmp_path: Path) -> None:
    policy = load(with_keys(tmp_path, alice.npub), MEMORY_SYSTEMS)
    assert isinstance(reloaded(policy, with_keys(tmp_path, alice.npub, "x")), ConfigFaults)

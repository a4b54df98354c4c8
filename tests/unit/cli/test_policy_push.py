"""`rookery policy push`, `pull` and `versions`, beside a database whose relay does not run."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relay.cli import run
from relay.config import load_config
from relay.nostr.filters import FilterTerms
from relay.storage.postgres.policies import opened_policies
from relay.storage.postgres.store import PostgresStore
from tests.cast import owner, robot, stranger
from tests.harness.postgres import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.harness.postgres import PostgresServer

    Policy = Callable[..., tuple[int, str]]

__all__ = ["postgres"]

pytestmark = pytest.mark.process


@pytest.fixture
def data(tmp_path: Path, postgres: PostgresServer) -> Iterator[Path]:
    """A data folder whose database has its tables and nothing else."""
    url = asyncio.run(postgres.new_schema())
    asyncio.run(made(url))
    folder = tmp_path / "data"
    keys = ("--owner", owner.npub, "--agent", robot.npub)
    assert run(["init", str(folder), *keys]) == 0
    settings = folder / "rookery.toml"
    text = settings.read_text().replace("[storage]\n", f'[storage]\nurl = "{url}"\n')
    settings.write_text(text)
    yield folder
    asyncio.run(postgres.empty(url))


async def made(url: str) -> None:
    await (await PostgresStore.open(url, FilterTerms())).close()


@pytest.fixture
def policy(data: Path, capsys: pytest.CaptureFixture[str]) -> Policy:
    """`rookery policy … --data`: its exit code and what it printed."""

    def ran(*args: str | Path) -> tuple[int, str]:
        capsys.readouterr()
        code = run(["policy", *map(str, args), "--data", str(data)])
        return code, "".join(capsys.readouterr())

    return ran


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".version.json"
    }


def test_what_is_pushed_is_pulled_whole(data: Path, policy: Policy, tmp_path: Path) -> None:
    home = data / "policies"
    (home / "lists").mkdir()
    (home / "lists" / "bad.txt").write_text(f"{stranger.npub}  # spam\n")
    (home / "more").mkdir()
    (home / "more" / "kinds.toml").write_text("[limits]\nmax_event_tags = 99\n")
    (home / "30-own.toml").write_text(
        'include = ["more/kinds"]\n[bans]\nfiles = ["lists/bad.txt"]\n'
    )
    code, said = policy("push", "--by", "anna", "-m", "a ban")
    assert code == 0
    assert "pushed version 1 (" in said
    assert "by anna: a ban): 5 files, " in said
    code, said = policy("pull", tmp_path / "other")
    assert (code, said.split(" (")[0]) == (0, f"{tmp_path / 'other'} is version 1")
    assert files_in(tmp_path / "other") == files_in(home)
    assert set(files_in(home)) == {
        *("00-actors.toml", "10-preset.toml", "30-own.toml"),
        *("lists/bad.txt", "more/kinds.toml"),
    }


def test_files_that_no_relay_reads_are_not_pushed(data: Path, policy: Policy) -> None:
    (data / "policies" / "README").write_text("ours")
    (data / "policies" / ".draft.toml").write_text("no TOML [")
    code, _ = policy("push")
    assert code == 0
    (found,) = json.loads(policy("versions", "--json")[1])
    assert found["files"] == 2


def test_faults_are_told_with_file_and_line_and_nothing_is_pushed(
    data: Path, policy: Policy
) -> None:
    (data / "policies" / "20-own.toml").write_text("[limits]\nmax_event_tag = 9\n")
    code, said = policy("push")
    assert code == 1
    assert f'{data}/policies/20-own.toml:2: unknown key "max_event_tag"' in said
    assert said.endswith("nothing was pushed\n")
    code, said = policy("push", "--json")
    assert json.loads(said.splitlines()[0])["faults"][0]["line"] == 2
    assert json.loads(policy("versions", "--json")[1]) == []


def test_warnings_say_what_changes_for_whom(data: Path, policy: Policy) -> None:
    assert policy("push")[0] == 0
    preset = data / "policies" / "20-open.toml"
    preset.write_text('[[rule]]\nname = "known people write"\nenabled = false\n')
    code, said = policy("push", "--json")
    assert code == 0
    assert any("unknown authors" in each for each in json.loads(said)["warnings"]), said


def test_a_plug_in_is_not_pushed(data: Path, policy: Policy) -> None:
    (data / "policies" / "20-own.toml").write_text('[[plugin]]\nname = "p"\nrun = "true"\n')
    code, said = policy("push")
    assert code == 1
    assert 'policies/20-own.toml:1: plug-in "p": whoever may write to the database' in said


def test_the_second_of_two_is_told_what_came_in_between(
    data: Path, policy: Policy, tmp_path: Path
) -> None:
    assert policy("push", "--by", "anna")[0] == 0
    other = tmp_path / "other"
    assert policy("pull", other)[0] == 0
    own = data / "policies" / "20-own.toml"
    own.write_text("[limits]\nmax_event_tags = 99\n")
    assert policy("push", "--by", "anna", "-m", "more tags")[0] == 0
    (other / "20-own.toml").write_text("[limits]\nmax_event_tags = 98\n")
    code, said = policy("push", other, "--by", "ben")
    assert code == 1
    assert "nothing was pushed: version 2 (" in said
    assert "by anna: more tags) came after version 1" in said
    assert "--over 2" in said
    code, said = policy("push", other, "--by", "ben", "--over", "2")
    assert (code, "pushed version 3 (" in said) == (0, True)
    # And a folder that was never pulled.
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "00.toml").write_bytes((other / "00-actors.toml").read_bytes())
    code, said = policy("push", fresh)
    assert (code, "is there, and these files are not from it" in said) == (1, True)


def test_equal_files_make_no_version(data: Path, policy: Policy) -> None:
    assert policy("push")[0] == 0
    (data / "policies" / ".version.json").unlink()
    code, said = policy("push")
    assert (code, said.startswith("nothing to push: version 1 (")) == (0, True)
    assert len(json.loads(policy("versions", "--json")[1])) == 1


def test_versions_are_listed_newest_first(data: Path, policy: Policy) -> None:
    own = data / "policies" / "20-own.toml"
    for tags in (97, 98, 99):
        own.write_text(f"[limits]\nmax_event_tags = {tags}\n")
        assert policy("push", "-m", f"{tags} tags", "--by", "anna")[0] == 0
    found = json.loads(policy("versions", "--json", "--limit", "2")[1])
    assert [(each["version"], each["message"]) for each in found] == [
        (3, "99 tags"),
        (2, "98 tags"),
    ]
    assert "98 tags" in policy("versions")[1]


def test_an_earlier_version_is_pushed_again(data: Path, policy: Policy, tmp_path: Path) -> None:
    assert policy("push")[0] == 0
    first = files_in(data / "policies")
    (data / "policies" / "20-own.toml").write_text("[limits]\nmax_event_tags = 99\n")
    assert policy("push")[0] == 0
    code, said = policy("push", "--version", "1")
    assert (code, ": as version 1)" in said) == (0, True)
    assert policy("pull", tmp_path / "third", "--version", "3")[0] == 0
    assert files_in(tmp_path / "third") == first
    assert policy("push", "--version", "9") == (
        1,
        "rookery: there is no version 9: see `rookery policy versions`\n",
    )


# pull --------------------------------------------------------------------------------------------


def test_a_pull_overwrites_nothing_that_was_not_pushed(
    data: Path, policy: Policy, tmp_path: Path
) -> None:
    home, other = data / "policies", tmp_path / "other"
    assert policy("push")[0] == 0
    assert policy("pull", other)[0] == 0
    (home / "20-own.toml").write_text("[limits]\nmax_event_tags = 99\n")
    assert policy("push")[0] == 0
    changes: dict[str, Callable[[], object]] = {
        "another file": lambda: (other / "50-mine.toml").write_text(""),
        "an edit": lambda: (other / "10-preset.toml").write_text("# mine"),
        "a file that is gone": (other / "00-actors.toml").unlink,
    }
    for what, change in changes.items():
        change()
        before = files_in(other)
        code, said = policy("pull", other)
        assert (code, "has changes that were not pushed" in said) == (1, True), what
        assert files_in(other) == before, what
        assert policy("pull", other, "--force", "--version", "1")[0] == 0
    assert policy("pull", other)[0] == 0
    assert files_in(other) == files_in(home)


def test_a_pull_into_a_folder_of_policies_that_were_never_pushed_is_refused(
    data: Path, policy: Policy, tmp_path: Path
) -> None:
    assert policy("push")[0] == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.toml").write_text("")
    assert policy("pull", tmp_path / "mine")[0] == 1
    assert files_in(tmp_path / "mine") == {"own.toml": b""}


def test_a_pull_keeps_what_is_no_policy(data: Path, policy: Policy, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    (other / ".git" / "HEAD").write_text("ref")
    (other / "README").write_text("ours")
    assert policy("push")[0] == 0
    assert policy("pull", other)[0] == 0
    (data / "policies" / "10-preset.toml").unlink()
    assert policy("push")[0] == 0
    assert policy("pull", other)[0] == 0
    assert set(files_in(other)) == {".git/HEAD", "README", "00-actors.toml"}


def test_a_pull_that_fails_changes_nothing(
    data: Path, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    assert policy("push")[0] == 0
    assert policy("pull", other)[0] == 0
    (data / "policies" / "20-own.toml").write_text("[limits]\nmax_event_tags = 99\n")
    assert policy("push")[0] == 0
    before = files_in(other)

    def full(self: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if (self.name, self.parent.name, mode) == ("20-own.toml", ".other.new", "xb"):
            raise OSError(28, os.strerror(28))
        return open_(self, mode, *rest, **named)

    open_ = Path.open
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        code, said = policy("pull", other)
    assert (code, "was not changed: No space left on device" in said) == (1, True)
    assert files_in(other) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "other"]
    rename = Path.rename

    def stuck(self: Path, target: Path) -> Path:
        if self.name == ".other.new":
            raise OSError(16, os.strerror(16))
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", stuck)
        assert policy("pull", other)[0] == 1
    assert files_in(other) == before
    # Killed between the two renames.
    other.rename(tmp_path / ".other.before")
    assert policy("pull", other)[0] == 0
    assert files_in(other) == files_in(data / "policies")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "other"]


def test_a_pull_writes_and_deletes_nothing_outside_of_its_folder(
    data: Path, policy: Policy, tmp_path: Path
) -> None:
    """By a note that somebody else wrote, or through links."""
    other, outside = tmp_path / "other", tmp_path / "outside"
    (data / "policies" / "lists").mkdir()
    (data / "policies" / "lists" / "bad.txt").write_text("")
    (data / "policies" / "30-own.toml").write_text('[bans]\nfiles = ["lists/bad.txt"]\n')
    assert policy("push")[0] == 0
    other.mkdir()
    outside.mkdir()
    (outside / "bad.txt").write_text("theirs")
    (other / "lists").symlink_to(outside)
    (other / ".version.json").write_text(
        json.dumps({"version": 1, "sha256": "", "files": ["../outside/bad.txt"]})
    )
    code, said = policy("pull", other, "--force")
    assert (code, ".version.json cannot be read, delete it" in said) == (1, True)
    (other / ".version.json").write_bytes(b'{"version": 1, "sha256": "\xff", "files": []}')
    code, said = policy("pull", other, "--force")
    assert (code, ".version.json cannot be read, delete it" in said) == (1, True)
    (other / ".version.json").unlink()
    code, said = policy("pull", other)
    assert (code, "never pushed or pulled" in said, "lists/bad.txt" in said) == (1, True, True)
    assert policy("pull", other, "--force")[0] == 0
    assert policy("pull", other)[0] == 0
    assert files_in(other) == files_in(data / "policies")
    assert files_in(outside) == {"bad.txt": b"theirs"}
    # A link in the place of the folder stays one.
    (tmp_path / "link").symlink_to(other)
    assert policy("pull", tmp_path / "link")[0] == 0
    assert (tmp_path / "link").is_symlink()


def test_a_folder_is_named_by_a_dot(
    data: Path, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data / "policies")
    assert policy("push", ".")[0] == 0
    before = files_in(data / "policies")
    (tmp_path / "before").mkdir()
    monkeypatch.chdir(tmp_path / "before")
    assert policy("pull", ".")[0] == 0
    monkeypatch.chdir(tmp_path / "before")
    assert files_in(tmp_path / "before") == before
    (tmp_path / "before" / "60-own.toml").write_text("[limits]\nmax_event_tags = 77\n")
    assert policy("push", ".")[0] == 0


def test_a_plug_in_that_came_into_the_database_is_not_pulled(data: Path, policy: Policy) -> None:
    """`policy check` was content, and the next start with `policies = "folder"` ran it."""
    assert policy("push")[0] == 0
    before = files_in(data / "policies")
    added = {**before, "90.toml": b'[[plugin]]\nname = "p"\nrun = "true"\n'}
    asyncio.run(written(data, added))
    code, said = policy("pull")
    assert code == 1
    assert "version 2/90.toml:1: plug-in" in said
    assert files_in(data / "policies") == before
    assert policy("pull", "--version", "1")[0] == 0


def test_a_file_of_the_database_that_no_policy_names_is_not_pulled(
    data: Path, policy: Policy
) -> None:
    """Whoever writes to the database chose the names: `authorized_keys`, where the folder was a
    link to `~/.ssh`."""
    assert policy("push")[0] == 0
    before = files_in(data / "policies")
    asyncio.run(written(data, {**before, "authorized_keys": b"ssh-ed25519 AAAA theirs"}))
    code, said = policy("pull")
    assert code == 1
    assert "version 2 has files that none of its policies names" in said
    assert "authorized_keys" in said
    assert files_in(data / "policies") == before


@pytest.mark.parametrize(
    "name",
    [
        *("json.py", "conftest.py", "Makefile", "bans", "ci.yml", "requirements.txt"),
        *(".gitlab-ci.yml", ".github/workflows/check.txt", ".git/hooks.txt", ".bans.txt"),
    ],
)
def test_a_file_that_another_program_might_obey_is_neither_pushed_nor_pulled(
    data: Path, policy: Policy, name: str
) -> None:
    """Python, CI and git of a folder of policies took files of keys for their own."""
    home = data / "policies"
    assert policy("push")[0] == 0
    before = files_in(home)
    (home / "30-own.toml").write_text(f'[bans]\nfiles = ["{name}"]\n')
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_text("# keys of spammers\n")
    code, said = policy("push")
    assert (code, f"{name}: rename it, and where policies name it: " in said) == (1, True)
    added = files_in(home)
    asyncio.run(written(data, added))
    (home / name).unlink()
    (home / "30-own.toml").unlink()
    code, said = policy("pull")
    assert (code, f"{name}: rename it" in said) == (1, True)
    assert files_in(home) == before


def test_a_pull_names_what_it_changes(data: Path, policy: Policy, tmp_path: Path) -> None:
    home, other = data / "policies", tmp_path / "other"
    assert policy("push")[0] == 0
    code, said = policy("pull", other)
    assert said.endswith(" now\nnew: 00-actors.toml, 10-preset.toml\n")
    with (home / "00-actors.toml").open("a") as file:
        file.write('[bans]\nfiles = ["bad.txt"]\n')
    (home / "bad.txt").write_text("# none\n")
    (home / "10-preset.toml").rename(home / "20-preset.toml")
    assert policy("push")[0] == 0
    code, said = policy("pull", other, "--json")
    found = json.loads(said)
    assert code == 0
    assert found["new"] == ["20-preset.toml", "bad.txt"]
    assert found["replaced"] == ["00-actors.toml"]
    assert found["removed"] == ["10-preset.toml"]
    code, said = policy("pull", other)
    assert (code, said.endswith(" now\n")) == (0, True)


def test_a_pull_replaces_no_file_that_is_none_of_the_policies(
    data: Path, policy: Policy, tmp_path: Path
) -> None:
    home, other = data / "policies", tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("ours")
    (home / "30-own.toml").write_text('[bans]\nfiles = ["notes.txt"]\n')
    (home / "notes.txt").write_text("# none\n")
    assert policy("push")[0] == 0
    code, said = policy("pull", other)
    assert (code, "never pushed or pulled" in said, "notes.txt" in said) == (1, True, True)
    assert files_in(other) == {"notes.txt": b"ours"}
    code, said = policy("pull", other, "--force")
    assert (code, "replaced: notes.txt\n" in said) == (0, True)
    assert policy("pull", other)[0] == 0


async def written(data: Path, files: dict[str, bytes]) -> None:
    url = load_config(data / "rookery.toml").storage.url
    assert url is not None
    async with opened_policies(url, None) as versions:
        await versions.push(files, over=1, at=1, by="somebody", message="")


def test_nothing_is_pulled_before_a_push(policy: Policy) -> None:
    code, said = policy("pull")
    assert (code, "no policies were pushed to this database yet" in said) == (1, True)


# other stores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["push"], ["pull", "other"], ["versions"]])
def test_with_sqlite_the_folder_is_the_place(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    assert run(["init", str(folder), "--owner", owner.npub]) == 0
    assert run(["policy", *command, "--data", str(folder)]) == 1
    said = capsys.readouterr().err
    assert f"and its policies in {folder}/policies: versions are kept in PostgreSQL" in said

"""relay/cli/policy_reload.py: no change of the files is missed, and no version of the database
taken that may not be. Whole relays: tests/e2e/test_pushed_policies.py."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, cast
from unittest.mock import MagicMock

import pytest

import policies
from policies.reload import fingerprint, reloaded
from relay.cli.policy_reload import PolicyReload
from relay.cli.pushed_policies import PushedPolicies
from relay.errors import ConfigFaults, Fault, StoreFault
from relay.memory.systems import MEMORY_SYSTEMS
from relay.storage.policy_versions import PolicyVersion
from tests.cast import alice, bob, carol
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from policies import PolicySet
    from policies.reload import Fingerprint
    from relay.storage.postgres.policies import PolicyVersions


async def test_several_faults_are_noted_in_one_line(tmp_path: Path) -> None:
    home = tmp_path / "policies"
    home.mkdir()
    services, noted = MagicMock(), asyncio.Future[str]()
    services.folder, services.policy_folder, services.pushed = tmp_path, home, None
    services.policy = policies.load(home, MEMORY_SYSTEMS, alice.pubkey)
    services.policy_files = fingerprint(home)
    services.readiness.note = lambda _, text: noted.set_result(text)
    (home / "20-own.toml").write_text("[limits]\nmax_event_tag = 9\nmax_even = 1\n")
    async with PolicyReload(services, asyncio.Event(), MagicMock()), asyncio.timeout(ANSWER_S):
        text = await noted
    assert 'unknown key "max_event_tag"' in text
    assert text.endswith("; and 1 more, see `rookery policy check`")
    assert text.isprintable()


async def test_a_change_while_the_relay_starts_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "policies"
    home.mkdir()
    services, enforced = MagicMock(), asyncio.Event()
    looks: list[Fingerprint] = []
    services.folder, services.policy_folder, services.pushed = tmp_path, home, None
    services.policy = policies.load(home, MEMORY_SYSTEMS, alice.pubkey)
    services.policy_files = fingerprint(home)
    services.state.enforce = lambda _: enforced.set()

    def seen(folder: Path, watched: Iterable[str] = ()) -> Fingerprint:
        looks.append(fingerprint(folder, watched))
        if len(looks) == 1:
            (home / "20-own.toml").write_text("[limits]\nmax_event_tags = 9\n")
        return looks[-1]

    monkeypatch.setattr("relay.cli.policy_reload.fingerprint", seen)
    monkeypatch.setattr("relay.cli.policy_reload._POLL_S", 0.01)
    async with PolicyReload(services, asyncio.Event(), MagicMock()), asyncio.timeout(ANSWER_S):
        while len(looks) < 5 and not enforced.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert enforced.is_set()


class Polling:
    """A relay's reload of the files of a folder: the sets that came into force, and what was
    noted instead."""

    def __init__(self, home: Path) -> None:
        self.services, self.requested = MagicMock(), asyncio.Event()
        self.enforced: asyncio.Queue[PolicySet] = asyncio.Queue()
        self.noted: asyncio.Queue[str] = asyncio.Queue()
        services = self.services
        services.policy_folder, services.pushed = home, None
        services.policy_files = fingerprint(home)
        services.policy = policies.load(home, MEMORY_SYSTEMS, alice.pubkey)
        services.state.enforce = self.enforced.put_nowait
        services.readiness.note = lambda _, text: self.noted.put_nowait(text)
        self.reload = PolicyReload(services, self.requested, MagicMock())


@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_first_look_that_fails_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_asked: bool
) -> None:
    """No later change came into force, and nobody was told. With a SIGHUP the loop stood still."""
    relay, looks, others_ran = Polling(tmp_path), 0, False

    def seen(folder: Path, watched: Iterable[str] = ()) -> Fingerprint:
        nonlocal looks
        looks += 1
        if looks == 1 or (is_asked and not others_ran and looks < 100):
            raise OSError("too many open files")
        return fingerprint(folder, watched)

    monkeypatch.setattr("relay.cli.policy_reload.fingerprint", seen)
    monkeypatch.setattr("relay.cli.policy_reload._POLL_S", 0.01)
    async with relay.reload, asyncio.timeout(ANSWER_S):
        assert "internal error: OSError" in await relay.noted.get()
        if is_asked:
            relay.requested.set()
            await asyncio.sleep(0.03)
            assert looks < 100, "nothing else ran"
            others_ran = True
        (tmp_path / "20-own.toml").write_text("[limits]\nmax_event_tags = 9\n")
        while (await relay.enforced.get()).limits.max_event_tags != 9:
            pass


async def test_a_file_that_is_being_written_is_not_taken_before_it_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "20-own.toml"
    own.write_text("[limits]\nmax_event_tags = 9\nmax_content_length = 900\n")
    relay = Polling(tmp_path)
    pieces = ["[limits]\n", "max_event_tags = 8\n", "max_content_length = 800\n"]
    looks = 0

    def seen(folder: Path, watched: Iterable[str] = ()) -> Fingerprint:
        nonlocal looks
        looks += 1
        if looks > 2 and pieces:  # the first two are at the start
            with own.open("w" if looks == 3 else "a") as file:
                file.write(pieces.pop(0))
        return fingerprint(folder, watched)

    monkeypatch.setattr("relay.cli.policy_reload.fingerprint", seen)
    monkeypatch.setattr("relay.cli.policy_reload._POLL_S", 0.01)
    async with relay.reload, asyncio.timeout(ANSWER_S):
        limits = (await relay.enforced.get()).limits
    assert (limits.max_event_tags, limits.max_content_length) == (8, 800)


async def test_a_file_that_is_written_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "20-own.toml"
    own.write_text("[limits]\nmax_event_tags = 9\n")
    relay, reads = Polling(tmp_path), []

    def read(current: PolicySet, folder: Path) -> PolicySet | ConfigFaults:
        found = reloaded(current, folder)
        reads.append(found)
        if len(reads) == 1:
            own.write_text("[limits]\nmax_event_tags = 10\n")
        return found

    monkeypatch.setattr("relay.cli.policy_reload.reloaded", read)
    monkeypatch.setattr("relay.cli.policy_reload._POLL_S", 0.01)
    async with relay.reload, asyncio.timeout(ANSWER_S):
        relay.requested.set()
        assert (await relay.enforced.get()).limits.max_event_tags == 10


@pytest.fixture
async def looks(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Fingerprint]:
    """Of a relay that looks at the files without a pause."""
    found: asyncio.Queue[Fingerprint] = asyncio.Queue()

    def seen(folder: Path, watched: Iterable[str] = ()) -> Fingerprint:
        files = fingerprint(folder, watched)
        loop.call_soon_threadsafe(found.put_nowait, files)
        return files

    loop = asyncio.get_running_loop()
    monkeypatch.setattr("relay.cli.policy_reload.fingerprint", seen)
    monkeypatch.setattr("relay.cli.policy_reload._POLL_S", 0)
    return found


async def many(looks: asyncio.Queue[Fingerprint]) -> None:
    for _ in range(20 + looks.qsize()):
        await looks.get()


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")


@LINUX
async def test_a_file_that_a_program_writes_is_not_taken_however_long_it_pauses(
    tmp_path: Path, looks: asyncio.Queue[Fingerprint]
) -> None:
    own = tmp_path / "20-own.toml"
    own.write_text("[limits]\nmax_event_tags = 9\nmax_content_length = 900\n")
    relay = Polling(tmp_path)
    async with relay.reload, asyncio.timeout(ANSWER_S):
        with own.open("w") as file:
            file.write("[limits]\nmax_event_tags = 8\n")
            file.flush()
            await many(looks)
            assert relay.enforced.empty()
            file.write("max_content_length = 800\n")
        limits = (await relay.enforced.get()).limits
    assert (limits.max_event_tags, limits.max_content_length) == (8, 800)


async def test_a_file_that_is_open_is_taken_at_once_when_asked(
    tmp_path: Path, looks: asyncio.Queue[Fingerprint]
) -> None:
    own = tmp_path / "20-own.toml"
    own.write_text("[limits]\nmax_event_tags = 9\n")
    relay = Polling(tmp_path)
    async with relay.reload, asyncio.timeout(ANSWER_S):
        with own.open("w") as file:
            file.write("[limits]\nmax_event_tags = 8\n")
            file.flush()
            await many(looks)
            relay.requested.set()
            assert (await relay.enforced.get()).limits.max_event_tags == 8


async def test_where_the_system_does_not_tell_who_writes_a_file_must_rest_for_long(
    tmp_path: Path, looks: asyncio.Queue[Fingerprint], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "20-own.toml"
    own.write_text("[limits]\nmax_event_tags = 9\n")
    monkeypatch.setattr("relay.cli.policy_reload.is_open_for_writing", lambda _: None)
    monkeypatch.setattr("relay.cli.policy_reload._UNTOLD_REST_S", 3600)
    relay = Polling(tmp_path)
    async with relay.reload, asyncio.timeout(ANSWER_S):
        own.write_text("[limits]\nmax_event_tags = 8\n")
        await many(looks)
        assert relay.enforced.empty()
        monkeypatch.setattr("relay.cli.policy_reload._UNTOLD_REST_S", 0)
        assert (await relay.enforced.get()).limits.max_event_tags == 8


@pytest.mark.parametrize("asked", [False, True])
async def test_a_file_that_lost_its_content_keeps_the_set_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, asked: bool
) -> None:
    own = tmp_path / "20-own.toml"
    own.write_text("[limits]\nmax_event_tags = 9\n")
    relay = Polling(tmp_path)
    monkeypatch.setattr("relay.cli.policy_reload._POLL_S", ANSWER_S if asked else 0.01)
    async with relay.reload, asyncio.timeout(ANSWER_S):
        own.write_bytes(b"")
        if asked:
            relay.requested.set()
        assert f"{own}: is empty, and had content before" in await relay.noted.get()
        own.with_name("30-other.toml").write_text("[limits]\nmax_content_length = 800\n")
        if asked:
            relay.requested.set()
            await relay.noted.get()
        assert relay.enforced.empty(), "for as long as the file is empty"
        own.unlink()
        relay.requested.set()
        limits = (await relay.enforced.get()).limits
    assert (limits.max_event_tags, limits.max_content_length) == (5000, 800)


def banning(folder: Path) -> Path:
    """A file that bans bob, named by a policy file."""
    banned = folder / "banned.txt"
    banned.write_text(f"{bob.npub}\n")
    (folder / "20-own.toml").write_text('[bans]\nfiles = ["banned.txt"]\n')
    return banned


async def test_a_list_of_banned_keys_that_lost_its_content_lifts_no_ban(
    tmp_path: Path, looks: asyncio.Queue[Fingerprint]
) -> None:
    banned = banning(tmp_path)
    relay = Polling(tmp_path)
    async with relay.reload, asyncio.timeout(ANSWER_S):
        await looks.get()
        banned.write_bytes(b"")
        assert f"{banned}: is empty, and had content before" in await relay.noted.get()
        assert relay.enforced.empty()
        banned.write_text("# nobody\n")
        assert (await relay.enforced.get()).actors.banned == frozenset()


@LINUX
async def test_a_list_of_banned_keys_that_a_program_writes_is_not_taken(
    tmp_path: Path, looks: asyncio.Queue[Fingerprint]
) -> None:
    banned = banning(tmp_path)
    relay = Polling(tmp_path)
    async with relay.reload, asyncio.timeout(ANSWER_S):
        await looks.get()
        with banned.open("w") as file:
            file.write(f"{carol.npub}\n")
            file.flush()
            await many(looks)
            assert relay.enforced.empty()
            file.write(f"{bob.npub}\n")
        found = (await relay.enforced.get()).actors.banned
    assert found == {bob.pubkey, carol.pubkey}


# policies of the database ------------------------------------------------------------------------


class Versions:
    """Of a database: what was pushed, by its number."""

    def __init__(self, **files: str) -> None:
        self.newest = 1
        self.pushed = {1: {f"{name}.toml": text.encode() for name, text in files.items()}}
        self.fault: Exception | None = None
        self.refused = asyncio.Event()
        self.changed: Callable[[], None] = lambda: None

    def heard(self, newest: int) -> None:
        self.newest = newest
        self.changed()

    async def versions(self, limit: int) -> Sequence[PolicyVersion]:
        return [PolicyVersion(max(self.pushed), 0, "", "", "", 0, 0)]

    async def read(self, number: int) -> tuple[PolicyVersion, dict[str, bytes]]:
        if self.fault is not None:
            self.refused.set()
            raise self.fault
        return PolicyVersion(number, 0, "", "", "", 0, 0), self.pushed[number]

    def push(self, **files: str) -> None:
        number = self.newest + 1
        self.pushed[number] = {f"{name}.toml": text.encode() for name, text in files.items()}
        self.heard(number)


class Reloading:
    """A relay's reload: the sets that came into force, and what was noted instead."""

    def __init__(self, folder: Path, versions: Versions) -> None:
        self.pushed = PushedPolicies(folder, cast("PolicyVersions", versions))
        self.services = MagicMock()
        self.enforced: asyncio.Queue[PolicySet] = asyncio.Queue()
        self.noted: asyncio.Queue[str] = asyncio.Queue()

    async def __aenter__(self) -> Reloading:
        home = await self.pushed.first()
        self.pushed.took(home)
        services = self.services
        services.pushed, services.policy_folder = self.pushed, home
        services.policy = policies.load(home, MEMORY_SYSTEMS, alice.pubkey)
        services.policy_files = fingerprint(home)
        services.state.enforce = self.enforced.put_nowait
        services.readiness.note = lambda _, text: self.noted.put_nowait(text)
        self.reload = PolicyReload(services, asyncio.Event(), MagicMock())
        await self.reload.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.reload.__aexit__()


async def test_a_push_is_taken_and_the_version_before_it_leaves(tmp_path: Path) -> None:
    versions = Versions(own="[limits]\nmax_event_tags = 9\n")
    async with Reloading(tmp_path, versions) as relay, asyncio.timeout(ANSWER_S):
        assert relay.pushed.in_force == 1
        versions.push(own="[limits]\nmax_event_tags = 8\n")
        assert (await relay.enforced.get()).limits.max_event_tags == 8
        assert relay.pushed.in_force == 2
        assert [path.name for path in (tmp_path / "policy-versions").iterdir()] == ["2"]


async def test_a_folder_that_a_link_names_keeps_what_is_in_it(tmp_path: Path) -> None:
    """Whoever made the data folder may have put the link there."""
    thesis = tmp_path / "thesis"
    (thesis / "chapters").mkdir(parents=True)
    home = tmp_path / "data" / "policy-versions"
    home.parent.mkdir()
    home.symlink_to(thesis)
    async with Reloading(home.parent, Versions(own="")) as relay:
        assert relay.pushed.folder.is_dir()
    assert [path.name for path in thesis.iterdir()] == ["chapters"]
    assert not home.is_symlink()


async def test_no_plug_in_comes_from_the_database(tmp_path: Path) -> None:
    versions = Versions(own="")
    async with Reloading(tmp_path, versions) as relay, asyncio.timeout(ANSWER_S):
        versions.push(own='[[plugin]]\nname = "p"\nrun = "true"\n')
        assert 'policy-versions/2/own.toml:1: plug-in "p": whoever' in await relay.noted.get()
        assert (relay.pushed.in_force, relay.enforced.qsize()) == (1, 0)


async def test_what_cannot_be_taken_leaves_the_version_in_force(tmp_path: Path) -> None:
    versions = Versions(own="")
    async with Reloading(tmp_path, versions) as relay, asyncio.timeout(ANSWER_S):
        versions.fault = ConfigFaults([Fault("version 2 of the policies", 0, "is damaged")])
        versions.push(own="[limits]\nmax_event_tags = 8\n")
        assert "version 2 of the policies: is damaged" in await relay.noted.get()
        versions.fault = OSError(28, "No space left on device")
        versions.push(own="[limits]\nmax_event_tags = 7\n")
        assert "policy-versions/3: cannot be written: No space" in await relay.noted.get()
        assert relay.pushed.in_force == 1
        versions.fault = None  # and it is tried again
        assert (await relay.enforced.get()).limits.max_event_tags == 7
        assert relay.pushed.in_force == 3


async def test_an_error_of_ours_is_not_the_last_reload(tmp_path: Path) -> None:
    versions = Versions(own="")
    async with Reloading(tmp_path, versions) as relay, asyncio.timeout(ANSWER_S):
        versions.fault = RuntimeError("not expected")
        versions.push(own="[limits]\nmax_event_tags = 8\n")
        assert "internal error: RuntimeError" in await relay.noted.get()
        versions.fault = None
        versions.push(own="[limits]\nmax_event_tags = 7\n")
        assert (await relay.enforced.get()).limits.max_event_tags == 7


async def test_a_database_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    versions = Versions(own="")
    async with Reloading(tmp_path, versions) as relay, asyncio.timeout(ANSWER_S):
        versions.fault = StoreFault("database: it does not answer")
        versions.push(own="[limits]\nmax_event_tags = 8\n")
        await versions.refused.wait()
        versions.fault = None
        assert (await relay.enforced.get()).limits.max_event_tags == 8
        assert relay.noted.empty()

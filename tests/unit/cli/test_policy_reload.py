"""relay/cli/policy_reload.py: no change of the files is missed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import policies
from policies.reload import fingerprint
from relay.cli.policy_reload import PolicyReload
from relay.memory.systems import MEMORY_SYSTEMS
from tests.cast import alice
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest

    from policies.reload import Fingerprint


async def test_several_faults_are_noted_in_one_line(tmp_path: Path) -> None:
    home = tmp_path / "policies"
    home.mkdir()
    services, noted = MagicMock(), asyncio.Future[str]()
    services.folder = tmp_path
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
    services.folder = tmp_path
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

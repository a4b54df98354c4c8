"""The command line of a user at a fake relay, who keeps nothing outside of one folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from relay.cli import run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from relay.nostr.keys import SecretKey
    from tests.harness.fake_relay import FakeRelay

Rookery = Callable[..., Coroutine[Any, Any, int]]
"""Runs a command with these words; its exit code."""


def command_line(
    command: str, relay: FakeRelay, by: SecretKey, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Rookery:
    """`await rookery("list")` runs `rookery COMMAND list`, in a thread: the relay is in this loop
    and must be able to answer."""
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ROOKERY_RELAY", relay.url)
    monkeypatch.setenv("ROOKERY_KEY", by.nsec)
    monkeypatch.chdir(home)

    async def rookery(*args: str) -> int:
        return await asyncio.to_thread(run, [command, *args])

    return rookery

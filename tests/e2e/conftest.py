"""The relay of these tests, and where it keeps its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests import cast
from tests.e2e.machines import machine
from tests.effort import tries
from tests.harness.postgres import postgres
from tests.harness.relay_program import Rookery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.e2e.machines import Machine
    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]

OF_MEMORY: Final = (
    "test_aman",
    "test_anamnesis",
    "test_example_agent",
    "test_hooks",
    "test_mcp",
    "test_memory_files",
    "test_memory_moves",
    "test_memory_versions",
    "test_seed_words",
    "test_session_forms",
    "test_session_places",
    "test_sessions",
    "test_snowclaw",
    "test_two_agents",
)
STORES: Final = ("a file", "a database")[: tries(2, full=2, part=1)]
"""`make test` leaves the second to CI."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in OF_MEMORY:
        metafunc.parametrize("kept_in", STORES, indirect=True)


@pytest.fixture(autouse=True)
def kept_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request, "param", "a file") == "a database":
        server: PostgresServer = request.getfixturevalue("postgres")
        monkeypatch.setattr(Rookery, "new_database", server.new_schema)


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    """It runs, with an owner and an agent."""
    async with Rookery(tmp_path / "data") as relay:
        await relay.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        await relay.start()
        yield relay


@pytest.fixture
async def robot(rookery: Rookery) -> AsyncIterator[Machine]:
    """The agent at its own machine."""
    async with machine(cast.robot, rookery.url) as robot:
        yield robot

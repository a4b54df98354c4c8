"""Where the relays of these tests keep their events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.effort import tries
from tests.harness.postgres import postgres
from tests.harness.relay_program import Rookery

if TYPE_CHECKING:
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

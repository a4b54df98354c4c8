"""Every script of this folder, played to a relay of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from tests.conversations.relays import Relays
from tests.conversations.runner import Manner, play
from tests.conversations.script import all_paths, name_of, script_file
from tests.effort import tries
from tests.harness.postgres import postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.postgres import PostgresServer

__all__ = ["postgres"]

NOT_BUILT: dict[str, str] = {}
"""Scripts ahead of the relay, and what they wait for. One that passes must leave this table."""


def played(path: Path, store: str) -> object:
    script = script_file(path)
    proof = f"conversations/{script.path}.nostr"
    marks = [pytest.mark.proves(*script.proves, by=proof)] if script.proves else []
    if script.restarts:
        marks.append(pytest.mark.slow)
    waits_for = NOT_BUILT.get(name_of(path))
    if waits_for:
        ahead = pytest.mark.xfail(raises=AssertionError, reason=f"not built: {waits_for}")
        marks.append(ahead)
    prefix = "" if store == "sqlite" else f"{store}-"
    return pytest.param(path, store, id=f"{prefix}{name_of(path)}", marks=marks)


# On `two-relays`, connections go to two processes on one database in turn.
ASK_THE_STORE: Final = ("nip09/", "nip29/", "nip45/", "nip50/", "nip62/", "nip77/")


def on_postgres() -> list[Path]:
    """Those that ask most of a store, for relays without rules of their own: a start takes longer
    than a script. All of them pass. CI plays all of them, `make test` those about deletions."""
    folders = ASK_THE_STORE[: tries(6, full=6, part=1)]
    paths = [path for path in all_paths() if name_of(path).startswith(folders)]
    return [path for path in paths if not script_file(path).policy]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def on_files() -> AsyncIterator[Relays]:
    async with Relays() as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def on_database(postgres: PostgresServer) -> AsyncIterator[Relays]:
    async with Relays(postgres) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def in_pairs(postgres: PostgresServer) -> AsyncIterator[Relays]:
    async with Relays(postgres, shared=True) as running:
        yield running


RELAYS: Final = {"sqlite": "on_files", "postgres": "on_database", "two-relays": "in_pairs"}


@pytest.fixture
def relays(request: pytest.FixtureRequest, store: str) -> Relays:
    """Those of the session: were they a parameter, they would end with each test."""
    running: Relays = request.getfixturevalue(RELAYS[store])
    return running


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("path", "store"),
    [
        *[played(path, "sqlite") for path in all_paths()],
        *[played(path, "postgres") for path in on_postgres()],
        *[played(path, "two-relays") for path in on_postgres()],
    ],
)
async def test_the_relay_answers_as_written(path: Path, relays: Relays) -> None:
    script = script_file(path)
    await play(script, await relays.relay_for(script), Manner())

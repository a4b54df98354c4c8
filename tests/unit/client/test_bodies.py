"""Answers over HTTP are read within bounds, whatever they are sent as."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import webbrowser
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner

from relay.cli import console
from relay.client import CallRefused, Client, NotARelay, connection
from relay.client.connection import body_of, http_session, is_bomb
from relay.client.settings import ClientFile, ClientSettings
from relay.errors import UserError
from tests.cast import owner
from tests.harness.web_server import answering
from tests.unit.client.conftest import TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXPANDED = 20_000_000


@contextlib.asynccontextmanager
async def giving(body: bytes, **headers: str) -> AsyncIterator[str]:
    """The URL of a relay that answers every request with this."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers=headers)

    async with answering(answer) as at:
        yield f"ws://{at}"


@pytest.fixture
async def bomb() -> AsyncIterator[str]:
    """The URL of a relay that answers with few bytes, which become many."""
    packed = gzip.compress(b'{"path": "' + b"x" * EXPANDED + b'"}')
    assert len(packed) < EXPANDED / 500
    async with giving(packed, **{"Content-Encoding": "gzip"}) as url:
        yield url


async def test_a_compressed_body_is_expanded_to_a_limit(bomb: str) -> None:
    async with http_session() as session:
        async with session.get("http" + bomb[2:]) as response:
            assert await body_of(response, EXPANDED - 1) is None
        async with session.get("http" + bomb[2:]) as response:
            assert len(await body_of(response, EXPANDED + 100) or b"") > EXPANDED


@pytest.mark.parametrize("element", ["[]", "{}", '""', '"\\\\"'])
def test_json_of_very_many_small_values_is_a_bomb(element: str) -> None:
    """Of 16 MiB it becomes hundreds of megabytes."""
    assert is_bomb(f"[{','.join([element] * 2_500_000)}]")


def test_long_json_is_no_bomb() -> None:
    """A content may be JSON itself."""
    inner = orjson.dumps([["a", {"b": ""}]] * 200_000).decode()
    assert not is_bomb(orjson.dumps(["EVENT", "s", {"content": inner}]).decode())
    assert not is_bomb(orjson.dumps([["p", "a" * 64]] * 100_000).decode())


async def test_a_document_or_link_that_is_too_long_is_none(bomb: str) -> None:
    async with Client(bomb, timeouts=TIMEOUTS, start_offline=True) as relay:
        with pytest.raises(NotARelay):
            await relay.information()
    settings = ClientSettings(bomb, owner, Path(), None, ClientFile())
    with pytest.raises(UserError, match="has no console"):
        await console._link(settings)


async def test_a_browser_gets_no_secret_of_the_environment_or_in_its_arguments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROOKERY_KEY", owner.nsec)
    monkeypatch.setenv("NMEM_KEY", "x")

    def browser(url: str) -> None:
        page = Path(url.removeprefix("file://"))
        mode = page.stat().st_mode & 0o777
        opened.append((page, mode, page.read_text(), "".join(os.environ)))

    monkeypatch.setattr(webbrowser, "open", browser)
    async with giving(b'{"path": "/console/link/abc"}') as url:
        run = partial(CliRunner().invoke, console.console_command, ["--relay", url])
        assert (await asyncio.to_thread(run)).exit_code == 0
    ((page, mode, text, names),) = opened
    assert page.is_relative_to(tmp_path)
    assert mode == 0o600
    assert f'<a href="http{url[2:]}/console/link/abc">' in text
    assert "PATH" in names
    assert "_KEY" not in names


async def test_a_reply_of_many_arrays_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take 35 times its bytes of memory."""
    monkeypatch.setattr(connection, "_LARGE", 2000)
    monkeypatch.setattr(connection, "_MAX_BRACKETS", 900)
    refused = []
    for arrays in (800, 1000):
        body = orjson.dumps({"result": [[]] * arrays})
        async with (
            giving(body) as url,
            Client(url, owner, timeouts=TIMEOUTS, start_offline=True) as relay,
        ):
            try:
                assert await relay.call("listbannedpubkeys") == [[]] * arrays
            except CallRefused:
                refused.append(arrays)
    assert refused == [1000]

"""The leak table against the web console: every page and its twin, every viewer.

Who may not read a thing finds neither its id nor its text on any page, and the page of it is that
of one that never was.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from base64 import b64encode
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import aiohttp
import pytest

from relay.console.pages import PAGES
from tests.effort import tries
from tests.leaks.people import CLOSED_DOWN, ENDED, FLAGS, HIDDEN, LOST, NOWHERE, VIEWERS
from tests.leaks.read_paths import GHOST_ID
from tests.leaks.relay import LeakRelay, leak_relay
from tests.leaks.test_leaks import told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.nostr.keys import SecretKey
    from tests.leaks.guards import Row

pytestmark = pytest.mark.slow

SIGNED_IN: Final = [
    name for name, viewer in VIEWERS.items() if len(viewer.keys) == 1 and not viewer.is_banned
]
"""A session has one key."""
WORDS: Final = re.compile(r"[0-9A-Za-z_-]+").findall
"""Tokens and keys as a whole: three letters of one are no word of a row."""
GROUPS: Final = (*FLAGS, ENDED, LOST, CLOSED_DOWN)
PART: Final = tries(1, 1, 8)
"""A viewer looks at so many times fewer pages; each page is looked at by that part of them."""


_OF_ONE_ADDRESS: Final = 15
_ADDRESSES: Final = (f"127.1.{high}.{low}" for high in range(256) for low in range(1, 255))


def from_elsewhere() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(local_addr=(next(_ADDRESSES), 0))
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


class Browser:
    """Asks for pages with the session of one viewer."""

    def __init__(self, url: str, cookie: str) -> None:
        self._url = url
        self._headers = {"Cookie": cookie, "Accept": "text/html"} if cookie else {}
        self._session = from_elsewhere()
        self._asked = 0

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str) -> tuple[int, str]:
        self._asked += 1
        if self._asked % _OF_ONE_ADDRESS == 0:  # a stranger of one address has a pace
            await self._session.close()
            self._session = from_elsewhere()
        async with self._session.get(f"{self._url}{path}", headers=self._headers) as response:
            return response.status, await response.text()


@contextlib.asynccontextmanager
async def browser_of(relay: LeakRelay, key: SecretKey | None) -> AsyncIterator[Browser]:
    url = relay.rookery.url.replace("ws", "http", 1)
    cookie = ""
    if key is not None:
        tags = [["u", f"{url}/console/sign-in"], ["method", "POST"]]
        event = key.sign(27235, tags, "", int(time.time()))
        headers = {"Authorization": f"Nostr {b64encode(event.raw).decode()}"}
        async with (
            from_elsewhere() as session,
            session.post(f"{url}/console/sign-in", headers=headers) as response,
        ):
            assert response.status == 200, await response.text()
            cookie = response.headers["Set-Cookie"].partition(";")[0]
    async with Browser(url, cookie) as browser:
        yield browser


def values(tag: str, rows: Sequence[Row], *kinds: int) -> list[str]:
    """What a page of memory is asked for by."""
    found = {
        value
        for row in rows
        if not kinds or row.event.kind in kinds
        for value in row.event.tag_values(tag)
    }
    return sorted(found)


def pages(rows: Sequence[Row]) -> list[str]:
    """Every page that there is, asked for by everything that names something here."""
    keys = sorted({row.event.pubkey for row in rows})
    kinds = sorted({row.event.kind for row in rows})
    named = {
        "group": [f"id={group}" for group in (*GROUPS, NOWHERE)],
        "edit-group": [f"id={group}" for group in (*GROUPS, NOWHERE)],
        "config": ["", *(f"group={group}" for group in (*GROUPS, NOWHERE))],
        "person": [f"key={key}" for key in keys],
        "memory": ["", *(f"by={key}" for key in keys), "q=psst"],
        "aman": [f"hk={quote(hk)}" for hk in values("hk", rows)],
        "session": [f"id={quote(d)}" for d in values("d", rows, 1988)],
        "nmem": [f"session={quote(session)}" for session in values("s", rows)],
        "claim": [f"hash={hashed}" for hashed in values("x", rows)],
        "context": [
            f"agent={key}&system={system}&of={quote(of)}"
            for key in sorted({row.event.pubkey for row in rows if row.event.kind == 30078})
            for system, named in (
                ("aman", values("hk", rows)),
                ("nmem", ["rook"]),
                ("snowclaw", [*GROUPS, NOWHERE]),
            )
            for of in named
        ],
        "event": [f"id={row.event.id}" for row in rows],
        "events": [
            *(f"filter={quote(json.dumps({'kinds': [kind]}))}" for kind in kinds),
            *(f"filter={quote(json.dumps({'authors': [key]}))}" for key in keys),
            f"filter={quote(json.dumps({'search': 'psst'}))}",
        ],
    }
    found = ["/"]
    for page in PAGES:
        for number, query in enumerate(named.get(page.name, [""])):
            mark = "?" if query else ""
            # The page is made of what the twin gives: of many alike a few are looked at too.
            endings = ["", ".json"] if number < len(GROUPS) + 1 else [".json"]
            found += [f"/console/{page.name}{ending}{mark}{query}" for ending in endings]
    return found


def hidden_from(viewer: str, rows: Sequence[Row]) -> dict[str, str]:
    """What no page of this viewer may have: an id or a word, and what it is of."""
    # What they read may name the id of what they do not, such as the 9005 of an event.
    raws = [row.event.raw.decode() for row in rows if row.is_for(viewer, stored=True)]
    told = {*WORDS(" ".join(raws))}
    return {
        text: row.says
        for row in rows
        if not row.is_for(viewer, stored=True)
        for text in (row.event.id, row.word)
        if text and text not in told
    }


async def test_no_page_has_what_its_reader_may_not_read(tmp_path: Path) -> None:
    async with leak_relay(tmp_path / "data") as relay:
        rows = await told(relay)
        paths = pages(rows)
        wrong: list[str] = []
        found = 0
        for turn, viewer in enumerate(("nobody", *SIGNED_IN)):
            key = relay.key_of(VIEWERS[viewer].keys[0]) if VIEWERS[viewer].keys else None
            async with browser_of(relay, key) as browser:
                _, of_ghost = await browser.get(f"/console/event.json?id={GHOST_ID}")
                _, of_nowhere = await browser.get(f"/console/group?id={NOWHERE}")
                hidden = hidden_from(viewer, rows)
                assert hidden
                for path in paths[turn % PART :: PART]:
                    status, text = await browser.get(path)
                    assert status in (200, 401, 403, 404), (viewer, path, text)
                    wrong += [
                        f"{viewer}: {path} has {hidden[word]}"
                        for word in {*WORDS(text)} - {*WORDS(path)}
                        if word in hidden
                    ]
                    found += status == 200
                    if path.startswith("/console/event.json") and status != 200:
                        assert (status, text) == (404, of_ghost), (viewer, path)
                for group in HIDDEN:
                    if not any(
                        row.is_for(viewer, stored=True) and row.event.kind == 39000
                        for row in rows
                        if row.group == group
                    ):
                        status, text = await browser.get(f"/console/group?id={group}")
                        same = text.replace(f"id={group}", f"id={NOWHERE}")
                        assert (status, same) == (404, of_nowhere), (viewer, group)
        assert wrong[:20] == []
        assert found > 1000 / PART

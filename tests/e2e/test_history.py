"""Old versions over HTTP: `GET ?history=`, and what is left of them in files."""

from __future__ import annotations

import signal
import time
from base64 import b64encode
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from aiohttp import ClientSession
from yarl import URL

from tests import cast
from tests.harness.erasure import erased, left_of, planted
from tests.harness.relay_program import Rookery, command, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

STORED = (True, "")
UNKNOWN = (404, {"error": "invalid: nothing is stored under this address"})
RULES = """
[[retention]]
name    = "history"
history = { count = 3, days = 9 }
"""
NOTES = f"30023:{cast.alice.pubkey}:my notes/ü+1"


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    now.cache_clear()
    async with Rookery(tmp_path / "data") as running:
        await running.init("--owner", cast.owner.pubkey, "--preset", "open")
        (tmp_path / "data" / "policies" / "50-history.toml").write_text(RULES)
        await running.start()
        yield running


@cache
def now() -> int:
    """When this test began, less 100 s."""
    return int(time.time()) - 100


def version(number: int, *tags: list[str], text: str = "") -> Event:
    d = NOTES.split(":", 2)[2]
    return cast.alice.sign(30023, [["d", d], *tags], text or f"text {number}", now() + number)


async def asked(
    rookery: Rookery,
    who: SecretKey | None,
    address: str = NOTES,
    authorization: str | None = None,
    **more: str,
) -> tuple[int, Any]:
    at = f"{rookery.url.replace('ws:', 'http:')}/?{urlencode({'history': address, **more})}"
    headers = {}
    if who is not None:
        event = who.sign(
            27235, [["u", at], ["method", "GET"]], str(time.monotonic_ns()), int(time.time())
        )
        authorization = f"Nostr {b64encode(event.raw).decode()}"
    if authorization is not None:
        headers["Authorization"] = authorization
    async with (
        ClientSession() as session,
        session.get(URL(at, encoded=True), headers=headers) as response,
    ):
        return response.status, await response.json(content_type=None)


async def succeed(*args: str) -> str:
    code, printed = await command(*args)
    assert code == 0, printed
    return printed


async def ids_for(rookery: Rookery, who: SecretKey, address: str = NOTES) -> list[str]:
    status, answer = await asked(rookery, who, address)
    assert status == 200, answer
    assert answer["next"] is None
    return [event["id"] for event in answer["versions"]]


async def test_the_newest_comes_first_then_what_it_replaced(rookery: Rookery) -> None:
    events = [version(number) for number in range(5)]
    await rookery.store(*events)
    kept = [event.id for event in events[:0:-1]]
    assert await ids_for(rookery, cast.bob) == kept
    status, answer = await asked(rookery, cast.bob, before=kept[1])
    assert (status, [event["id"] for event in answer["versions"]]) == (200, kept[2:])
    async with connected(rookery.url) as wire:
        assert await wire.query({"ids": kept[1:]}) == []
        (newest,) = await wire.query({"authors": [cast.alice.pubkey], "kinds": [30023]})
        assert newest["id"] == kept[0]


async def test_who_asks_wrongly_is_told(rookery: Rookery) -> None:
    await rookery.store(version(1))
    status, answer = await asked(rookery, None)
    assert (status, answer["error"].partition(":")[0]) == (401, "invalid")
    for address in ("", "30023", f"30023:{cast.alice.npub}:x", f"x:{cast.alice.pubkey}:x"):
        status, answer = await asked(rookery, cast.bob, address)
        expected = "invalid: history: must be KIND:PUBKEY:D"
        assert (status, answer) == (400, {"error": expected})
    status, answer = await asked(rookery, cast.bob, before="abc")
    assert (status, answer) == (400, {"error": "invalid: before: must be an event id, 64 hex"})


async def test_a_signed_request_is_good_for_one_answer(rookery: Rookery) -> None:
    await rookery.store(version(1))
    at = f"{rookery.url.replace('ws:', 'http:')}/?{urlencode({'history': NOTES})}"
    event = cast.bob.sign(27235, [["u", at], ["method", "GET"]], "", int(time.time()))
    header = f"Nostr {b64encode(event.raw).decode()}"
    statuses = [(await asked(rookery, None, NOTES, header))[0] for _ in range(2)]
    assert statuses == [200, 401]
    other = (await asked(rookery, None, NOTES + "x", header))[0]
    assert other == 401


async def test_a_request_dated_before_the_start_has_no_authorization(rookery: Rookery) -> None:
    await rookery.stop(signal.SIGKILL)
    await rookery.start()
    at = f"{rookery.url.replace('ws:', 'http:')}/?{urlencode({'history': NOTES})}"
    event = cast.bob.sign(27235, [["u", at], ["method", "GET"]], "", int(time.time()) - 30)
    status, answer = await asked(rookery, None, NOTES, f"Nostr {b64encode(event.raw).decode()}")
    assert status == 401
    assert "before the start" in answer["error"]


async def test_a_record_that_one_may_not_read_is_as_one_that_never_was(rookery: Rookery) -> None:
    h = ["h", "tea"]
    group = [
        cast.admin.sign(9007, [h], "", now()),
        cast.admin.sign(9002, [h, ["private"], ["closed"]], "", now() + 1),
        cast.admin.sign(9000, [h, ["p", cast.alice.pubkey]], "", now() + 2),
    ]
    await rookery.store(*group, version(3, h), version(4, h), by=cast.alice)
    assert len(await ids_for(rookery, cast.alice)) == 2
    assert len(await ids_for(rookery, cast.admin)) == 2
    assert await asked(rookery, cast.bob) == UNKNOWN
    assert await asked(rookery, cast.bob, f"{NOTES}?") == UNKNOWN


async def test_nothing_is_left_of_them_in_any_file_after_a_deletion(rookery: Rookery) -> None:
    words = planted(1)
    secret, current = version(1, text=words[0]), version(2)
    await rookery.store(secret, current)
    assert left_of(words, rookery.folder)
    await rookery.store(cast.alice.sign(5, [["e", current.id]], "", now() + 3))
    assert await asked(rookery, cast.alice) == UNKNOWN
    await erased(words, rookery.folder)


async def test_the_document_says_whether_there_is_a_history(rookery: Rookery) -> None:
    address = rookery.url.replace("ws:", "http:")
    headers = {"Accept": "application/nostr+json"}
    async with ClientSession() as session, session.get(address, headers=headers) as response:
        document = await response.json(content_type=None)
    assert document["memory"]["history"] is True


async def test_an_export_with_versions_restores_the_history(
    rookery: Rookery, tmp_path: Path
) -> None:
    events = [version(number) for number in range(3)]
    await rookery.store(*events, cast.bob.sign(1, [], "between", now()))
    file, other = tmp_path / "events.jsonl", tmp_path / "other"
    folder = str(rookery.folder)
    await succeed("export", "--data", folder, "-o", str(file))
    assert len(file.read_text().splitlines()) == 2
    await succeed("export", "--versions", "--data", folder, "-o", str(file))
    written = file.read_bytes()
    assert written.splitlines()[:3] == [event.raw for event in events]
    await succeed("init", str(other), "--owner", cast.owner.pubkey, "--preset", "open")
    (other / "policies" / "50-history.toml").write_text(RULES)
    await succeed("import", str(file), "--data", str(other))
    await succeed("export", "--versions", "--data", str(other), "-o", str(file))
    assert file.read_bytes() == written
    await succeed("verify", "--data", str(other))

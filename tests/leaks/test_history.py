"""The history of every record of the leak table, asked for by every viewer with one key.

Who may not read a record gets, to the last byte, what is said of one that never was. An old version
is in no answer to a REQ, COUNT or NEG-OPEN.
"""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import aiohttp
import pytest
from yarl import URL

from relay.nostr import kinds
from relay.nostr.kinds import KindClass, class_of
from tests.leaks.people import KEYS, VIEWERS
from tests.leaks.read_paths import GHOST
from tests.leaks.relay import Asker, LeakRelay, leak_relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

pytestmark = [pytest.mark.slow, pytest.mark.process]

RULES: Final = '[[retention]]\nname = "history"\nhistory = { count = 3 }\n'
REPLACED: Final = (KindClass.REPLACEABLE, KindClass.ADDRESSABLE)
ASKING: Final = [
    name
    for name, viewer in VIEWERS.items()
    if len(viewer.keys) == 1 and not viewer.is_trusted and not viewer.is_banned
]


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[LeakRelay]:
    async with leak_relay(tmp_path / "data", RULES) as relay:
        yield relay


@pytest.mark.proves("G-13", "G-16", "Z-08", "N01-46", "N01-47")
async def test_a_history_is_for_who_may_read_its_record(relay: LeakRelay) -> None:
    rows = relay.write()
    await relay.publish(rows)
    old: dict[str, Event] = {}
    for row in rows:
        event = row.event
        if class_of(event.kind) in REPLACED and event.kind not in kinds.GROUP_STATE:
            key = next((k for k in KEYS.values() if k.pubkey == event.pubkey), None)
            again = None if key is None else newer(event, key)
            if again is not None and await relay.publisher.publish(again) == (True, ""):
                old[address_of(event)] = event
    assert len(old) > 10, "the table has records of many guards"
    faults = []
    for viewer in ASKING:
        key = relay.key_of(next(iter(VIEWERS[viewer].keys)))
        ghost = await asked(relay, key, f"30023:{key.pubkey}:{GHOST}")
        for row in rows:
            if address_of(row.event) not in old or old[address_of(row.event)] != row.event:
                continue
            status, answer = await asked(relay, key, address_of(row.event))
            ids = [event["id"] for event in answer.get("versions", ())]
            is_theirs = row.is_for(viewer, stored=True)
            if is_theirs and (status != 200 or row.event.id not in ids[1:]):
                faults.append(f"{viewer}, {row.says}: not given, {status} {ids}")
            if not is_theirs and ((status, answer) != ghost or status != 404):
                faults.append(f"{viewer}, {row.says}: GIVEN {status} {answer}")
    for viewer in ASKING:
        asker = Asker(await relay.enter(viewer))
        for verb in ("REQ", "COUNT", "NEG-OPEN"):
            text = json.dumps([{"ids": sorted(event.id for event in old.values())}])
            await asker.ask(verb, [text])
            if asker.given[verb, text]:
                faults.append(f"{viewer}, {verb}: given an old version")
    print(f"{len(old)} records, {len(ASKING)} viewers")
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:40])


def newer(event: Event, key: SecretKey) -> Event:
    at = event.created_at + 1
    tags = [["ts", str(at)] if tag[:1] == ["ts"] else list(tag) for tag in event.tags]
    return key.sign(event.kind, tags, event.content, at)


def address_of(event: Event) -> str:
    d = "" if class_of(event.kind) is KindClass.REPLACEABLE else event.d
    return f"{event.kind}:{event.pubkey}:{d}"


async def asked(relay: LeakRelay, who: SecretKey, address: str) -> tuple[int, Any]:
    url = relay.rookery.url.replace("ws", "http", 1)
    at = f"{url.rstrip('/')}/?{urlencode({'history': address})}"
    tags = [["u", at], ["method", "GET"]]
    event = who.sign(27235, tags, str(time.monotonic_ns()), int(time.time()))
    headers = {"Authorization": f"Nostr {base64.b64encode(event.raw).decode()}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(URL(at, encoded=True), headers=headers) as response,
    ):
        return response.status, await response.json(content_type=None)

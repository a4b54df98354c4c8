"""Receipts of erasure: `rookery forget`, and the HTTP request behind it."""

from __future__ import annotations

import json
import sqlite3
import time
from base64 import b64encode
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession

from relay.nostr.erasure import RECEIPT
from relay.nostr.keys import read_key_file
from tests import cast
from tests.harness.erasure import erased, left_of, planted
from tests.harness.relay_program import Rookery, command, connected, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.keys import SecretKey

STORED = (True, "")
UNKNOWN = (404, {"error": "invalid: no deletion by this request is known here"})


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as running:
        keys = [cast.owner.pubkey, "--agent", cast.robot.pubkey]
        await running.init("--owner", *keys, "--preset", "open")
        await running.start()
        yield running


def header(url: str, who: SecretKey, query: str, method: str = "GET") -> str:
    at = f"{url.replace('ws:', 'http:')}/?{query}"
    tags = [["u", at], ["method", method]]
    event = who.sign(27235, tags, str(time.monotonic_ns()), int(time.time()))
    return f"Nostr {b64encode(event.raw).decode()}"


async def asked(
    url: str, who: SecretKey | None, request: str, authorization: str | None = None
) -> tuple[int, Any]:
    query = f"receipt={request}"
    headers = {}
    if who is not None:
        headers["Authorization"] = authorization or header(url, who, query)
    at = f"{url.replace('ws:', 'http:')}/?{query}"
    async with ClientSession() as http, http.get(at, headers=headers) as answer:
        return answer.status, json.loads(await answer.read())


async def receipt(url: str, who: SecretKey, request: str) -> dict[str, Any]:
    async with until("the receipt is signed") as tries:
        async for _ in tries:
            status, said = await asked(url, who, request)
            if status != 202:
                assert status == 200, said
                break
    event: dict[str, Any] = said
    return event


def tags_of(event: dict[str, Any], name: str) -> list[list[str]]:
    return [tag[1:] for tag in event["tags"] if tag[0] == name]


async def forget(rookery: Rookery, who: SecretKey, *args: str) -> tuple[int, str]:
    key_file = rookery.folder.parent / "key"
    key_file.write_text(who.nsec)
    key_file.chmod(0o600)
    return await command("forget", *args, "--relay", rookery.url, "--key-file", str(key_file))


@pytest.mark.proves("N09-13")
async def test_an_author_forgets_with_proof(rookery: Rookery, tmp_path: Path) -> None:
    now, texts = int(time.time()), planted(2)
    notes = [cast.alice.sign(1, [], text, now) for text in texts]
    profile = cast.alice.sign(30_078, [["d", "x:y"]], texts[0], now)
    await rookery.store(*notes, profile)
    file = tmp_path / "receipt.json"
    targets = [*(note.id for note in notes), f"30078:{cast.alice.pubkey}:x:y"]

    code, text = await forget(rookery, cast.alice, *targets, "--proof", "-o", str(file))

    assert code == 0, text
    assert left_of(texts, rookery.folder) == {}, "signed when it is true"
    assert "11 erased: 10 of kind 1, 1 of kind 30078" in text
    relay = read_key_file((rookery.folder / "relay.key").read_text(), "relay.key").pubkey
    event = json.loads(file.read_text())
    assert (event["kind"], event["pubkey"]) == (RECEIPT, relay)
    assert {tag[0] for tag in tags_of(event, "erased")} == {n.id for n in [*notes, profile]}
    assert tags_of(event, "p") == [[cast.alice.pubkey]]
    assert tags_of(event, "k") == [["5"]]
    assert not any(text in file.read_text() for text in texts)
    request = tags_of(event, "e")[0][0]
    code, text = await forget(rookery, cast.alice, "--receipt", request)
    assert (code, "with -o FILE it is saved" in text) == (0, True), text

    await rookery.stop()  # nothing is asked to check it
    code, text = await command("forget", "--verify", str(file), "--relay-key", relay, "--json")
    assert code == 0, text
    shown = json.loads(text)
    assert (shown["relay"], shown["by"], shown["events"]) == (relay, cast.alice.pubkey, 11)
    code, text = await command("forget", "--verify", str(file), "--relay-key", cast.bob.npub)
    assert (code, "another key" in text) == (1, True)
    file.write_text(file.read_text().replace('"number","1","10"', '"number","1","11"'))
    code, text = await command("forget", "--verify", str(file))
    assert (code, "not a receipt" in text) == (1, True)


async def test_no_older_version_of_a_forgotten_record_comes_back(rookery: Rookery) -> None:
    """Whoever had one could send it again: only the id of the newest was named."""
    now = int(time.time())
    older, newest = (
        cast.alice.sign(30_078, [["d", "x:y"]], text, now + place)
        for place, text in enumerate(("older", "newest"), start=-9)
    )
    await rookery.store(older)
    await rookery.store(newest)
    code, text = await forget(rookery, cast.alice, newest.id)
    assert code == 0, text
    async with connected(rookery.url) as wire:
        assert (await wire.publish(older))[0] is False


async def test_no_address_is_named_beside_events_of_a_group(rookery: Rookery) -> None:
    """The group reads the kind 5 that deleted one of its events."""
    now = int(time.time())
    said = cast.owner.sign(9, [["h", "tea"]], "hello", now)
    note = cast.owner.sign(30_078, [["d", "x:y"]], "private", now)
    await rookery.store(cast.owner.sign(9007, [["h", "tea"]], "", now), said, note)
    address = f"30078:{cast.owner.pubkey}:x:y"
    code, text = await forget(rookery, cast.owner, said.id, address)
    assert (code, "delete them one at a time" in text) == (1, True), text
    for targets in ([said.id], [note.id, address]):
        code, text = await forget(rookery, cast.owner, *targets)
        assert code == 0, text


@pytest.mark.proves("N62-04")
async def test_who_vanishes_gets_a_receipt(rookery: Rookery) -> None:
    now = int(time.time())
    notes = [cast.alice.sign(1, [], f"{number}", now) for number in range(1200)]
    await rookery.store(*notes, cast.bob.sign(1059, [["p", cast.alice.pubkey]], "sealed", now))
    code, text = await forget(rookery, cast.alice, "--vanish", "--yes", "--proof", "--json")
    assert code == 0, text
    event = json.loads(text)["receipt"]
    assert sorted(tags_of(event, "number")) == [["1", "1200"], ["1059", "1"]]
    assert len(tags_of(event, "erased")) == 1000
    assert tags_of(event, "k") == [["62"]]


async def test_a_moderator_gets_a_receipt(rookery: Rookery) -> None:
    owner, now = cast.owner, int(time.time())
    said = cast.alice.sign(9, [["h", "tea"]], "hello", now)
    await rookery.store(
        owner.sign(9007, [["h", "tea"]], "", now),
        owner.sign(9000, [["h", "tea"], ["p", cast.alice.pubkey]], "", now),
        said,
    )
    code, text = await forget(rookery, owner, said.id, "--group", "tea", "--proof", "--json")
    assert code == 0, text
    event = json.loads(text)["receipt"]
    assert tags_of(event, "erased") == [[said.id, "9"]]
    assert tags_of(event, "k") == [["9005"]]


async def test_nobody_else_learns_of_an_erasure(rookery: Rookery) -> None:
    """The answer for a request of somebody else is that for one that never was."""
    now = int(time.time())
    note = cast.alice.sign(1, [], "tea", now)
    deletion = cast.alice.sign(5, [["e", note.id]], "", now)
    await rookery.store(note, deletion)
    assert (await receipt(rookery.url, cast.alice, deletion.id))["kind"] == RECEIPT
    assert (await receipt(rookery.url, cast.owner, deletion.id))["kind"] == RECEIPT
    for who in (cast.bob, cast.robot):
        for request in (deletion.id, note.id, "0" * 64):
            assert await asked(rookery.url, who, request) == UNKNOWN
    assert (await asked(rookery.url, None, deletion.id))[0] == 401
    assert (await asked(rookery.url, cast.alice, "x"))[0] == 400
    once = header(rookery.url, cast.alice, f"receipt={deletion.id}")
    assert (await asked(rookery.url, cast.alice, deletion.id, once))[0] == 200
    assert (await asked(rookery.url, cast.alice, deletion.id, once))[0] == 401
    for_another = header(rookery.url, cast.alice, f"receipt={note.id}")
    assert (await asked(rookery.url, cast.alice, deletion.id, for_another))[0] == 401
    async with connected(rookery.url) as wire:
        await wire.log_in(cast.owner, rookery.url, now)
        assert await wire.query({"kinds": [RECEIPT]}) == [], "it is stored nowhere"


async def test_a_deletion_of_what_is_not_ones_own_has_no_receipt(rookery: Rookery) -> None:
    """As one of what does not exist: a receipt must not tell which."""
    now = int(time.time())
    note = cast.alice.sign(1, [], "tea", now)
    theirs = cast.bob.sign(5, [["e", note.id]], "", now)
    missing = cast.bob.sign(5, [["e", "0" * 64]], "", now)
    await rookery.store(note, missing)
    async with connected(rookery.url) as wire:
        await wire.publish(theirs)
    assert await asked(rookery.url, cast.bob, missing.id) == UNKNOWN
    assert await asked(rookery.url, cast.bob, theirs.id) == UNKNOWN


async def test_nothing_is_signed_before_it_is_erased(rookery: Rookery) -> None:
    """Another program reads the file; and again after a restart."""
    now, texts = int(time.time()), planted(2)
    notes = [cast.alice.sign(1, [], text, now) for text in texts]
    deletion = cast.alice.sign(5, [["e", note.id] for note in notes], "", now)
    await rookery.store(*notes)
    file = rookery.folder / "rookery.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        await rookery.store(deletion)
        for _ in range(20):
            status, _ = await asked(rookery.url, cast.alice, deletion.id)
            assert status == 202
        # Not by reading the files: closing one would end the locks of this process on it.
        kept = "SELECT count(*) FROM events WHERE instr(raw, ?)"
        assert reader.execute(kept, (texts[0].encode(),)).fetchone() == (1,)
        reader.execute("COMMIT")
    assert await receipt(rookery.url, cast.alice, deletion.id)
    assert left_of(texts, rookery.folder) == {}
    await rookery.stop()
    await rookery.start()
    assert await receipt(rookery.url, cast.alice, deletion.id)
    await erased(texts, rookery.folder)


async def test_what_to_forget_is_said_once_and_well(rookery: Rookery) -> None:
    for args in ([], ["--vanish", "0" * 64], ["nonsense"], ["--receipt", "x"]):
        code, text = await forget(rookery, cast.alice, *args)
        assert code == 2, text
    notes = [cast.alice.sign(1, [], f"note {n}", int(time.time())) for n in range(2)]
    await rookery.store(*notes, by=cast.alice)
    code, text = await forget(rookery, cast.alice, "00000000")
    assert code == 1
    assert "none of the newest" in text
    code, text = await forget(rookery, cast.alice, notes[0].id[:12], "--json")
    assert code == 0, text
    async with connected(rookery.url) as wire:
        assert [row["id"] for row in await wire.query({"kinds": [1]})] == [notes[1].id]
    code, text = await forget(rookery, cast.alice, "--vanish", "Bob")
    assert code == 2
    assert "--vanish accepts no key or event" in text
    assert "rookery ban KEY" in text
    profile = cast.alice.sign(0, [], '{"name": "Alice"}', int(time.time()))
    await rookery.store(profile, by=cast.alice)
    code, text = await forget(rookery, cast.alice, "--vanish")
    assert code == 1
    question = f"Delete everything that Alice, {cast.alice.npub}, wrote at {rookery.url}, for ever?"
    assert question in text
    assert "nothing was changed" in text
    code, text = await forget(rookery, cast.alice, "--receipt", "0" * 64)
    assert code == 1
    assert "no deletion by this request is known here" in text

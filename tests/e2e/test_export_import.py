"""`rookery export` and `rookery import`: nothing is lost, changed or hushed up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import stat
import sys
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import TYPE_CHECKING, Any

import pytest

from relay.nostr.kinds import RELAY_SIGNED
from relay.nostr.nip29 import made_by
from tests import cast, golden
from tests.harness.patience import PROGRAM_S
from tests.harness.programs import start_rookery
from tests.harness.relay_program import Rookery, command, connected, eventually, outputs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.nostr.event import Event

pytestmark = pytest.mark.slow

FIELDS = ("id", "pubkey", "created_at", "kind", "tags", "content", "sig")
NOT_FOR_ALL = {4, 1059, 31234}
"""Kinds of the golden file that not everybody may read."""
DAY = 86_400


def golden_events() -> list[dict[str, Any]]:
    return [line["event"] for line in golden.lines("events.jsonl")]


def is_ephemeral(event: dict[str, Any]) -> bool:
    return bool(20000 <= event["kind"] < 30000)


def is_expired(event: dict[str, Any]) -> bool:
    ends = [int(tag[1]) for tag in event["tags"] if tag[0] == "expiration"]
    return bool(ends) and ends[0] <= time.time()


def fields(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in FIELDS}


def parsed(lines: bytes) -> list[dict[str, Any]]:
    assert lines == b"" or lines.endswith(b"\n")
    return [json.loads(line) for line in lines.split(b"\n") if line]


def write(path: Path, events: Iterable[dict[str, Any] | Event]) -> Path:
    with path.open("wb") as file:
        for event in events:
            raw = getattr(event, "raw", None)
            file.write((raw or json.dumps(event, ensure_ascii=False).encode()) + b"\n")
    return path


async def make(folder: Path, preset: str = "open") -> Rookery:
    rookery = Rookery(folder)
    await rookery.init(
        "--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--preset", preset
    )
    return rookery


async def export(rookery: Rookery, *args: str) -> bytes:
    code, out, err = await outputs("export", "--data", str(rookery.folder), *args)
    assert (code, err) == (0, "" if out else "0 events, 0 bytes\n"), err
    return out


async def import_(rookery: Rookery, path: Path, *args: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the tally without reasons, what stderr says without their counts."""
    code, out, err = await outputs(
        "import", str(path), "--data", str(rookery.folder), "--json", "-v", *args
    )
    assert "Traceback" not in err
    tally = json.loads(out)
    assert sum(reason["count"] for reason in tally.pop("reasons").values()) == tally["refused"]
    lines = err.splitlines(keepends=True)
    return code, tally, "".join(line for line in lines if not line.startswith("refused "))


# -- the golden file -------------------------------------------------------------------------------


async def test_the_golden_events_come_out_as_they_went_in(tmp_path: Path) -> None:
    events = golden_events()
    file = write(tmp_path / "golden.jsonl", events)
    rookery = await make(tmp_path / "data")
    code, tally, err = await import_(rookery, file)
    gone = [event for event in events if is_ephemeral(event) or is_expired(event)]
    assert gone, "the golden file should have both"
    stored = [event for event in events if event not in gone]

    out = await export(rookery)
    assert [fields(event) for event in parsed(out)] == [fields(event) for event in stored]
    assert all(set(event) == set(FIELDS) for event in parsed(out))
    assert out == await export(rookery)

    expired = [event for event in gone if is_expired(event)]
    assert code == 1
    assert tally["read"] == len(events)
    assert tally["stored"] == len(stored)
    assert tally["passed_on"] == len(gone) - len(expired)
    assert tally["refused"] == len(expired)
    for event in expired:
        line = events.index(event) + 1
        assert f"{file}:{line}: invalid: event expired (id {event['id']})" in err

    async with rookery:
        await rookery.start()
        async with connected(rookery.url) as wire:
            found = await wire.query({"ids": [event["id"] for event in events]})
            by_id = {event["id"]: event for event in found}
            for event in stored:
                if event["kind"] in NOT_FOR_ALL:
                    assert event["id"] not in by_id
                else:
                    assert by_id[event["id"]] == fields(event)
            assert len(by_id) == sum(event["kind"] not in NOT_FOR_ALL for event in stored)
        assert out == await export(rookery)  # through the control socket
        assert await rookery.stop() == 0


@pytest.mark.proves("G-28")
async def test_an_export_is_imported_elsewhere_whole(tmp_path: Path) -> None:
    one, two = await make(tmp_path / "one"), await make(tmp_path / "two", "group")
    file = write(tmp_path / "golden.jsonl", golden_events())
    await import_(one, file)
    target = tmp_path / "export.jsonl"
    code, text = await command("export", "--data", str(one.folder), "-o", str(target))
    assert code == 0, text
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    code, tally, err = await import_(two, target, "--trust")
    assert (code, err) == (0, "")
    assert tally["stored"] == tally["read"] == len(target.read_bytes().splitlines())
    assert set((await export(two)).splitlines()) == set(target.read_bytes().splitlines())


async def test_without_trust_the_rules_about_authors_hold(tmp_path: Path) -> None:
    two = await make(tmp_path / "two", "group")
    events = golden_events()
    code, tally, err = await import_(two, write(tmp_path / "golden.jsonl", events))
    assert code == 1
    assert tally["stored"] == 0
    assert tally["refused"] == len(events)
    lines = err.splitlines()
    assert [line.split(": ")[0].rsplit(":")[-1] for line in lines] == [
        str(number + 1) for number in range(len(events))
    ]
    assert sum(": restricted: " in line for line in lines) >= len(events) - 3
    assert await export(two) == b""


async def test_old_moderation_is_taken_on_trust_only(tmp_path: Path) -> None:
    """A group of today, and 9000, 9001 and 9008 of its admin that are 80 days old."""
    alice, bob, carol = cast.alice, cast.bob, cast.carol
    rookery = await make(tmp_path / "one")
    now, h = int(time.time()), ["h", "tea"]
    then = now - 80 * DAY
    file = write(
        tmp_path / "old.jsonl",
        [
            alice.sign(9000, [h, ["p", carol.pubkey]], "", then),
            alice.sign(9001, [h, ["p", bob.pubkey]], "", then),
            alice.sign(9008, [h], "", then),
        ],
    )
    says = (
        f"{file} has group records: 1 × 9000, 1 × 9001, 1 × 9008; they delete 1 group (tea),"
        " add 1 member, remove 1 member"
    )
    async with rookery:
        await rookery.start()
        async with connected(rookery.url) as wire:
            for event in (
                alice.sign(9007, [h], "", now),
                alice.sign(9000, [h, ["p", bob.pubkey]], "", now),
            ):
                assert await wire.publish(event) == (True, "")
            data = ["--data", str(rookery.folder)]
            code, out, err = await outputs("import", str(file), *data, "--dry-run")
            assert (code, out.decode(), err) == (0, "3 read, nothing stored\n", says + "\n")
            code, tally, err = await import_(rookery, file)
            assert (code, tally["stored"], tally["refused"]) == (1, 0, 3)
            first, *refused = err.splitlines()
            assert first == says
            assert all("older than the group of this name here" in line for line in refused)
            assert await wire.publish(bob.sign(9, [h], "still here", now)) == (True, "")
            code, out, err = await outputs("import", "-", *data, "--trust", stdin=file.read_bytes())
            assert (code, err) == (0, says.replace(str(file), "stdin") + "\n")
            _, text = await wire.publish(bob.sign(9, [h], "not any more", now))
            assert text == "restricted: not a member"


async def test_a_file_with_the_newest_events_first_makes_no_group(tmp_path: Path) -> None:
    """It would be public with its messages until the 9002 comes."""
    now, h = int(time.time()), ["h", "den"]
    made = [
        cast.alice.sign(9007, [h], "", now - 2),
        cast.alice.sign(9002, [h, ["private"]], "", now - 1),
        cast.alice.sign(9, [h], "tea?", now),
    ]
    rookery = await make(tmp_path / "one")
    file = write(tmp_path / "newest.jsonl", reversed(made))
    for source, stdin in ((str(file), b""), ("-", file.read_bytes())):
        data = ["--data", str(rookery.folder)]
        code, _, err = await outputs("import", source, *data, stdin=stdin)
        assert (code, "1 group (den) would be public until a later line" in err) == (1, True)
        assert not await export(rookery)


@pytest.mark.parametrize("is_named", [True, False])
async def test_messages_do_not_get_into_another_group_of_the_same_id(
    tmp_path: Path, *, is_named: bool
) -> None:
    """Anybody may have made it here, and shows it to everybody. `is_named`: the 9007 has an `h`."""
    alice, mallory = cast.alice, cast.person("mallory")
    now = int(time.time())
    creation = alice.sign(9007, [["h", "den"]] if is_named else [], "", now - 9)
    h = ["h", made_by(creation)]
    secret = [alice.sign(9, [h], f"secret {number}", now) for number in range(3)]
    made = [creation, alice.sign(9002, [h, ["private"]], "", now - 8)]
    rookery = await make(tmp_path / "one")
    async with rookery:
        await rookery.start()
        async with connected(rookery.url) as wire:
            assert await wire.publish(mallory.sign(9007, [h], "", now)) == (True, "")
            file = write(tmp_path / "den.jsonl", [*made, *secret])
            code, tally, err = await import_(rookery, file)
            assert (code, tally["stored"], tally["refused"]) == (1, 0, 4)
            assert err.count("the group of this id here is another one") == 4
            assert await wire.query({"kinds": [9]}) == []


async def test_records_of_another_group_of_the_same_id_change_nothing(tmp_path: Path) -> None:
    """Alice leads both: hers here would have become public, with Mallory as a member."""
    alice, mallory = cast.alice, cast.person("mallory")
    now, h = int(time.time()), ["h", "den"]
    other = [
        alice.sign(9007, [h], "", now - 5),
        alice.sign(9002, [h, ["public"]], "", now - 4),
        alice.sign(9000, [h, ["p", mallory.pubkey]], "", now - 3),
        mallory.sign(9021, [h], "", now - 2),
    ]
    rookery = await make(tmp_path / "one")
    async with rookery:
        await rookery.start()
        async with connected(rookery.url) as wire, connected(rookery.url) as anybody:
            for event in (
                alice.sign(9007, [h, ["private"]], "", now - 9),
                alice.sign(9002, [h, ["private"]], "", now - 8),
                alice.sign(9, [h], "secret", now),
            ):
                assert await wire.publish(event) == (True, "")
            described = {"kinds": [39000, 39002], "#d": ["den"]}
            await wire.log_in(alice, rookery.url, now)
            before = await wire.query(described)
            file = write(tmp_path / "den.jsonl", other)
            code, tally, err = await import_(rookery, file)
            assert (code, tally["stored"], tally["refused"]) == (1, 0, 3)
            assert err.count("only --trust imports its events") == 3
            assert await wire.query(described) == before
            assert await anybody.query({"kinds": [9]}) == []


async def test_messages_before_their_9007_do_not_get_into_another_group(tmp_path: Path) -> None:
    """Those of earlier batches than the 9007 did: it was read with its batch."""
    alice, mallory = cast.alice, cast.person("mallory")
    now, h = int(time.time()), ["h", "den"]
    # More than a batch has.
    secret = [alice.sign(9, [h], f"secret {number}", now) for number in range(600)]
    made = [alice.sign(9007, [h], "", now - 9), alice.sign(9002, [h, ["private"]], "", now - 8)]
    rookery = await make(tmp_path / "one")
    async with rookery:
        await rookery.start()
        async with connected(rookery.url) as wire:
            assert await wire.publish(mallory.sign(9007, [h], "", now)) == (True, "")
            code, tally, _ = await import_(rookery, write(tmp_path / "den.jsonl", secret + made))
            assert (code, tally["stored"], tally["refused"]) == (1, 0, 601)
            assert await wire.query({"kinds": [9]}) == []


# -- what is not stored ----------------------------------------------------------------------------


async def test_all_that_is_not_stored_is_named_with_its_reason(tmp_path: Path) -> None:
    now = int(time.time())
    alice, bob = cast.alice, cast.bob
    regretted = alice.sign(1, [], "regretted", now)
    newer = alice.sign(0, [], "{}", now)
    older = alice.sign(0, [], '{"name":"before"}', now - 5)
    forged = bob.sign(1, [], "forged", now)
    other = bob.sign(1, [], "another", now)
    changed = json.loads(other.raw)
    changed["content"] = "changed"
    forged_fields = {**json.loads(forged.raw), "sig": other.sig}
    config = [["d", "snowclaw:config:global"]]
    lines: list[tuple[dict[str, Any] | Event, str]] = [
        (alice.sign(1, [], "stays", now), ""),
        (alice.sign(5, [["e", regretted.id]], "", now), ""),
        (regretted, "blocked: deleted"),
        (newer, ""),
        (older, "superseded"),
        (alice.sign(20001, [], "gone with the wind", now), "passed on"),
        (alice.sign(1, [["expiration", str(now - 1)]], "", now - 60), "invalid: event expired"),
        (forged_fields, "invalid: sig"),
        (changed, "invalid: id"),
        (bob.sign(30078, config, "{}", now), "restricted: only an owner may write config"),
        (bob.sign(39000, [["d", "tea"]], "", now), "left out"),
        (bob.sign(22242, [["relay", "wss://x"]], "", now), "invalid: "),
        (bob.sign(9, [["h", "nowhere"]], "", now), "restricted: not a member"),
        ({"id": "x"}, "invalid: "),
        (bob.sign(1, [], "stays too", now - 400 * DAY), ""),
        (alice.sign(1, [], "stays", now), "duplicate"),
    ]
    file = write(tmp_path / "mixed.jsonl", [event for event, _ in lines])
    with file.open("ab") as more:
        more.write(b"{this is no JSON\n\n   \n")
    rookery = await make(tmp_path / "data")
    code, tally, err = await import_(rookery, file)
    assert code == 1
    named = {}
    listed = err.splitlines()
    assert listed.pop().startswith("skipped 1: another relay's events about its groups")
    for line in listed:
        where, _, reason = line.partition(": ")
        named[int(where.removeprefix(f"{file}:"))] = reason
    for number, (_, reason) in enumerate(lines, 1):
        if ": " in reason:
            assert named.pop(number).startswith(reason), number
        else:
            assert number not in named
    assert named.pop(len(lines) + 1).startswith("invalid: not JSON")
    assert not named
    assert tally == {
        "file": str(file),
        "read": len(lines) + 1,
        "stored": 4,
        "passed_on": 1,
        "duplicates": 1,
        "superseded": 1,
        "left_out": 1,
        "refused": 9,
    }
    stored = [fields(json.loads(event.raw)) for event, why in lines if not why]  # type: ignore[union-attr]
    assert parsed(await export(rookery)) == stored


async def test_a_full_quota_stops_no_import_and_no_rate_holds_for_one(tmp_path: Path) -> None:
    now = int(time.time())
    rookery = await make(tmp_path / "data")
    (rookery.folder / "policies" / "50-full.toml").write_text(
        '[[rule]]\nname = "few"\nmatch = { kinds = [1059] }\n'
        'quota = { per = "recipient", events = 2 }\nreject = "the recipient takes no more"\n'
        '[[rule]]\nname = "slow"\nrate = { per = "author", burst = 1, per_minute = 1 }\n'
    )
    p = ["p", cast.owner.pubkey]
    wraps = [cast.bob.sign(1059, [p], f"{number}", now) for number in range(1100)]
    notes = [cast.alice.sign(1, [], f"{number}", now) for number in range(10)]
    file = write(tmp_path / "events.jsonl", [*wraps, *notes])
    code, out, err = await outputs("import", str(file), "--data", str(rookery.folder))
    assert (code, out) == (1, b"1110 read, 12 stored, 0 duplicates, 1098 refused\n")
    assert "refused 1,098 × rate-limited: the recipient takes no more (first line 3)" in err


# -- again, and on ---------------------------------------------------------------------------------


def many(count: int) -> list[Event]:
    now = int(time.time())
    return [cast.robot.sign(1, [["t", f"{n % 7}"]], f"number {n}", now - n) for n in range(count)]


@pytest.mark.proves("G-28")
async def test_an_import_can_be_repeated(tmp_path: Path) -> None:
    rookery = await make(tmp_path / "data")
    file = write(tmp_path / "some.jsonl", many(700))
    code, tally, _ = await import_(rookery, file)
    assert (code, tally["stored"]) == (0, 700)
    before = await export(rookery)
    code, tally, err = await import_(rookery, file)
    assert (code, tally["stored"], tally["duplicates"], err) == (0, 0, 700, "")
    assert await export(rookery) == before == file.read_bytes()
    assert not list(rookery.folder.glob("import-*"))


@pytest.mark.proves("G-28")
async def test_a_repeated_import_brings_nobody_back_into_a_group(tmp_path: Path) -> None:
    """Who had asked to join while a member, with a code that is still valid, and left."""
    alice, bob, h = cast.alice, cast.bob, ["h", "den"]
    now = int(time.time()) - 60
    history = [
        alice.sign(9007, [h, ["private"], ["closed"]], "", now),
        alice.sign(9009, [h, ["code", "open sesame"]], "", now + 1),
        alice.sign(9000, [h, ["p", bob.pubkey]], "", now + 2),
        bob.sign(9021, [h, ["code", "open sesame"]], "", now + 3),
        bob.sign(9022, [h], "", now + 4),
    ]
    rookery = await make(tmp_path / "data")
    file = write(tmp_path / "den.jsonl", history)
    code, tally, _ = await import_(rookery, file)
    assert (code, tally["stored"]) == (0, 5)
    before = await export(rookery)
    code, tally, _ = await import_(rookery, file)
    assert (code, tally["stored"], tally["duplicates"]) == (0, 0, 5)
    assert await export(rookery) == before


@pytest.mark.parametrize("loses", [False, True], ids=["", "its store was set back"])
@pytest.mark.parametrize("running", [False, True], ids=["alone", "while the relay runs"])
async def test_an_import_that_was_killed_goes_on(
    tmp_path: Path, *, running: bool, loses: bool
) -> None:
    rookery = await make(tmp_path / "data")
    file = write(tmp_path / "many.jsonl", many(8000))
    async with rookery:
        await rookery.start()
        await rookery.stop()
        shutil.copyfile(rookery.folder / "rookery.db", tmp_path / "before.db")
        if running:
            await rookery.start()
        process = await start_rookery(
            "import",
            str(file),
            "--data",
            str(rookery.folder),
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        await eventually(
            "the import has begun", lambda: list(rookery.folder.glob("import-*.resume"))
        )
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        if loses:
            if running:
                assert await rookery.stop() == 0
            for each in rookery.folder.glob("rookery.db*"):
                each.unlink()
            shutil.copyfile(tmp_path / "before.db", rookery.folder / "rookery.db")
            if running:
                await rookery.start()
        code, tally, err = await import_(rookery, file)
        assert code == 0
        assert ("starts over" if loses else "continues after line") in err
        assert (tally["read"], tally["refused"]) == (8000, 0)
        assert tally["stored"] + tally["duplicates"] == 8000
        assert await export(rookery) == file.read_bytes()
        assert not list(rookery.folder.glob("import-*"))


async def test_an_import_survives_the_end_of_the_relay(tmp_path: Path) -> None:
    """The relay it goes through is stopped: it says so, and can go on alone."""
    rookery = await make(tmp_path / "data")
    file = write(tmp_path / "many.jsonl", many(20_000))
    async with rookery:
        await rookery.start()
        importing = asyncio.create_task(outputs("import", str(file), "--data", str(rookery.folder)))
        await eventually(
            "the import has begun", lambda: list(rookery.folder.glob("import-*.resume"))
        )
        assert await rookery.stop() == 0
        code, _, err = await importing
        assert "Traceback" not in err
        assert code == 1, "it was through before the relay stopped"
        assert "repeat the command to continue" in err or "try again" in err
        assert "Traceback" not in "\n".join(rookery.lines)
        code, tally, _ = await import_(rookery, file)
        assert (code, tally["refused"]) == (0, 0)
        assert await export(rookery) == file.read_bytes()


async def test_stdin_and_a_filter(tmp_path: Path) -> None:
    rookery = await make(tmp_path / "data")
    events = many(30)
    data = b"".join(event.raw + b"\n" for event in events)
    code, out, err = await outputs("import", "-", "--data", str(rookery.folder), stdin=data)
    assert (code, err) == (0, "")
    assert out.startswith(b"30 read, 30 stored")
    some = await export(rookery, "--filter", '{"kinds":[1],"#t":["3"]}')
    assert parsed(some) == [json.loads(event.raw) for event in events if event.tag("t") == "3"]
    code, text = await command("export", "--data", str(rookery.folder), "--filter", "{")
    assert code == 2
    assert "Traceback" not in text


# -- while the relay runs --------------------------------------------------------------------------


async def test_what_is_imported_while_the_relay_runs_is_heard(tmp_path: Path) -> None:
    rookery = await make(tmp_path / "data")
    events = many(900)
    file = write(tmp_path / "some.jsonl", events)
    async with rookery:
        await rookery.start()
        async with connected(rookery.url) as wire:
            await wire.send("REQ", "live", {"kinds": [1]})
            assert await wire.receive() == ["EOSE", "live"]
            code, tally, err = await import_(rookery, file)
            assert (code, tally["stored"], err) == (0, 900, "")
            for event in events:
                assert (await wire.receive())[2]["id"] == event.id
        assert await export(rookery) == file.read_bytes()
        code, tally, err = await import_(rookery, file)
        assert (code, tally["duplicates"]) == (0, 900)
        assert await rookery.stop() == 0
    assert await export(rookery) == file.read_bytes()


async def test_a_comment_before_its_private_message_is_sent_to_nobody_else(tmp_path: Path) -> None:
    rookery = await make(tmp_path / "data", "group")
    owner, now = cast.owner, int(time.time())
    message = owner.sign(9, [["h", "den"]], "the key is under the mat", now)
    comment = owner.sign(1111, [["E", message.id], ["e", message.id]], "under the mat?", now)
    between = [owner.sign(9, [["h", "den"]], str(number), now) for number in range(600)]
    file = write(tmp_path / "den.jsonl", [comment, *between, message])  # in another batch
    async with rookery:
        await rookery.start()
        async with connected(rookery.url) as admin, connected(rookery.url) as anybody:
            await admin.log_in(owner, rookery.url, now)
            den = owner.sign(9007, [["h", "den"], ["private"]], "", now)
            assert await admin.publish(den) == (True, "")
            await anybody.send("REQ", "live", {"kinds": [9, 1111, 1]})
            assert await anybody.receive() == ["EOSE", "live"]
            code, tally, _ = await import_(rookery, file, "--trust")
            assert (code, tally["stored"]) == (0, 602)
            public = owner.sign(1, [], "to everybody", now)
            assert await admin.publish(public) == (True, "")
            assert (await anybody.receive())[2]["id"] == public.id
            assert await anybody.query_ids([message.id, comment.id]) == set()
            assert len(await admin.query_ids([message.id, comment.id])) == 2


async def test_an_export_of_a_busy_relay_is_whole(tmp_path: Path) -> None:
    """Events come in while it runs: each line is an event, none twice, none of before missing."""
    rookery = await make(tmp_path / "data")
    before = many(3000)
    await import_(rookery, write(tmp_path / "before.jsonl", before))
    async with rookery, contextlib.AsyncExitStack() as stack:
        await rookery.start()
        wire = await stack.enter_async_context(connected(rookery.url))
        now = int(time.time())
        exporting = asyncio.create_task(export(rookery))
        number = 0
        while not exporting.done():
            number += 1
            assert (await wire.publish(cast.bob.sign(1, [], f"{number}", now)))[0]
        ids = [event["id"] for event in parsed(await exporting)]
        assert len(set(ids)) == len(ids)
        assert ids[: len(before)] == [event.id for event in before]


def sockets_of(pid: int) -> int:
    opened = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            opened += str(each.readlink()).startswith("socket:")
    return opened


@pytest.mark.parametrize(
    ("number", "code", "before"),
    [
        (signal.SIGINT, 130, ""),
        (signal.SIGTERM, -signal.SIGTERM, ""),
        (signal.SIGTERM, -signal.SIGTERM, "trap '' INT; "),  # as a shell starts what ends with `&`
    ],
)
async def test_an_export_that_is_ended_leaves_no_file(
    tmp_path: Path, number: signal.Signals, code: int, before: str
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    async with await make(tmp_path / "data") as rookery:
        await rookery.start()
        rookery.send_signal(signal.SIGSTOP)  # so that the export waits for its answer
        given = ("--data", str(rookery.folder), "-o", str(folder / "events.jsonl"))
        exporting = await asyncio.create_subprocess_exec(
            *("sh", "-c", before + 'exec "$@"', "sh", sys.executable, "-m", "relay"),
            *("export", *given),
            stdout=PIPE,
            stderr=STDOUT,
        )
        # asyncio has a pair of sockets; while it makes them, it would report a Ctrl-C as its own.
        await eventually("the export asks the relay", lambda: sockets_of(exporting.pid) > 2)
        assert list(folder.iterdir())
        exporting.send_signal(number)
        out, _ = await asyncio.wait_for(exporting.communicate(), PROGRAM_S)
    assert (exporting.returncode, out.strip()) == (code, b"")
    assert not list(folder.iterdir())


@pytest.mark.proves("N29-28", "N29-150", "N29-152")
@pytest.mark.parametrize("key", ["same", "new"])
async def test_a_group_moves_with_its_history(tmp_path: Path, key: str) -> None:
    """Another relay takes over: what was said and pinned, who is in, who left or was removed."""
    one, two = await make(tmp_path / "one", "group"), await make(tmp_path / "two", "group")
    if key == "same":
        (two.folder / "relay.key").write_text((one.folder / "relay.key").read_text())
    owner, alice, bob, carol, dave = cast.owner, cast.alice, cast.bob, cast.carol, cast.dave
    h, now = ["h", "tea"], int(time.time())
    hello = alice.sign(9, [h], "alice is here", now - 1)
    async with one:
        await one.start()
        async with connected(one.url) as wire:
            for event in (
                owner.sign(9007, [h], "", now - 9),
                owner.sign(9002, [h, ["name", "Tea"], ["private"]], "", now - 8),
                owner.sign(9000, [h, ["p", alice.pubkey]], "", now - 7),
                owner.sign(9000, [h, ["p", bob.pubkey]], "", now - 6),
                bob.sign(9, [h], "bob was here", now - 5),
                owner.sign(9001, [h, ["p", bob.pubkey]], "", now - 4),
                owner.sign(9009, [h, ["code", "open sesame"]], "", now - 4),
                carol.sign(9021, [h, ["code", "open sesame"]], "", now - 3),
                carol.sign(9, [h], "carol is in", now - 2),
                owner.sign(9000, [h, ["p", dave.pubkey]], "", now - 2),
                dave.sign(9022, [h], "bye", now - 1),
                hello,
                owner.sign(9010, [h, ["e", hello.id]], "", now - 1),
                owner.sign(9007, [["h", "pot"], ["parent", "tea"]], "", now),
            ):
                assert await wire.publish(event) == (True, ""), event
        assert await one.stop() == 0
    file = tmp_path / "one.jsonl"
    file.write_bytes(await export(one))
    code, tally, err = await import_(two, file, "--trust")
    assert (code, tally["refused"]) == (0, 0)
    assert not tally["duplicates"] or key == "same", "of one key and second it may sign the same"
    told, *left_out = err.splitlines()
    assert told.endswith("; they create 2 groups (pot, tea), add 6 members, remove 2 members")
    beginning = f"skipped {tally['left_out']}: another relay's events about its groups"
    assert [line.startswith(beginning) for line in left_out] == [True] * bool(tally["left_out"])

    def history(lines: bytes) -> set[str]:
        return {event["id"] for event in parsed(lines) if event["kind"] not in RELAY_SIGNED}

    # The new relay may add records of its own, as the founder's 9000.
    assert history(file.read_bytes()) <= history(await export(two))
    async with two:
        await two.start()
        async with connected(two.url) as wire:
            await wire.log_in(alice, two.url, now)
            [members] = await wire.query({"kinds": [39002], "#d": ["tea"]})
            names = {tag[1] for tag in members["tags"] if tag[0] == "p"}
            assert names == {owner.pubkey, alice.pubkey, carol.pubkey}
            [pins] = await wire.query({"kinds": [39005], "#d": ["tea"]})
            assert pins["tags"] == [["d", "tea"], ["e", hello.id]]
            [tea] = await wire.query({"kinds": [39000], "#d": ["tea"]})
            assert ["child", "pot"] in tea["tags"]
            said = [event["content"] for event in await wire.query({"kinds": [9]})]
            assert said == ["alice is here", "carol is in", "bob was here"]
        async with connected(two.url) as wire:
            await wire.log_in(bob, two.url, now)
            assert await wire.query({"kinds": [9]}) == []
            taken, text = await wire.publish(bob.sign(9, [h], "let me in", now))
            assert (taken, text.split(":")[0]) == (False, "restricted")
            late = bob.sign(9021, [h, ["code", "open sesame"]], "", now)
            assert (await wire.publish(late))[0] is False
        assert await two.stop() == 0


@pytest.mark.proves("N29-153", "N29-155")
async def test_one_group_goes_by_itself_protected_words_included(tmp_path: Path) -> None:
    """All that names it, in order; 39000 to 39005 are the next relay's to sign."""
    one, two = await make(tmp_path / "one", "group"), await make(tmp_path / "two", "group")
    owner, alice, now = cast.owner, cast.alice, int(time.time())
    h = ["h", "tea"]
    protected = alice.sign(9, [h, ["-"]], "not to be copied", now)
    events = [
        owner.sign(9007, [h], "", now),
        owner.sign(9007, [["h", "pot"]], "", now),
        owner.sign(9000, [h, ["p", alice.pubkey]], "", now),
        owner.sign(9, [["h", "pot"]], "of the other group", now),
        owner.sign(9, [h], "milk?", now),
    ]
    async with one:
        await one.start()
        async with connected(one.url) as wire:
            for event in events:
                assert await wire.publish(event) == (True, ""), event
            assert (await wire.publish(protected))[1].startswith("auth-required: ")
            await wire.log_in(alice, one.url, now)
            assert await wire.publish(protected) == (True, "")
        assert await one.stop() == 0
    file = tmp_path / "tea.jsonl"
    file.write_bytes(await export(one, "--filter", '{"#h":["tea"]}'))
    rows = parsed(file.read_bytes())
    kinds = [row["kind"] for row in rows if row["kind"] != 44100]
    assert kinds == [9007, 9000, 9000, 9, 9]
    assert all(h in row["tags"] for row in rows)
    code, tally, err = await import_(two, file, "--trust")
    told = f"{file} has group records: 2 × 9000, 1 × 9007; they create 1 group (tea), add 2 members"
    said, left_out = err.splitlines()
    assert (code, said, tally["refused"]) == (0, told, 0)
    assert left_out.startswith("skipped 2: ")
    async with two:
        await two.start()
        async with connected(two.url) as wire:
            await wire.log_in(alice, two.url, now)
            found = await wire.query({"kinds": [9, 39000]})
            assert {row["content"] for row in found} == {"", "milk?", "not to be copied"}
            assert [row["tags"][0] for row in found if row["kind"] == 39000] == [["d", "tea"]]
        assert await two.stop() == 0

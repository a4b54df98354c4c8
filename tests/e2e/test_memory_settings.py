"""Every setting of memory, changed while agents stay connected; rows by the thousand."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from tests import cast
from tests.harness.relay_program import Rookery, Wire, command, connected, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

pytestmark = pytest.mark.slow

TAKEN = (True, "")
AGENTS_ONLY = (False, "restricted: only agents may write memory")
ALL_AMAN: dict[str, Any] = {"kinds": list(range(30090, 30098))}


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init(
            "--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--preset", "open"
        )
        await rookery.start()
        yield rookery
        assert await rookery.stop() == 0
    assert "Traceback" not in "\n".join(rookery.lines)


def signed(
    by: SecretKey, kind: int, *tags: Sequence[str], content: object = "", at: int | None = None
) -> Event:
    text = content if isinstance(content, str) else json.dumps(content)
    own = [list(tag) for tag in tags]
    return by.sign(kind, own, text, int(time.time()) if at is None else at)


def preference(hk: str, ts: int, text: str = "tea", at: int | None = None) -> Event:
    return signed(
        cast.robot,
        30093,
        ["d", f"{hk}:preference"],
        ["k", "aman_preference"],
        ["hk", hk],
        ["v", "1"],
        ["ts", str(ts)],
        at=at,
        content={"history_key": hk, "preference": text, "updated_at": ts},
    )


def tool(hk: str, name: str, ts: int) -> Event:
    return signed(
        cast.robot,
        30095,
        ["d", f"{hk}:{name}"],
        ["k", "aman_tool_history"],
        ["hk", hk],
        ["v", "1"],
        ["ts", str(ts)],
        at=ts,
        content={
            "history_key": hk,
            "tool_name": "kettle",
            "success": True,
            "content": "hot",
            "created_at": ts,
        },
    )


def core(by: SecretKey, text: str = "x", *tags: Sequence[str]) -> Event:
    return signed(by, 30078, ["d", f"snowclaw:core:{time.monotonic_ns()}"], *tags, content=text)


def user_memory(by: SecretKey, content: object) -> Event:
    d = f"snowclaw:memory:npub:{time.monotonic_ns():016x}"
    return signed(by, 30078, ["d", d], content=content)


def config_record(by: SecretKey) -> Event:
    return signed(by, 30078, ["d", f"snowclaw:config:group:{time.monotonic_ns()}"], content="{}")


def envelope() -> Event:
    content = "Ag" + "A" * 142  # of version 2, 108 bytes
    return signed(cast.dave, 1080, ["n", str(time.monotonic_ns())], content=content)


def vouch() -> Event:
    hash_ = f"{time.monotonic_ns():064x}"
    content = {"id": "a", "name": "A", "timestamp": "2026-02-02T16:00:00Z", "confidence": 1}
    d = f"anamnesis:vouch:{hash_}"
    return signed(cast.alice, 30078, ["d", d], ["x", hash_], content=content)


def nmem_record() -> Event:
    return signed(cast.robot, 30078, ["d", f"nmem:thing:{time.monotonic_ns()}"], content="{}")


def entry(text: str) -> Event:
    own = f"{text} {time.monotonic_ns()}"
    hash_ = sha256(own.encode()).hexdigest()
    content = {
        "content": own,
        "author": {"id": "r", "name": "R"},
        "content_hash": hash_,
        "timestamp": "2026-02-02T16:00:00Z",
    }
    return signed(cast.robot, 78, ["d", f"anamnesis:memory:{hash_}"], ["x", hash_], content=content)


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that decides otherwise about an event."""

    text: str
    """Of the policy file."""
    event: Callable[[], Event]
    before: tuple[bool, str]
    after: tuple[bool, str]


CHANGES = {
    "owners": Change(
        f'[actors]\nowners = ["{cast.carol.pubkey}"]\n',
        lambda: config_record(cast.carol),
        (False, "restricted: only an owner may write config"),
        TAKEN,
    ),
    "agents": Change(
        f'[actors]\nagents = ["{cast.rover.pubkey}"]\n',
        lambda: core(cast.rover),
        AGENTS_ONLY,
        TAKEN,
    ),
    "agent_role": Change(
        '[actors]\nagent_role = "helper"\n',
        lambda: core(cast.bob, "x", ["h", "tea"]),
        AGENTS_ONLY,
        TAKEN,
    ),
    "owner_annotations": Change(
        "[memory]\nowner_annotations = true\n",
        lambda: user_memory(cast.owner, {}),
        AGENTS_ONLY,
        TAKEN,
    ),
    "schema": Change(
        '[memory]\nschema = "lenient"\n',
        lambda: user_memory(cast.robot, {"notes": 7}),
        (False, "invalid: content.notes must be an array of strings"),
        TAKEN,
    ),
    "schema of one system": Change(
        '[memory.nmem]\nschema = "off"\n',
        nmem_record,
        (False, "invalid: d must be nmem:session:<id> or nmem:pin:<event id>"),
        TAKEN,
    ),
    "reject_patterns": Change(
        '[memory]\nreject_patterns = ["milk"]\n',
        lambda: core(cast.robot, "with milk"),
        TAKEN,
        (False, "blocked: content matches a reject pattern"),
    ),
    "ts_rule": Change(
        '[memory.aman]\nts_rule = "equal"\n',
        lambda: preference(str(time.monotonic_ns()), 1_700_000_000, at=1_700_000_001),
        TAKEN,
        (False, "invalid: ts must equal created_at"),
    ),
    "verify_hash": Change(
        "[memory.aman]\nverify_hash = true\n",
        lambda: tool("a", str(time.monotonic_ns()), 1),
        TAKEN,
        (False, "invalid: d does not match the payload hash"),
    ),
    "keys": Change(
        f'[memory.envelopes]\nkeys = ["{cast.dave.pubkey}"]\n',
        envelope,
        (False, "auth-required: sealed events need authentication"),
        TAKEN,
    ),
    "max_chars": Change(
        "[memory.anamnesis]\nmax_chars = 50\n",
        lambda: entry("x" * 50),
        TAKEN,
        (False, "invalid: content.content must be a string of 1 to 50 characters"),
    ),
    "max_bytes": Change(
        "[memory.anamnesis]\nmax_bytes = 50\n",
        lambda: entry("é" * 25),
        TAKEN,
        (False, "invalid: content.content is over 50 bytes"),
    ),
    "vouchers": Change(
        '[memory.anamnesis]\nvouchers = "members"\n',
        vouch,
        (False, "restricted: only agents and the owner may vouch"),
        TAKEN,
    ),
}


@pytest.mark.proves("G-01")
async def test_what_decides_about_writes_takes_effect_while_everybody_stays_connected(
    rookery: Rookery,
) -> None:
    async with connected(rookery.url) as wire:
        made = signed(cast.owner, 9007, ["h", "tea"])
        put = signed(
            cast.owner,
            9000,
            ["h", "tea"],
            ["p", cast.alice.pubkey],
            ["p", cast.bob.pubkey, "helper"],
        )
        assert [await wire.publish(event) for event in (made, put)] == [TAKEN] * 2
        for name, change in CHANGES.items():
            assert await wire.publish(change.event()) == change.before, f"{name}, before"
            await rookery.enforce("50-own.toml", change.text)
            assert await wire.publish(change.event()) == change.after, f"{name}, after"
            await rookery.enforce("50-own.toml", "# nothing\n")
            assert await wire.publish(change.event()) == change.before, f"{name}, taken back"


@pytest.mark.proves("G-01", "A-09")
async def test_another_tie_counts_from_the_reload_on(rookery: Rookery) -> None:
    low, high = sorted((preference("a", 5, text) for text in ("tea", "milk")), key=lambda e: e.id)
    async with connected(rookery.url) as wire:
        assert await wire.publish(high) == TAKEN
        assert await wire.publish(low) == (False, "duplicate: a newer version is stored")
        await rookery.enforce("50-own.toml", '[memory.aman]\ntie = "low"\n')
        assert await wire.publish(low) == TAKEN


@pytest.mark.proves("G-01", "A-20")
async def test_what_decides_about_reads_takes_effect_on_an_open_connection(
    rookery: Rookery,
) -> None:
    plain = preference("a", 5)
    sealed = signed(
        cast.robot,
        30094,
        ["d", "a:summary"],
        ["k", "aman_summary"],
        ["hk", "a"],
        ["v", "1"],
        ["ts", "5"],
        ["enc", "secretbox-v1"],
        content="A" * 56,
    )
    by_key = {"kinds": [1080], "authors": [cast.dave.pubkey]}
    letter = envelope()
    async with connected(rookery.url) as wire, connected(rookery.url) as reader:
        await wire.log_in(cast.robot, rookery.url, int(time.time()))
        assert [await wire.publish(event) for event in (plain, sealed, letter)] == [TAKEN] * 3

        async def read(filter_: dict[str, Any]) -> set[str]:
            return {event["id"] for event in await reader.query(filter_)}

        assert await read(ALL_AMAN) == set()
        for text, rows in [
            ('[actors]\ntrusted_readers = ["127.0.0.0/8", "::1"]\n', {plain.id, sealed.id}),
            ('[memory.aman]\nanonymous_read = "encrypted"\n', {sealed.id}),
            ('[memory.aman]\nanonymous_read = "all"\n', {plain.id, sealed.id}),
            ('[memory.aman]\nanonymous_read = "none"\n', set()),
        ]:
            await rookery.enforce("50-own.toml", text)
            assert await read(ALL_AMAN) == rows, text
        assert await read(by_key) == set()
        await rookery.enforce("50-own.toml", f'[memory.envelopes]\nkeys = ["{cast.dave.pubkey}"]\n')
        assert await read(by_key) == {letter.id}
        await rookery.enforce("50-own.toml", "# nothing\n")
        assert await read(by_key) == set()


@pytest.mark.proves("D-33", "G-01")
async def test_an_envelope_key_that_is_taken_away_is_live_no_more(rookery: Rookery) -> None:
    by_key = {"kinds": [1080], "authors": [cast.dave.pubkey]}
    listed = f'[memory.envelopes]\nkeys = ["{cast.dave.pubkey}"]\n'
    await rookery.enforce("50-own.toml", listed)
    async with connected(rookery.url) as writer, connected(rookery.url) as reader:
        await writer.log_in(cast.robot, rookery.url, int(time.time()))
        await reader.send("REQ", "live", by_key)
        assert await reader.receive() == ["EOSE", "live"]
        open_one, sealed_one = envelope(), envelope()
        assert await writer.publish(open_one) == TAKEN
        assert (await reader.receive())[2]["id"] == open_one.id
        await rookery.enforce("50-own.toml", "# nothing\n")
        assert await writer.publish(sealed_one) == TAKEN
        await reader.send("REQ", "again", by_key)
        heard: list[list[Any]] = []
        while not heard or heard[-1][1] != "again":
            heard.append(await reader.receive())
        assert [frame for frame in heard if frame[0] == "EVENT"] == []
        await rookery.enforce("50-own.toml", listed)
        assert {event["id"] for event in await reader.query(by_key)} == {open_one.id, sealed_one.id}


@pytest.mark.proves("A-20")
async def test_who_comes_through_a_proxy_is_trusted_by_their_own_address(rookery: Rookery) -> None:
    await rookery.enforce("50-own.toml", '[actors]\ntrusted_readers = ["127.0.0.0/8", "::1"]\n')
    row = preference("a", 5)
    async with connected(rookery.url) as wire:
        assert await wire.publish(row) == TAKEN
        assert [event["id"] for event in await wire.query(ALL_AMAN)] == [row.id]
    forwarded = {"X-Forwarded-For": "127.0.0.1"}
    async with connected(rookery.url, additional_headers=forwarded) as wire:
        await wire.send("REQ", "s", ALL_AMAN)
        closed = ["CLOSED", "s", "auth-required: memory needs authentication"]
        assert await wire.receive() == closed


FAULTS = {
    "an unknown key": ("[memory]\nversoins = 3\n", "versoins"),
    "a bad value": ('[memory.aman]\ntie = "middle"\n', "middle"),
}


@pytest.mark.proves("G-01")
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_faulty_setting_is_named_and_nothing_changes(rookery: Rookery, fault: str) -> None:
    text, named = FAULTS[fault]
    good = rookery.folder / "policies" / "40-good.toml"
    async with connected(rookery.url) as wire:
        (rookery.folder / "policies" / "50-own.toml").write_text(text)
        good.write_text("[memory]\nowner_annotations = true\n")
        rookery.send_signal(signal.SIGHUP)
        await eventually(
            "the log names the fault",
            lambda: any("50-own.toml:2" in line and named in line for line in rookery.lines),
        )
        assert await wire.publish(user_memory(cast.owner, {})) == AGENTS_ONLY
    await rookery.stop()
    code, said = await command("serve", "--data", str(rookery.folder), "--port", "0")
    assert code == 1
    assert "50-own.toml:2" in said
    assert named in said
    (rookery.folder / "policies" / "50-own.toml").unlink()
    await rookery.start()


async def answer_to(wire: Wire, filter_: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows up to EOSE, in their order; anything but EVENT and EOSE fails."""
    await wire.send("REQ", "backfill", filter_)
    rows = []
    while (frame := await wire.receive())[0] != "EOSE":
        assert frame[:2] == ["EVENT", "backfill"], frame
        rows.append(frame[2])
    return rows


@pytest.mark.proves("A-21", "G-25")
async def test_one_backfill_without_a_limit_gets_every_row_and_then_eose(
    rookery: Rookery, tmp_path: Path
) -> None:
    begin = 1_700_000_000
    rows = [tool(f"user {number % 50}", str(number), begin + number) for number in range(6000)]
    rows += [preference(f"user {number}", begin, at=begin) for number in range(50)]
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"".join(row.raw + b"\n" for row in rows))
    code, said = await command("import", str(file), "--data", str(rookery.folder))
    assert code == 0, said
    await rookery.enforce("50-own.toml", '[actors]\ntrusted_readers = ["127.0.0.0/8", "::1"]\n')
    async with connected(rookery.url) as wire:
        got = await answer_to(wire, ALL_AMAN)
        assert {row["id"] for row in got} == {row.id for row in rows}
        assert len(got) == len(rows)
        keys = [(-row["created_at"], row["id"]) for row in got]
        assert keys == sorted(keys)
        since = await answer_to(wire, {**ALL_AMAN, "since": begin + 5000})
        assert len(since) == 1000
        large = core(cast.robot, "x" * 200_000)
        assert await wire.publish(large) == TAKEN

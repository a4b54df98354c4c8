"""A data folder with a little of everything that a store keeps, made by commands."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from typing import TYPE_CHECKING, Any

from relay.cli import run
from relay.cli.services import run_services
from relay.config import load_config
from tests import cast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from relay.nostr.event import Event

WRAPPED_FOR = cast.carol.pubkey


def stocked(folder: Path, notes: int = 40) -> list[Event]:
    """Make the folder; gives the events that were sent. Everything is in the index of texts."""
    printed, code = rookery("init", folder, "--owner", cast.owner.pubkey, "--preset", "open")
    assert code == 0, printed
    events = a_little_of_everything(notes)
    lines = folder.parent / f"{folder.name}.jsonl"
    lines.write_bytes(b"\n".join(event.raw for event in events))
    printed, code = rookery("import", lines, "--data", folder)
    assert code == 0, printed
    asyncio.run(indexed(folder))
    return events


def a_little_of_everything(notes: int) -> list[Event]:
    """Public notes, a private group, records, a deletion, a gift wrap, an expiring note."""
    now = int(time.time())
    owner, alice = cast.owner, cast.alice
    events = [
        owner.sign(9007, [["h", "tea"]], "", now - 50),
        owner.sign(9002, [["h", "tea"], ["name", "Tea"], ["private"], ["closed"]], "", now - 49),
        owner.sign(9000, [["h", "tea"], ["p", alice.pubkey]], "", now - 48),
        owner.sign(9000, [["h", "tea"], ["p", cast.bob.pubkey, "admin"]], "", now - 47),
        owner.sign(9007, [["h", "food"]], "", now - 50),
        owner.sign(9000, [["h", "food"], ["p", alice.pubkey]], "", now - 48),
        alice.sign(9, [["h", "tea"]], "the secret kettle", now - 46),
        alice.sign(0, [], '{"name":"alice"}', now - 45),
        alice.sign(30023, [["d", "essay"], ["t", "tea"]], "an essay on oolong", now - 44),
        alice.sign(1059, [["p", WRAPPED_FOR]], "sealed", now - 43),
        alice.sign(1, [["expiration", str(now + 9000)]], "soon gone", now - 42),
    ]
    events += [
        alice.sign(1, [["t", f"topic{number}"]], f"note number {number} about teapots", now - 40)
        for number in range(notes)
    ]
    events.append(alice.sign(5, [["e", events[-1].id]], "", now))
    return events


async def indexed(folder: Path) -> None:
    config = load_config(folder / "rookery.toml")
    async with run_services(folder, config) as services, services.indexer:
        assert await services.indexer.reached(services.store.committed())


def rookery(*args: object) -> tuple[str, int]:
    """`rookery ARGS` in this process: what it printed, and its exit code."""
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run([str(arg) for arg in args])
    printed.seek(0)
    return printed.read(), code


def as_json(*args: object, code: int = 0) -> Any:
    printed, given = rookery(*args, "--json")
    assert given == code, printed
    return json.loads(printed)


def exported(folder: Path) -> str:
    file = folder.parent / "exported.jsonl"
    printed, code = rookery("export", "--data", folder, "-o", file)
    assert code == 0, printed
    return file.read_text()


def findings(folder: Path) -> Sequence[dict[str, str]]:
    printed, _ = rookery("verify", "--data", folder, "--json")
    found: Sequence[dict[str, str]] = json.loads(printed)["findings"]
    return found

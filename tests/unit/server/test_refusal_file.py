"""relay/server/refusal_file.py"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from relay.errors import Prefix, Reject
from relay.files import replace_own_file
from relay.observe import Refusals
from relay.server.refusal_file import FILE, kept_refusals, read_refusals
from tests import cast
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

EVENT = cast.alice.sign(1, [], "", 1_700_000_000)


async def test_the_last_refusals_are_written_after_those_that_are_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    path, refusals, in_thread = tmp_path / FILE, Refusals(), asyncio.to_thread
    submitted: list[str] = []

    def slow(path: Path, data: bytes) -> None:
        begun.set()
        assert go_on.wait(ANSWER_S)
        replace_own_file(path, data)

    def to_thread(work: Callable[..., object], *args: object) -> Awaitable[object]:
        submitted.append(work.__name__)
        return in_thread(work, *args)

    def refuse() -> None:
        refusals.note(Reject(Prefix.BLOCKED, "no", rule="r"), EVENT, 1, None, None)

    monkeypatch.setattr("relay.server.refusal_file.replace_own_file", slow)
    monkeypatch.setattr("relay.server.refusal_file._EVERY_S", 0.0)
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    kept = kept_refusals(path, refusals)
    await kept.__aenter__()
    refuse()
    assert await in_thread(begun.wait, ANSWER_S)
    refuse()
    ended = asyncio.ensure_future(kept.__aexit__(None, None, None))
    for _ in range(50):
        await asyncio.sleep(0)
    before = [*submitted]
    go_on.set()
    await ended
    assert before == ["read_refusals", "slow"]
    assert submitted == ["read_refusals", "slow", "slow"]
    assert [each.number for each in read_refusals(path)] == [1, 2]


@pytest.mark.parametrize("data", [b"", b"x", b'[{"text": "\xff"}]', b'[{"x": ' + b"[" * 99_999])
def test_a_damaged_file_holds_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    assert read_refusals(tmp_path / FILE) == []

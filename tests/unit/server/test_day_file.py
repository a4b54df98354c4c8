"""relay/server/day_file.py"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from relay.observe import Day, Sample
from relay.server.day_file import FILE, kept_day, read_day
from tests.harness.patience import ANSWER_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest


def sample(at: int) -> Sample:
    return Sample(at, *[float(at)] * 9)


async def a_run(path: Path, times: Sequence[int]) -> list[int]:
    """A relay that runs for so many minutes; what it has then."""
    day, left, done = Day(), [*times], asyncio.Event()

    def take() -> None:
        if left:
            day.restore([sample(left.pop(0))])
        else:
            done.set()

    async with kept_day(path, day, take), asyncio.timeout(ANSWER_S):
        await done.wait()
    return [each.at for each in day.samples]


async def test_samples_outlive_restarts_and_a_line_that_a_kill_has_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.server.day_file._EVERY_S", 0.0)
    path = tmp_path / FILE
    assert await a_run(path, [1, 2, 3]) == [1, 2, 3]
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(msgspec.json.encode(sample(4))[:-7])
    assert await a_run(path, [5]) == [1, 2, 3, 5]
    path.write_bytes(b"[1,2]\n{}\nnull\n\xff\n" + path.read_bytes())
    assert await a_run(path, [6]) == [1, 2, 3, 5, 6]


async def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.server.day_file._EVERY_S", 0.0)
    monkeypatch.setattr("relay.server.day_file.MAX_SAMPLES", 5)
    monkeypatch.setattr("relay.observe.day.MAX_SAMPLES", 5)
    path = tmp_path / FILE
    for start in (0, 30):
        assert await a_run(path, range(start, start + 30)) == [*range(start + 25, start + 30)]
        kept = [each.at for each in read_day(path)]
        assert len(kept) <= 11
        assert {*range(start + 25, start + 30)} <= {*kept}


async def test_a_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("relay.server.day_file._EVERY_S", 0.0)
    path = tmp_path / "missing" / FILE
    assert await a_run(path, [1, 2]) == [1, 2]
    assert caplog.text.count("cannot be written") >= 1

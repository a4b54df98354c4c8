"""Slices of moved rows and of flushed tags, and the pauses between them, by a clock of the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from relay.storage.sqlite import checkpoints
from relay.storage.sqlite.checkpoints import Checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LARGE = 100
MOST_PAGES = 7


class Upkept:
    """A store that always has rows to move and tags to flush. Each step takes `step_s`."""

    def __init__(self, wal: Path) -> None:
        self.now = 1000.0
        self.step_s = {"move": 1.0, "flush": 1.0, "checkpoint": 1.0}
        self.done: list[str] = []
        self.is_behind = self.has_moves = True
        self.wal = (0, 0, 0)
        """The answer of `PRAGMA wal_checkpoint`."""
        wal.write_bytes(b"")
        self._file = wal
        steps: Any = self
        self.checkpoints = Checkpoints(
            wal.with_name(wal.name.removesuffix("-wal")),
            steps,
            (),
            steps,
            steps,
            steps,
            lambda: None,
            lambda: self._took("flush"),
            lambda: self.is_behind,
            lambda: 0,
            lambda: self.has_moves,
            lambda: self._took("move"),
        )

    def _took(self, step: str) -> bool:
        self.done.append(step)
        self.now += self.step_s[step]
        return True

    async def run(self, work: Callable[[], bool]) -> bool:
        return work()

    async def rows(self, _: object) -> list[tuple[int, int, int]]:
        self._took("checkpoint")
        return [self.wal]

    def grow(self, pages: int, checkpointed: int) -> None:
        self._file.write_bytes(b"x" * (LARGE + 1))
        self.wal = (0, pages, checkpointed)

    async def steps(self, number: int, apart_s: float = 0.0) -> list[str]:
        """What is done, `-` for nothing, if it is looked so often, commits of `apart_s` between."""
        done: list[str] = []
        for _ in range(number):
            await self.checkpoints._moved_or_flushed()
            done += self.done or ["-"]
            self.done.clear()
            self.now += apart_s
        return done


@pytest.fixture
def upkept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upkept:
    upkept = Upkept(tmp_path / "rookery.db-wal")
    monkeypatch.setattr(checkpoints, "monotonic", lambda: upkept.now)
    monkeypatch.setattr(checkpoints, "_LARGE_BYTES", LARGE)
    monkeypatch.setattr(checkpoints, "_MOST_PAGES", MOST_PAGES)
    return upkept


@pytest.mark.parametrize("commits_s", [0.0, 1.0])
async def test_moves_and_flushes_take_turns(upkept: Upkept, commits_s: float) -> None:
    assert await upkept.steps(6, commits_s) == ["move", "flush"] * 3


async def test_after_a_flush_is_a_pause_as_long_as_it_took(upkept: Upkept) -> None:
    upkept.has_moves = False
    assert await upkept.steps(6, 0.3) == ["flush", "-", "-", "-", "flush", "-"]


async def test_after_a_move_is_a_pause_of_a_tenth(upkept: Upkept) -> None:
    upkept.is_behind = False
    assert await upkept.steps(6, 0.06) == ["move", "-", "move", "-", "move", "-"]


async def test_a_large_log_is_checkpointed_between_moves_half_of_the_time(upkept: Upkept) -> None:
    upkept.is_behind = False
    upkept.step_s["move"] = 0.25
    upkept.grow(MOST_PAGES - 1, 0)
    moves = ["move"] * 4
    assert await upkept.steps(8, 0.05) == ["checkpoint", *moves, "checkpoint", *moves]


async def test_rows_are_moved_when_all_of_a_large_log_is_checkpointed(upkept: Upkept) -> None:
    """What follows is written over it."""
    upkept.is_behind = False
    upkept.grow(MOST_PAGES, MOST_PAGES)
    assert (await upkept.steps(1)) == ["checkpoint", "move"]
    upkept.now += 1
    upkept.grow(MOST_PAGES, MOST_PAGES - 1)
    assert (await upkept.steps(1)) == ["checkpoint"]

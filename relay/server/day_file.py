"""The samples of the last day in a file of the data folder, a line a minute, kept over restarts.

Invariants: at most twice as many lines as `Day` keeps. A kill loses at most the last; without a
readable and writable file only samples are lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from relay.files import content_of, replace_own_file
from relay.observe import MAX_SAMPLES, Sample

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from relay.observe import Day

FILE: Final = "day.jsonl"
_EVERY_S: Final = 60.0
_MAX_BYTES: Final = 2 << 20
"""A line has at most 250, and the file `2 * MAX_SAMPLES` lines."""
_log = logging.getLogger("rookery")
_decode: Final = msgspec.json.Decoder(Sample).decode


def read_day(path: Path) -> Sequence[Sample]:
    """Oldest first; lines that are not samples are skipped, and a file that is too large."""
    found: dict[int, Sample] = {}
    with suppress(OSError):
        for line in content_of(path, _MAX_BYTES).splitlines():
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                sample = _decode(line)
                found[sample.at] = sample
    return [*found.values()]


@asynccontextmanager
async def kept_day(path: Path, day: Day, sample: Callable[[], None]) -> AsyncIterator[None]:
    """Reads the file into `day`. Inside, takes a sample and appends it to the file, at once and
    every minute.

    `sample` takes a sample and adds it to `day`.
    """
    day.restore(await asyncio.to_thread(read_day, path))
    ended = asyncio.Event()

    async def sample_often() -> None:
        lines = 0
        while not ended.is_set():
            sample()
            kept = day.samples
            is_anew = lines == 0 or lines >= 2 * MAX_SAMPLES
            lines = len(kept) if is_anew else lines + 1
            try:
                if is_anew:
                    await asyncio.to_thread(replace_own_file, path, _lines(kept))
                else:
                    await asyncio.to_thread(_append, path, _lines(kept[-1:]))
            except OSError as error:
                if is_anew:  # logged once, not every minute
                    _log.warning("%s cannot be written: %s", path, error.strerror)
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):
                    await ended.wait()

    sampling = asyncio.create_task(sample_often(), name="samples")
    try:
        yield
    finally:
        ended.set()
        await sampling


def _lines(samples: Sequence[Sample]) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in samples)


def _append(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)

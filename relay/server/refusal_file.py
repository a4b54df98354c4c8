"""The last refusals in a file of the data folder, kept over restarts.

Invariants: at most as many as `Refusals` keeps, and without content, like those. A kill loses the
refusals of the last minute. If the file cannot be read or written, only refusals are lost.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from relay.files import content_of, replace_own_file
from relay.observe import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.observe import Refusals

FILE: Final = "refusals.json"
_EVERY_S: Final = 60.0
_log = logging.getLogger("rookery")


def read_refusals(path: Path) -> Sequence[Refusal]:
    """Oldest first; none if the file is missing, unreadable or too large."""
    try:
        return msgspec.json.decode(content_of(path), type=list[Refusal])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


@asynccontextmanager
async def kept_refusals(path: Path, refusals: Refusals) -> AsyncIterator[None]:
    """Reads the file into `refusals`. Inside, writes them every minute if there are new ones, and
    at the end."""
    refusals.restore(await asyncio.to_thread(read_refusals, path))
    written, ended = refusals.number, asyncio.Event()

    async def save() -> None:
        nonlocal written
        number = refusals.number
        if number == written:
            return
        data = msgspec.json.encode(refusals.after(0))
        try:
            await asyncio.to_thread(replace_own_file, path, data)
        except OSError as error:
            _log.warning("%s cannot be written: %s", path, error.strerror)
        written = number

    async def save_often() -> None:
        while not ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):
                    await ended.wait()
            await save()

    saving = asyncio.create_task(save_often(), name="refusals")
    try:
        yield
    finally:
        ended.set()  # a cancelled write would go on in its thread, at the same time as the last one
        await saving
        await save()

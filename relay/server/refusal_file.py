"""The last refusals of a data folder, in a file: they outlive a restart.

Invariants: at most as many as `Refusals` keeps; without content, as those. A kill loses those of
the last minute. A file that cannot be read or written costs nothing but the refusals in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from relay.observe import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.observe import Refusals

FILE: Final = "refusals.json"
_EVERY_S: Final = 60.0
_log = logging.getLogger("rookery")


def read_refusals(path: Path) -> Sequence[Refusal]:
    """Oldest first; none if the file is missing or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Refusal])
    except (OSError, msgspec.DecodeError):
        return []


@asynccontextmanager
async def kept_refusals(path: Path, refusals: Refusals) -> AsyncIterator[None]:
    """Reads the file, then writes it every minute and at the end, if there are new ones."""
    refusals.restore(await asyncio.to_thread(read_refusals, path))
    written = refusals.number

    async def save() -> None:
        nonlocal written
        number, data = refusals.number, msgspec.json.encode(refusals.after(0))
        if number == written:
            return
        try:
            await asyncio.to_thread(_write, path, data)
        except OSError as error:
            _log.warning("%s cannot be written: %s", path, error.strerror)
        written = number

    async def save_often() -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await save()

    saving = asyncio.create_task(save_often())
    try:
        yield
    finally:
        saving.cancel()
        with suppress(asyncio.CancelledError):
            await saving
        await save()


def _write(path: Path, data: bytes) -> None:
    part = path.with_suffix(".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    part.replace(path)

"""What is left of texts in the files below some folders."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.harness.relay_program import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

SQLITE_DEFAULT: Final = Path(__file__).parent / "sqlite_default"
"""On PYTHONPATH: SQLite as built without SECURE_DELETE."""


def without_secure_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite of this process as built without SECURE_DELETE: another default, nothing else."""
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def connected(*args: Any, **options: Any) -> sqlite3.Connection:
        db = connect(*args, **options)
        sqlite3.Connection.execute(db, "PRAGMA secure_delete = OFF").close()
        return db

    monkeypatch.setattr(sqlite3, "connect", connected)


def planted(number: int) -> list[str]:
    """Texts of one word each that occurs nowhere else, not in parts either."""
    return [f"wombat{number}q{index}z".replace("1", "i") for index in range(10)]


def left_of(texts: Sequence[str], *folders: Path) -> dict[str, list[str]]:
    """File name → texts of which it holds bytes, in any encoding that the relay writes."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if not path.is_file():
                continue
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue  # a WAL that was just deleted
            held = [text for text in texts if text.encode() in content]
            if held:
                found[path.name] = held
    return found


async def erased(texts: Sequence[str], *folders: Path, seconds: float | None = None) -> None:
    """Wait until no file holds any of the texts."""
    left: dict[str, list[str]] = {}
    try:
        async with until("the texts are erased", *(() if seconds is None else (seconds,))) as tries:
            async for _ in tries:
                left = left_of(texts, *folders)
                if not left:
                    return
    except AssertionError as error:
        raise AssertionError(f"{error}: {left}") from None

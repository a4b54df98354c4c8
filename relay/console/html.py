"""Templates, style sheets and scripts, read once at start. Every value is escaped.

A template is compiled when it is first shown: all of them take half a second, at every start.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import segno
from jinja2 import DictLoader, Environment, StrictUndefined

from relay.memory.fence import shell_word, with_unseen_named

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Assets:
    """Static files under names that change with their content."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, str]] = {}
        """Name with hash → bytes and media type."""
        self._named: dict[str, str] = {}
        for file in sorted(files("relay.console").joinpath("static").iterdir(), key=str):
            stem, _, ending = file.name.rpartition(".")
            body = file.read_bytes()
            hashed = f"{stem}.{sha256(body).hexdigest()[:12]}.{ending}"
            self.files[hashed] = (body, _TYPES[ending])
            self._named[file.name] = hashed

    def path(self, name: str) -> str:
        return self._named[name]


@cache
def environment() -> Environment:
    sources = files("relay.console").joinpath("templates").iterdir()
    made = Environment(
        # Read now, so that no file is read later on the event loop.
        loader=DictLoader({file.name: file.read_text("utf-8") for file in sources}),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "time": _time,
        "iso": _iso,
        "bytes": _bytes,
        "short": _short,
        "number": _number,
        "web_link": _web_link,
        "query": _query,
        "ago": _ago,
        "shell": shell_word,
        "seen": with_unseen_named,
    }
    return made


def qr_path(text: str) -> dict[str, object]:
    """A QR code as the `d` of an SVG path, one unit per module, and its `size` with the margin."""
    matrix = segno.make(text, error="m", micro=False).matrix
    margin = 4
    parts = []
    for y, row in enumerate(matrix):
        x = 0
        while x < len(row):
            start = x
            while x < len(row) and row[x]:
                x += 1
            if x > start:
                parts.append(f"M{start + margin} {y + margin}h{x - start}v1h-{x - start}z")
            x += 1
    return {"d": "".join(parts), "size": len(matrix) + 2 * margin}


def _utc(seconds: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(str(seconds)), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _time(seconds: object) -> str:
    """`2026-05-04 12:34` UTC; the script of the page turns it into local time."""
    at = _utc(seconds)
    return f"{seconds}" if at is None else at.strftime("%Y-%m-%d %H:%M")


def _iso(seconds: object) -> str:
    at = _utc(seconds)
    return "" if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _ago(seconds: object, now: int) -> str:
    gone = now - int(str(seconds))
    for size, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if gone >= size:
            number = gone // size
            return f"{number} {name}{'' if number == 1 else 's'} ago"
    return "just now"


def _number(value: object) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.1f}"
        if isinstance(value, float)
        else str(value)
    )


def _bytes(value: object) -> str:
    """In units of 1000, as commands print it."""
    size = float(str(value))
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _short(key: object) -> str:
    """An id or npub, shortened."""
    text = str(key)
    return text if len(text) <= 16 else f"{text[:10]}…{text[-4:]}"


def _web_link(text: object) -> str:
    """The text, if it is a URL that a page may link to, else nothing."""
    url = str(text)
    return url if url.lower().startswith(("https://", "http://")) else ""


def _query(given: Mapping[str, str], **changed: object) -> str:
    """The query of this page with some parameters changed; empty ones are left out."""
    merged = {**given, **{name: str(value) for name, value in changed.items()}}
    return "?" + urlencode({name: value for name, value in merged.items() if value})

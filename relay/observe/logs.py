"""Log lines: text or JSON on stderr, and JSON in a file of bounded size for `rookery log`.

Invariants: one line for each event, whatever a client sent; no secret key; at most `_MOST_REPEATS`
lines a minute from one place in the code, further ones are counted.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections import deque
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import orjson

from relay.errors import masked
from relay.files import own_file, regular_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_OURS: Final = "rookery"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "audit",  # for `_Repeats`
}


class LogSettings(Protocol):
    """`[log]` of rookery.toml."""

    @property
    def level(self) -> str:
        """Lowest level that is logged: "debug", "info", "warning" or "error"."""

    @property
    def format(self) -> str:
        """ "text", "json", or "auto": text on a terminal, else json."""


_MAX_LINES: Final = 1000
_MAX_LINE_CHARS: Final = 2000
_MAX_TRACE_CHARS: Final = 8000
_MAX_FILE_BYTES: Final = 4 << 20
_MOST_REPEATS: Final = 60
_REPEATS_S: Final = 60.0
_COLOURS: Final = {"warning": "33", "error": "31", "critical": "31"}
LOG_FILE: Final = "rookery.log"

REQUEST: Final[ContextVar[Callable[[], str] | None]] = ContextVar("request", default=None)
"""Set in a task that works for a client: gives the id of its request, see `request_id`."""


def request_id(connection: int, message: int) -> str:
    """`7.42`: message 42 of connection 7."""
    return f"{connection}.{message}"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log."""

    number: int
    """From 1, in order."""
    at: int
    """Unix seconds."""
    level: str
    logger: str
    text: str
    """With the fields of `extra`."""
    trace: str = ""
    """Of an exception; has line breaks."""


class BoundedFile:
    """Appends to a file of mode 0600. A full one is renamed to `NAME.1`, which it replaces.

    What cannot be written is dropped: a full disk must not stop the relay.
    """

    def __init__(self, path: Path, max_bytes: int = _MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file: int | None = None

    def write(self, line: bytes) -> None:
        with suppress(OSError):
            if self._file is None:
                self._open()
            assert self._file is not None
            if os.fstat(self._file).st_size + len(line) > self._max_bytes:
                self.close()
                self._path.replace(older(self._path))
                self._open()
            os.write(self._file, line)

    def _open(self) -> None:
        self._file = own_file(self._path, os.O_APPEND | os.O_NOFOLLOW)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":  # cut off by a kill
            os.write(self._file, b"\n")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def older(path: Path) -> Path:
    """The file before this one."""
    return path.with_name(f"{path.name}.1")


def read_log(path: Path) -> Sequence[LogLine]:
    """The lines that a relay has left in its file, oldest first; none when there is no file.

    Raises OSError. A line that was cut off by a kill is skipped.
    """
    found: list[LogLine] = []
    for file in (older(path), path):
        with suppress(FileNotFoundError):
            for line in _lines_in(file):
                with suppress(ValueError, KeyError, TypeError):
                    found.append(_line_of(len(found) + 1, line))
    return found


def _lines_in(path: Path) -> list[bytes]:
    """Those in its last `_MAX_FILE_BYTES`: a relay writes no more. Raises OSError."""
    with open(path, "rb", opener=regular_file) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_FILE_BYTES))
        return file.read(_MAX_FILE_BYTES).splitlines()


def _line_of(number: int, written: bytes) -> LogLine:
    line = orjson.loads(written)
    at = int(datetime.fromisoformat(line.pop("time")).timestamp())
    level, logger, text = line.pop("level"), line.pop("logger"), line.pop("text")
    trace = line.pop("trace", "")
    return LogLine(number, at, level, logger, _with_fields(text, line)[:_MAX_LINE_CHARS], trace)


class LogLines(logging.Handler):
    """The last lines of the log, for `rookery log`; gives each to `shown` and to its file."""

    def __init__(self, shown: logging.Handler) -> None:
        super().__init__()
        self.name = _OURS
        self._shown = shown
        self._format = JsonLines().format
        self._last: deque[bytes] = deque(maxlen=_MAX_LINES)
        self._number = 0
        self._file: BoundedFile | None = None
        self._repeats = _Repeats()
        self.counts = dict.fromkeys(("debug", "info", "warning", "error", "critical"), 0)
        """By level, also of those that were left out."""

    def keep_in(self, path: Path) -> None:
        """Also write to this file. Its lines come before those logged from now on."""
        with self.lock or nullcontext():
            self._file = BoundedFile(path)
            early, before = [*self._last], []
            for file in (older(path), path):
                with suppress(OSError):
                    before += _lines_in(file)
            self._last.clear()
            self._last.extend([*before, *early])
            self._number = len(self._last)
            for line in early:
                self._file.write(line + b"\n")

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname.lower()
        self.counts[level] = self.counts.get(level, 0) + 1
        request = REQUEST.get()
        if request is not None and not hasattr(record, "request"):
            record.request = request()
        for each in self._repeats.ended():
            self._take(each)
        if not self._repeats.leaves_out(record):
            self._take(record)

    def _take(self, record: logging.LogRecord) -> None:
        self._shown.handle(record)
        try:
            line = self._format(record).encode()
        except Exception:  # such as an argument whose `__str__` raises  # noqa: BLE001
            return  # `shown` has reported it
        self._number += 1
        self._last.append(line)
        if self._file is not None:
            self._file.write(line + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()

    def after(self, number: int) -> Sequence[LogLine]:
        """Kept lines with a higher number, oldest first."""
        lines = tuple(self._last)
        first = self._number - len(lines) + 1
        found = []
        for at, line in enumerate(lines, first):
            if at > number:
                with suppress(ValueError, KeyError, TypeError):
                    found.append(_line_of(at, line))
        return found


@dataclass(slots=True)
class _Place:
    kept: Mapping[str, object]
    """Of the first line. Not the record: its exception holds what its frames hold."""
    until: float
    number: int = 0


class _Repeats:
    """Which lines are left out: from one place in the code those after the first in a minute.

    Never those with `extra={"audit": True}`.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], _Place] = {}

    def leaves_out(self, record: logging.LogRecord) -> bool:
        if hasattr(record, "audit"):
            return False
        key = record.pathname, record.lineno
        place = self._places.get(key)
        if place is None:
            kept = {name: getattr(record, name) for name in ("name", "levelno", "levelname")}
            kept["msg"] = str(record.msg)  # it may be an exception
            place = self._places[key] = _Place(kept, monotonic() + _REPEATS_S)
        place.number += 1
        return place.number > _MOST_REPEATS

    def ended(self) -> Sequence[logging.LogRecord]:
        """A line for each place whose minute is over and that had lines left out."""
        now = monotonic()
        over = [key for key, place in self._places.items() if now >= place.until]
        found = []
        for place in map(self._places.pop, over):
            if place.number > _MOST_REPEATS:
                told = {
                    **place.kept,
                    "msg": "%d more lines like this were left out: %s",
                    "args": (place.number - _MOST_REPEATS, place.kept["msg"]),
                }
                found.append(logging.makeLogRecord(told))
        return found


def set_up_logging(log: LogSettings, stream: TextIO | None = None) -> LogLines:
    """Log to `stream`, by default stderr; structured fields come from `extra={"peer": …}`.

    A second call replaces the handler of the first; others stay. Gives the last lines.
    """
    stream = sys.stderr if stream is None else stream
    shown = logging.StreamHandler(stream)
    is_text = log.format == "text" or (log.format == "auto" and stream.isatty())
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    is_coloured = is_text and stream.isatty() and not is_plain
    text_form = TextLines(_COLOURS if is_coloured else {})
    shown.setFormatter(text_form if is_text else JsonLines())
    lines = LogLines(shown)
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.name == _OURS]:
        root.removeHandler(old)
    root.addHandler(lines)
    root.setLevel(log.level.upper())
    # The access log has one line per request; metrics count them instead.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # Its warnings hold the subprotocols that a client asks for: browsers send tokens so.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
    # Its debug lines hold statements with their values.
    logging.getLogger("aiosqlite").setLevel(logging.INFO)
    return lines


class TextLines(logging.Formatter):
    """`2026-05-04 12:34:56 info relay.write.ingest: text  peer=::1`, then the traceback."""

    def __init__(self, colours: Mapping[str, str]) -> None:
        """Level → SGR parameter of its name."""
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        text = _with_fields(record.getMessage(), _extra(record))
        level = record.levelname.lower()
        colour = self._colours.get(level)
        shown = f"\x1b[{colour}m{level}\x1b[0m" if colour else level
        line = f"{clock} {shown} {record.name}: {text}"
        trace = _trace(record)
        return masked(f"{line}\n{trace}" if trace else line)


class JsonLines(logging.Formatter):
    """`{"time":…,"level":…,"logger":…,"text":…}` and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            **{name: _short(value) for name, value in _extra(record).items()},
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": _short(record.getMessage()),
        }
        trace = _trace(record)
        if trace:
            line["trace"] = trace
        try:
            return masked(orjson.dumps(line, default=str).decode())
        except TypeError:  # a file name that is not UTF-8, an integer over 64 bits
            safe = {_utf8(name): _utf8(value) for name, value in line.items()}
            return masked(orjson.dumps(safe).decode())


def _with_fields(text: str, fields: Mapping[str, object]) -> str:
    return _one_line(text + "".join(f"  {name}={value}" for name, value in fields.items()))


def _extra(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _trace(record: logging.LogRecord) -> str:
    # asyncio's handler gives False where there is no exception.
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    text = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
    return _utf8(text[-_MAX_TRACE_CHARS:])


def _short(value: object) -> object:
    return value[:_MAX_LINE_CHARS] if isinstance(value, str) else value


def _utf8(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


def _one_line(text: str) -> str:
    """Escapes control characters: a client must not forge log lines or control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )

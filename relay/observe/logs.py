"""Log lines: text or JSON, one line an event; the last ones for `rookery log`."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SECRET: Final = re.compile(r"nsec1[a-z0-9]+", re.IGNORECASE)
_OURS: Final = "rookery"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


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


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log."""

    number: int
    """Counted since start, from 1."""
    at: int
    """Unix seconds."""
    level: str
    logger: str
    text: str


class LogLines(logging.Handler):
    """The last lines of the log, for `rookery log`."""

    def __init__(self) -> None:
        super().__init__()
        self.name = _OURS
        self._last: deque[LogLine] = deque(maxlen=_MAX_LINES)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        extra = "".join(f"  {name}={value}" for name, value in _extra(record).items())
        text = _masked(_one_line(f"{record.getMessage()}{extra}"))[:_MAX_LINE_CHARS]
        self._number += 1
        level = record.levelname.lower()
        line = LogLine(self._number, int(record.created), level, record.name, text)
        self._last.append(line)

    def after(self, number: int) -> Sequence[LogLine]:
        """Kept lines with a higher number, oldest first."""
        return [line for line in tuple(self._last) if line.number > number]


def set_up_logging(log: LogSettings, stream: TextIO | None = None) -> LogLines:
    """Log to `stream`, by default stderr; structured fields come from `extra={"peer": …}`.

    A second call replaces the handlers of the first; others stay. Gives the last lines.
    """
    lines = LogLines()
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.name = _OURS
    is_text = log.format == "text" or (log.format == "auto" and stream.isatty())
    handler.setFormatter(TextLines() if is_text else JsonLines())
    root = logging.getLogger()
    for old in [old for old in root.handlers if old.name == _OURS]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.addHandler(lines)
    root.setLevel(log.level.upper())
    # The access log has one line per request; metrics count them instead.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    # Its debug lines hold statements with their values.
    logging.getLogger("aiosqlite").setLevel(logging.INFO)
    return lines


class TextLines(logging.Formatter):
    """`2026-05-04 12:34:56 info relay.write.ingest: text  peer=::1`, then the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        extra = "".join(f"  {name}={value}" for name, value in _extra(record).items())
        text = _one_line(f"{record.getMessage()}{extra}")
        line = f"{clock} {record.levelname.lower()} {record.name}: {text}"
        trace = _trace(record)
        return _masked(f"{line}\n{trace}" if trace else line)


class JsonLines(logging.Formatter):
    """`{"time":…,"level":…,"logger":…,"text":…}` and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            **_extra(record),
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        trace = _trace(record)
        if trace:
            line["trace"] = trace
        try:
            return _masked(orjson.dumps(line, default=str).decode())
        except TypeError:  # a file name that is not UTF-8, an integer over 64 bits
            safe = {_utf8(name): _utf8(value) for name, value in line.items()}
            return _masked(orjson.dumps(safe).decode())


def _extra(record: logging.LogRecord) -> Mapping[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _trace(record: logging.LogRecord) -> str:
    if record.exc_info is None or record.exc_info[1] is None:
        return ""
    return _utf8("".join(traceback.format_exception(record.exc_info[1])).rstrip("\n"))


def _utf8(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


def _one_line(text: str) -> str:
    """Escapes control characters: a client must not forge log lines or control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _masked(line: str) -> str:
    """Second line of defence: no caller should log a secret key."""
    return _SECRET.sub("nsec1…", line) if "nsec1" in line.lower() else line

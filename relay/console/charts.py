"""A day of metrics as lines of an SVG, and as a table of hours. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from relay.observe import DAY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from relay.observe import Sample

_WIDTH: Final = 240
"""Of a drawing, one unit for six minutes."""
_HEIGHT: Final = 60
_STEP_S: Final = DAY_S // _WIDTH
_HOUR_S: Final = 3600
_SERIES: Final[Mapping[str, tuple[str, str, float]]] = {
    "stored": ("Events stored", "per_minute", 60),
    "refused": ("Events refused", "per_minute", 60),
    "deliveries": ("Live deliveries", "per_minute", 60),
    "queries": ("Queries", "per_minute", 60),
    "connections": ("Connections", "number", 1),
    "commit_p99_s": ("99 % of commits took at most", "ms", 1000),
    "query_p99_s": ("99 % of queries took at most", "ms", 1000),
    "resident_bytes": ("Memory", "bytes", 1),
    "disk_bytes": ("Disk", "bytes", 1),
}
"""Field of a sample → title, unit and factor."""


def drawn(samples: Sequence[Sample], now: int) -> dict[str, Any]:
    """`charts`: `title`, `unit`, `last` and `most` of the day, and `d`, the path of an SVG of
    `width` and `height`. `hours`: newest first, `at` and the highest values in the order of the
    charts."""
    samples = [each for each in samples if now - DAY_S < each.at <= now]
    steps = _highest(samples, lambda each: _WIDTH - 1 - (now - each.at) // _STEP_S)
    hours = _highest(samples, lambda each: each.at // _HOUR_S * _HOUR_S)
    charts = []
    for name, (title, unit, factor) in _SERIES.items():
        line = {x: highest[name] * factor for x, highest in steps.items()}
        most = max(line.values(), default=0.0)
        last = float(getattr(samples[-1], name)) * factor if samples else 0.0
        charts.append(
            {"title": title, "unit": unit, "last": last, "most": most, "d": _path(line, most)}
        )
    rows = [
        {"at": at, "values": [highest[name] * each[2] for name, each in _SERIES.items()]}
        for at, highest in sorted(hours.items(), reverse=True)
    ]
    return {"charts": charts, "hours": rows, "width": _WIDTH, "height": _HEIGHT}


def _highest(
    samples: Sequence[Sample], key: Callable[[Sample], int]
) -> dict[int, dict[str, float]]:
    """The highest values of all samples of one key."""
    found: dict[int, dict[str, float]] = {}
    for each in samples:
        highest = found.setdefault(key(each), dict.fromkeys(_SERIES, 0.0))
        for name in _SERIES:
            highest[name] = max(highest[name], float(getattr(each, name)))
    return found


def _path(line: Mapping[int, float], most: float) -> str:
    """Adjacent points are joined; a gap, in which the relay did not run, stays empty."""
    parts = []
    for x, value in sorted(line.items()):
        y = round(_HEIGHT - (_HEIGHT - 2) * value / (most or 1) - 1, 1)
        parts.append(f"{'L' if x - 1 in line else 'M'}{x} {y:g}{'' if x - 1 in line else 'h1'}")
    return "".join(parts)

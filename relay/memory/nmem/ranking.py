"""Search in the cache: safe FTS5 queries, and ranking by match, recency and type (M-26, M-27)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_HALF_LIFE: Final = 7.0
"""Half-life of recency, days."""
_DAY: Final = 86_400
_WEIGHTS: Final = {
    "file_edit": 1.0,
    "command": 0.67,
    "session_compact": 0.5,
    "mcp_call": 0.33,
}
_OTHER_WEIGHT: Final = 0.17
_OTHER_PROJECT: Final = 0.3


@dataclass(frozen=True, slots=True)
class Row:
    """An observation in the cache."""

    id: int
    timestamp: int
    """Unix seconds."""
    obs_type: str
    content: str
    project: str
    file_path: str | None = None
    is_pinned: bool = False
    author: str = ""
    """`NAME (npub1abc…)` of another key; empty for one's own."""


# -- queries ------------------------------------------------------------------------------------

_OPERATORS: Final = frozenset({"AND", "OR", "NOT", "NEAR"})
_PARTS: Final = re.compile(r'"[^"]*"(?=\s|$)|\S+')
_PLAIN: Final = re.compile(r"[\w\x80-\U0010ffff]+\*?")
"""Terms that FTS5 accepts without quotes. One class of characters: of two that overlap `re` tries
every way to divide a word, so the time doubles with each letter."""


def safe_query(text: str) -> str | None:
    """A syntactically valid FTS5 query for any input; None for a blank one."""
    # SQLite ends a text at NUL, and rejects lone surrogates.
    text = text.encode(errors="replace").decode().replace("\0", " ")
    parts = _PARTS.findall(text)
    safe: list[str] = []
    for number, part in enumerate(parts):
        if part in _OPERATORS:
            joins = (
                0 < number < len(parts) - 1
                and safe[-1] not in _OPERATORS
                and parts[number + 1] not in _OPERATORS
            )
            safe.append(part if joins else _quoted(part))
        elif _is_phrase(part) or (
            _PLAIN.fullmatch(part) is not None and part.rstrip("*") not in _OPERATORS
        ):
            safe.append(part)
        else:
            safe.append(_quoted(part))
    return " ".join(safe) if safe else None


def is_plain(text: str) -> bool:
    """Whether it has words only: no phrase, operator or prefix term."""
    return all(
        part not in _OPERATORS and not _is_phrase(part) and not part.endswith("*")
        for part in _PARTS.findall(text)
    )


def _is_phrase(part: str) -> bool:
    return len(part) > 1 and part[0] == part[-1] == '"' and '"' not in part[1:-1]


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'


# -- ranking ------------------------------------------------------------------------------------


class Score(NamedTuple):
    """Three scores from 0 to 1 and their weighted sum."""

    match: float
    recency: float
    weight: float

    @property
    def blended(self) -> float:
        return 0.5 * self.match + 0.3 * self.recency + 0.2 * self.weight


def scores(found: Sequence[tuple[Row, float]], now: int) -> list[Score]:
    """Scores of all matches of a query. `found`: rows with their FTS5 `rank` (lower is better)."""
    if not found:
        return []
    ranks = [rank for _, rank in found]
    best, worst = min(ranks), max(ranks)
    return [
        Score(
            1.0 if best == worst else (rank - worst) / (best - worst),
            recency(row.timestamp, now),
            weight(row.obs_type),
        )
        for row, rank in found
    ]


def blended(found: Sequence[tuple[Row, float]], now: int) -> list[Row]:
    """The matches, best first; ties: the newer, then the lower id."""
    order = sorted(
        zip(scores(found, now), found, strict=True),
        key=lambda each: (-each[0].blended, -each[1][0].timestamp, each[1][0].id),
    )
    return [row for _, (row, _) in order]


def recency(timestamp: int, now: int) -> float:
    """1 for now, halved every week."""
    return float(0.5 ** (max(0, now - timestamp) / _DAY / _HALF_LIFE))


def weight(obs_type: str) -> float:
    return _WEIGHTS.get(obs_type, _OTHER_WEIGHT)


def recent_score(row: Row, now: int, project: str | None = None) -> float:
    """Score of a row by recency and type, and by project if one is given."""
    fresh, typed = recency(row.timestamp, now), weight(row.obs_type)
    if project is None:
        return 0.6 * fresh + 0.4 * typed
    return 0.5 * fresh + 0.3 * typed + 0.2 * (1.0 if row.project == project else _OTHER_PROJECT)


def recent(rows: Iterable[Row], now: int, project: str | None = None) -> list[Row]:
    """The rows, best first; only the best one per file path."""
    order = sorted(rows, key=lambda row: (-recent_score(row, now, project), -row.timestamp, row.id))
    best: list[Row] = []
    paths: set[str] = set()
    for row in order:
        if row.file_path is not None:
            if row.file_path in paths:
                continue
            paths.add(row.file_path)
        best.append(row)
    return best

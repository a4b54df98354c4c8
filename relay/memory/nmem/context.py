"""The context for an agent at the start of a session (M-28).

Invariant: every line that another key wrote ends with ` — by NAME (npub1abc…)`, even when cut, and
holds no other ending of that form: `attributed` is given each whole line, since one could be made
of several harmless texts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from relay.memory.fence import attributed, fenced
from relay.memory.nmem.summary import EMPTY_SESSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from relay.memory.nmem.ranking import Row
    from relay.memory.nmem.records import Session
    from relay.memory.nmem.summary import Summary

MAX_CONTEXT: Final = 10_000
"""Characters."""

_MINUTE, _HOUR, _DAY, _WEEK = 60, 3600, 86_400, 7 * 86_400
_SESSIONS: Final = 5
MAX_OTHERS: Final = 2
"""Sessions of others among them: any number may be written, dated ahead."""
_WITH_LESSONS: Final = 3
_TASKS: Final = 5
_TITLE: Final = 120
_SENTENCE: Final = 300
"""Characters of a text written by a model."""
_MOST_LESSONS: Final = 20
_LESSONS: Final = 1_000
"""Characters of what one session learned: three sessions leave room for what comes after them."""
_MOST_READ: Final = 8_000
"""Characters of a text of which a line is made: a member of a group may store 500,000."""
_MOST_TOLD: Final = 600
"""Characters after the end of a line in which the key of an attribution may stand."""
_EDITS: Final = ("file_edit", "file_write")
_COMMITS: Final = ("git_commit", "git_push")
_RESTARTS: Final = ("compact", "clear")


def age(then: int, now: int) -> str:
    """Age in one unit; from a week on the date (UTC) if it is representable."""
    seconds = max(0, now - then)
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m ago"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h ago"
    if seconds < _WEEK:
        return f"{seconds // _DAY}d ago"
    try:
        day, today = datetime.fromtimestamp(then, UTC), datetime.fromtimestamp(now, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{seconds // _DAY}d ago"
    text = f"{day:%b} {day.day}"
    return text if day.year == today.year else f"{text}, {day.year}"


def context(
    project: str,
    sessions: Iterable[Session],
    rows: Iterable[Row],
    now: int,
    source: str = "",
    *,
    authors: Mapping[str, str] = MappingProxyType({}),
    max_chars: int = MAX_CONTEXT,
) -> str:
    """The context of a project; empty without content.

    `rows` and `sessions`: all; the relevant ones are selected here. `source`: why the session
    starts; after `compact` and `clear`, which empty the agent's context, it is longer. `authors`:
    by session id, as `Row.author`.
    """
    is_restart = source in _RESTARTS
    summarised = _summarised(project, sessions, now, authors)
    newest_first = sorted(rows, key=lambda row: (-row.timestamp, -row.id))
    here = [row for row in newest_first if row.project == project and _is_fresh(row, now)]
    away = [row for row in newest_first if row.project != project and row.is_pinned]
    sections = (
        ("Session Summaries", _sessions(summarised, now, authors)),
        ("Suggested Tasks", _tasks(summarised, authors)),
        (_line(project), list(islice(_own(here, now), 30 if is_restart else 20))),
        (
            "Other projects",
            [
                attributed(f"{_item(row, now)} [{_line(row.project)}]", row.author)
                for row in away[: 15 if is_restart else 10]
            ],
        ),
    )
    text = "".join(
        f"\n## {title}\n" + "".join(f"{line}\n" for line in lines)
        for title, lines in sections
        if lines
    )
    return _cut(f"# nmem context\n{text}", max_chars) if text else ""


def fenced_context(text: str, agent: str) -> str:
    """A context in a fence, with as many whole lines of it as make at most MAX_CONTEXT characters
    (M-14)."""
    text = _cut(text, MAX_CONTEXT - len(fenced("", "nmem", agent)))
    while len(told := fenced(text, "nmem", agent)) >= MAX_CONTEXT:  # escaping made it longer
        text = _cut(text, len(text) - 1)
    return told if text else ""


def _summarised(
    project: str, sessions: Iterable[Session], now: int, authors: Mapping[str, str]
) -> list[tuple[Session, Summary]]:
    """Summarised, non-empty sessions of the project: own ones, newest first, then a few of others.
    One dated after `now` counts as the oldest."""
    ended = [
        (session, session.summary)
        for session in sessions
        if session.project == project
        and session.summary not in (None, EMPTY_SESSION)
        and session.summary is not None
    ]
    ended.sort(key=lambda each: (each[0].started_at > now, -each[0].started_at, each[0].id))
    others = [each for each in ended if authors.get(each[0].id)][:MAX_OTHERS]
    own = [each for each in ended if not authors.get(each[0].id)]
    return [*own[: _SESSIONS - len(others)], *others]


def _sessions(
    summarised: Sequence[tuple[Session, Summary]], now: int, authors: Mapping[str, str]
) -> list[str]:
    lines = []
    for number, (session, summary) in enumerate(summarised):
        by = authors.get(session.id, "")
        when, intent = age(session.started_at, now), _line(summary.intent, _SENTENCE)
        lines.append(attributed(f"- [{when}] **{intent}**", by))
        if number < _WITH_LESSONS and summary.learned:
            learned = summary.learned[:_MOST_LESSONS]
            lessons = _line("; ".join(_line(lesson, _SENTENCE) for lesson in learned), _LESSONS)
            lines.append(attributed(f"  - Learned: {lessons}", by))
    return lines


def _tasks(summarised: Sequence[tuple[Session, Summary]], authors: Mapping[str, str]) -> list[str]:
    return [
        attributed(_line(f"- {task}", 2 + _SENTENCE), authors.get(session.id, ""))
        for session, summary in summarised[:1]
        for task in summary.next_steps[:_TASKS]
    ]


def _is_fresh(row: Row, now: int) -> bool:
    if row.is_pinned:
        return True
    if row.obs_type in _EDITS:
        return row.timestamp >= now - 2 * _HOUR
    return row.obs_type in _COMMITS and row.timestamp >= now - _DAY


def _own(rows: Sequence[Row], now: int) -> Iterator[str]:
    """Pinned rows first; several edits of one file by one author as one line."""
    yield from (attributed(_item(row, now), row.author) for row in rows if row.is_pinned)
    edits: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if not row.is_pinned and row.obs_type in _EDITS and row.file_path is not None:
            edits.setdefault((row.author, row.file_path), []).append(row)
    for row in rows:
        if row.is_pinned:
            continue
        is_edit = row.obs_type in _EDITS and row.file_path is not None
        joined = edits[row.author, row.file_path or ""] if is_edit else [row]
        if len(joined) == 1:
            yield attributed(_item(row, now), row.author)
        elif row is joined[0]:
            text = _line(f"- {row.file_path or ''}", 2 + _TITLE)
            when = age(row.timestamp, now)
            yield attributed(f"{text} — {len(joined)} edits ({when})", row.author)


def _item(row: Row, now: int) -> str:
    when = "pinned" if row.is_pinned else age(row.timestamp, now)
    kind = _line(row.obs_type)
    return f"- #{row.id} {_line(f'{kind} {row.content}', len(kind) + 1 + _TITLE)} ({when})"


def _line(text: str, max_chars: int = _TITLE) -> str:
    """Untrusted text on one line, without control characters and others' attributions."""
    seen = (each if each.isprintable() else " " for each in text[:_MOST_READ])
    words = " ".join("".join(seen).split())[: max_chars + _MOST_TOLD]
    # Only now: a character that becomes a space could stand within an attribution. Before the cut,
    # which could take the key that tells it.
    words = attributed(words, "")
    return words if len(words) <= max_chars else f"{words[: max_chars - 1]}…"


def _cut(text: str, max_chars: int) -> str:
    """As many whole lines as fit."""
    if len(text) <= max_chars:
        return text
    return text[: text.rfind("\n", 0, max_chars) + 1]

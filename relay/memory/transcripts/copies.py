"""One line of a file from its stored chunks and copies (D-17…D-19).

Copies exist if the file grew (its last line had no line end yet), if several keys or plans imported
it, or if the file was rewritten while it was followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relay.memory.fields import decoded
from relay.memory.transcripts.lines import Eol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.memory.transcripts.sources import Source


@dataclass(frozen=True, slots=True)
class FileLine:
    """One stored line."""

    text: str
    eol: Eol
    is_base64: bool
    has_tokens: bool
    stripped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Copy:
    line: FileLine
    missing: tuple[str, ...]
    newest: tuple[int, str]


def line_in(sources: Sequence[Source]) -> tuple[FileLine, list[str]]:
    """The best copy and its faults. `sources`: all chunks of one line."""
    if len(sources) == 1 and sources[0].count == 1:
        line = _line(sources[0], sources[0].data)
        return line, _undecodable(line)
    copies = [_joined(chunks) for chunks in _by_copy(sources)]
    candidates = [copy for copy in copies if copy.line.eol is not Eol.NONE] or copies
    candidates = [copy for copy in candidates if not copy.missing] or candidates
    least = min(len(copy.line.stripped) for copy in candidates)
    candidates = [copy for copy in candidates if len(copy.line.stripped) == least]
    if candidates[0].line.eol is Eol.NONE:
        # The end of a growing file, imported repeatedly: the longest is the latest.
        best = max(candidates, key=lambda copy: (len(copy.line.text), copy.newest))
    else:
        best = max(candidates, key=lambda copy: copy.newest)
    faults = [*best.missing, *_undecodable(best.line)]
    if any(_differs(copy.line, best.line) for copy in candidates):
        faults.append("is there twice, with different text")
    return best.line, faults


def _by_copy(sources: Iterable[Source]) -> list[dict[int, Source]]:
    """Each copy as index → chunk."""
    copies: dict[tuple[object, ...], dict[int, Source]] = {}
    for source in sources:
        event = source.event
        own = source.data if source.count == 1 else source.event.tag("e")
        key = (
            event.pubkey,
            event.created_at,
            source.seq,
            source.eol,
            source.count,
            own,
            source.is_base64,
            source.has_tokens,
            source.stripped,
        )
        copies.setdefault(key, {})[source.index] = source
    return list(copies.values())


def _joined(chunks: dict[int, Source]) -> _Copy:
    inside = [chunks[index] for index in sorted(chunks)]
    first = inside[0]
    text = "".join(chunk.data for chunk in inside)
    newest = max((chunk.event.created_at, chunk.event.id) for chunk in inside)
    return _Copy(_line(first, text), _missing(sorted(chunks), first.count), newest)


def _missing(indices: Sequence[int], count: int) -> tuple[str, ...]:
    # By runs: the count is untrusted and may be huge.
    faults = []
    expected = 0
    for index in [*indices, count]:
        if index == expected + 1:
            faults.append(f"chunk {expected}/{count} is missing")
        elif index > expected:
            faults.append(f"chunks {expected}/{count} to {index - 1}/{count} are missing")
        expected = index + 1
    return tuple(faults)


def _line(source: Source, text: str) -> FileLine:
    return FileLine(text, source.eol, source.is_base64, source.has_tokens, source.stripped)


def _undecodable(line: FileLine) -> list[str]:
    is_wrong = line.is_base64 and decoded(line.text) is None
    return ["is no base64"] if is_wrong else []


def _differs(line: FileLine, best: FileLine) -> bool:
    """Whether two copies differ. Raw and tokenised text cannot be compared."""
    if (line.is_base64, line.has_tokens) != (best.is_base64, best.has_tokens):
        return False
    if best.eol is Eol.NONE:
        return not best.text.startswith(line.text)
    return (line.text, line.eol) != (best.text, best.eol)

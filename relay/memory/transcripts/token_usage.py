"""Token usage of a session, by its last `result` line (D-28)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relay.memory.fields import is_integer, readable_object
from relay.memory.transcripts.lines import inner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.memory.transcripts.copies import FileLine
    from relay.memory.transcripts.lines import Fields


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; a missing count is 0, a missing cost or turn count None."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cost_usd: float | None
    num_turns: int | None

    @property
    def context_tokens(self) -> int:
        cached = self.cache_creation_input_tokens + self.cache_read_input_tokens
        return self.input_tokens + cached


def usage_in(lines: Sequence[FileLine]) -> Usage | None:
    """From the last line of type `result` with `usage`; None without one."""
    for line in reversed(lines):
        if '"result"' not in line.text:
            continue
        fields = readable_object(line.text)
        if fields is None or fields.get("type") != "result" or not inner(fields, "usage"):
            continue
        used = inner(fields, "usage")
        cost, turns = fields.get("total_cost_usd"), fields.get("num_turns")
        return Usage(
            _count(used, "input_tokens"),
            _count(used, "cache_creation_input_tokens"),
            _count(used, "cache_read_input_tokens"),
            _count(used, "output_tokens"),
            float(cost) if isinstance(cost, int | float) else None,
            turns if is_integer(turns) else None,
        )
    return None


def _count(fields: Fields, name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0

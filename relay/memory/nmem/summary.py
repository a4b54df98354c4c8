"""Session summaries, written by a model (M-05, M-06)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.fields import compact_repaired, storable_object
from relay.nostr.event import object_in

if TYPE_CHECKING:
    from collections.abc import Mapping

_THOUGHTS: Final = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_LISTS: Final = ("learned", "completed", "next_steps", "files_read", "files_edited")


@dataclass(frozen=True, slots=True)
class Summary:
    intent: str
    learned: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    files_read: tuple[str, ...] = ()
    files_edited: tuple[str, ...] = ()
    notes: object = None
    """Any JSON."""

    def fields(self) -> dict[str, object]:
        """The JSON fields, in order."""
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {"intent": self.intent, **lists, "notes": self.notes}


EMPTY_SESSION: Final = Summary("empty session")
"""Summary of a session with too few observations."""


def summary_fault(fields: Mapping[str, object]) -> str | None:
    """The first invalid field, or None."""
    if not isinstance(fields.get("intent", ""), str):
        return "intent must be a string"
    for name in _LISTS:
        if not _is_text_or_texts(fields.get(name, "")):
            return f"{name} must be a string or an array of strings"
    return None


def summary_from(fields: Mapping[str, object]) -> Summary:
    """Accepts a string in place of a list, as small models write it. Raises Invalid."""
    fault = summary_fault(fields)
    if fault is not None:
        raise Invalid(fault)
    return Summary(
        str(fields.get("intent", "")),
        **{name: _texts(fields.get(name, [])) for name in _LISTS},
        notes=fields.get("notes"),
    )


def parse_summary(answer: str) -> Summary:
    """The summary in a model's answer. Text around the JSON object, such as code fences, is
    ignored, and what a model thinks aloud. Raises Invalid."""
    answer = _THOUGHTS.sub("", answer)
    fields = object_in(answer[answer.find("{") : answer.rfind("}") + 1])
    if fields is not None:
        fields = storable_object(compact_repaired(fields))
    if fields is None:
        raise Invalid("the answer holds no JSON object")
    return summary_from(fields)


def _is_text_or_texts(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else (str(value),)

"""What a session came to, in the words of a model. MEMORY.md M-05, M-06."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.fields import object_in

if TYPE_CHECKING:
    from collections.abc import Mapping

_LISTS: Final = ("learned", "completed", "next_steps", "files_read", "files_edited")


@dataclass(frozen=True, slots=True)
class Summary:
    """The document's `SessionSummary`."""

    intent: str
    learned: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    files_read: tuple[str, ...] = ()
    files_edited: tuple[str, ...] = ()
    notes: object = None
    """Any JSON."""

    def fields(self) -> dict[str, object]:
        """As it is written; keys in the document's order."""
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {"intent": self.intent, **lists, "notes": self.notes}


EMPTY_SESSION: Final = Summary("empty session")
"""Stands where nothing happened that a model should be asked about."""


def summary_fault(fields: Mapping[str, object]) -> str | None:
    """What is wrong with the first field that is not as the document has it; None: nothing."""
    if not isinstance(fields.get("intent", ""), str):
        return "intent must be a string"
    for name in _LISTS:
        if not _is_text_or_texts(fields.get(name, "")):
            return f"{name} must be a string or an array of strings"
    return None


def summary_from(fields: Mapping[str, object]) -> Summary:
    """Small models write one string where a list belongs: it is read as one. Raises Invalid."""
    fault = summary_fault(fields)
    if fault is not None:
        raise Invalid(fault)
    return Summary(
        str(fields.get("intent", "")),
        **{name: _texts(fields.get(name, [])) for name in _LISTS},
        notes=fields.get("notes"),
    )


def parse_summary(answer: str) -> Summary:
    """The summary in a model's answer: what stands around the object, fences first of all, is no
    part of it. Raises Invalid."""
    fields = object_in(answer[answer.find("{") : answer.rfind("}") + 1])
    if fields is None:
        raise Invalid("the answer holds no JSON object")
    return summary_from(fields)


def _is_text_or_texts(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else (str(value),)

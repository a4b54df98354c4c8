"""The fields of user and group memory, in both spellings.

The specification has JSON values; the original code writes some of them as JSON text in fields that
end in `_json`. Both are read; unknown fields are kept (S-07, S-09, S-10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.fields import FieldSpec, Need, Shape, first_fault, is_integer
from relay.nostr.event import json_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KNOWN: Final[tuple[FieldSpec, ...]] = (
    ("notes", Shape.STRINGS, Need.IF_PRESENT),
    ("owner_notes", Shape.STRINGS, Need.IF_PRESENT),
    ("themes", Shape.STRINGS, Need.IF_PRESENT),
    ("display_names", Shape.PAIRS, Need.IF_PRESENT),
    ("members", Shape.PAIRS, Need.IF_PRESENT),
    ("decisions", Shape.PAIRS, Need.IF_PRESENT),
    ("preferences", Shape.STRING_MAP, Need.IF_PRESENT),
    ("first_seen", Shape.INTEGER, Need.IF_PRESENT),
    ("last_interaction", Shape.INTEGER, Need.IF_PRESENT),
    ("last_activity", Shape.INTEGER, Need.IF_PRESENT),
    ("is_owner", Shape.BOOLEAN, Need.IF_PRESENT),
    ("profile_json", Shape.STRING, Need.OPTIONAL),
    ("name_history_json", Shape.STRING, Need.OPTIONAL),
    ("notes_json", Shape.STRING, Need.OPTIONAL),
    ("owner_notes_json", Shape.STRING, Need.OPTIONAL),
    ("preferences_json", Shape.STRING, Need.OPTIONAL),
    ("members_json", Shape.STRING, Need.OPTIONAL),
    ("purpose", Shape.STRING, Need.OPTIONAL),
)
"""The checked fields, in this order (S-11)."""


class Contents:
    """The fields of one record; each access removes the field.

    Null counts as missing in every field, since other relays accept it.
    """

    def __init__(self, fields: Mapping[str, object]) -> None:
        """Raises Invalid for what a relay refuses (S-11)."""
        fault = first_fault({k: v for k, v in fields.items() if v is not None}, KNOWN)
        if fault is not None:
            raise Invalid(fault)
        self._left = dict(fields)

    def left(self) -> dict[str, object]:
        """The fields that were not read, in their order: kept in the next version (S-10)."""
        return dict(self._left)

    def text(self, name: str) -> str | None:
        value = self._left.get(name)
        if value is None or isinstance(value, str):
            self._left.pop(name, None)
            return value
        return None

    def number(self, name: str) -> int | None:
        value = self._left.pop(name, None)
        return value if isinstance(value, int) else None

    def is_set(self, name: str) -> bool:
        return self._left.pop(name, None) is True

    def texts(self, name: str) -> tuple[str, ...]:
        """An array of strings, from `name` or as JSON text from `<name>_json`."""
        value = self._either(name, Shape.STRINGS)
        return tuple(value) if isinstance(value, list) else ()

    def text_map(self, name: str) -> dict[str, str]:
        """An object of strings, from `name` or as JSON text from `<name>_json`."""
        value = self._either(name, Shape.STRING_MAP)
        return value if isinstance(value, dict) else {}

    def dated_texts(self, name: str) -> tuple[tuple[str, int], ...] | None:
        """[[text, unix seconds]…], None without the field. Raises Invalid."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        return tuple(_dated_texts(name, value))

    def text_pairs(self, name: str) -> tuple[tuple[str, str], ...] | None:
        """[[text, text]…], None without the field. Raises Invalid."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        return tuple(_text_pairs(name, value))

    def from_json(self, name: str, fits: Callable[[object], bool]) -> object:
        """The value of JSON text; None, and the field is kept, if it does not fit.

        Relays only check that these are strings.
        """
        text = self._left.get(name)
        if text is None:
            self._left.pop(name, None)  # the original writes null for a missing value
        if not isinstance(text, str):
            return None
        try:
            value = json_in(text)
        except ValueError:
            return None
        if not fits(value):
            return None
        del self._left[name]
        return value

    def _either(self, name: str, shape: Shape) -> object:
        value = self._left.pop(name, None)
        return value if value is not None else self.from_json(f"{name}_json", shape.fits)


def joined(own: Mapping[str, object], extra: Mapping[str, object]) -> dict[str, object]:
    """The written fields: own fields that are set, then other ones of different names."""
    given = {name: value for name, value in own.items() if value is not None}
    return given | {name: value for name, value in extra.items() if name not in given}


def _dated_texts(name: str, value: object) -> Iterator[tuple[str, int]]:
    for text, at in value if isinstance(value, list) else ():
        if not (isinstance(text, str) and is_integer(at)):
            raise Invalid(f"content.{name} must have pairs of a text and unix seconds")
        yield text, at


def _text_pairs(name: str, value: object) -> Iterator[tuple[str, str]]:
    for first, second in value if isinstance(value, list) else ():
        if not (isinstance(first, str) and isinstance(second, str)):
            raise Invalid(f"content.{name} must have pairs of texts")
        yield first, second

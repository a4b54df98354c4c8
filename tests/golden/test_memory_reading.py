"""Records of the golden documents with one field of another type: reading them never raises."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from relay.memory.aman import records as aman
from relay.memory.anamnesis import records as anamnesis
from relay.memory.nmem import records as nmem
from relay.memory.snowclaw import records as snowclaw
from relay.nostr.event import event_from
from tests.golden import document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

OTHERS: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**70,
    1.5,
    "x",
    "\ud800",
    "a\0b",
    [],
    [[]],
    [["x", 1, 2]],
    {"a": [{}]},
)
"""Values for a field."""
DEPTH = 3


def changed(value: Any, depth: int = 0) -> Iterator[Any]:
    """It with another value at one place, or without one of its fields."""
    yield from OTHERS
    if depth == DEPTH:
        return
    if isinstance(value, dict):
        for name, held in value.items():
            yield {each: value[each] for each in value if each != name}
            yield from ({**value, name: other} for other in changed(held, depth + 1))
    elif isinstance(value, list):
        for place, held in enumerate(value[:3]):
            yield from (
                [*value[:place], other, *value[place + 1 :]] for other in changed(held, depth + 1)
            )


def events_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "sig" in value:
            yield value
        else:
            value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from events_in(each)


def contents_in(events: list[dict[str, Any]]) -> Iterator[Any]:
    for each in events:
        try:
            yield json.loads(each["content"])
        except ValueError:  # sealed, or one of the bad
            continue


@pytest.mark.proves("A-22")
@pytest.mark.parametrize("system", [aman, anamnesis, nmem, snowclaw], ids=lambda it: it.__name__)
def test_a_record_with_a_field_of_another_type_is_read_without_an_error(system: ModuleType) -> None:
    events = list(events_in(document(f"memory/{system.__name__.split('.')[-2]}.json")))
    contents = list(contents_in(events))
    # Fields that belong to another type of record, too.
    names = {name for content in contents if isinstance(content, dict) for name in content}
    for fields in events:
        event = event_from(fields)
        for content in contents_in([fields]):
            others = [
                {**content, name: other}
                for name in names
                for other in OTHERS
                if isinstance(content, dict)
            ]
            for other in (*changed(content), *others):
                system.record_in(replace(event, content=json.dumps(other)))

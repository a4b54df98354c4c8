"""relay/storage/sqlite/tag_functions.py: tags are found in the JSON of an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from hypothesis import given
from hypothesis import strategies as st

from relay.storage.sqlite.tag_functions import first_tag, has_tag, tag_value
from tests.cast import alice

if TYPE_CHECKING:
    import pytest

TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "shared",
            "true",
            '["shared"',
            '["shared","true"]',
            "[",
            "x[",
            '"',
            "\\",
            '\\"',
            "\0",
            "é",
            "d",
        ]
    ),
    st.text(alphabet='[]{}",:\\sharedtu\0\n\u2028é😀', max_size=12),
)
TAGS = st.lists(st.lists(TEXTS, max_size=4), max_size=6)
NAMES = st.sampled_from(["shared", "d", "é", "x-y", "a:b", "snow:tier"])


@given(TAGS, TEXTS, NAMES, st.lists(TEXTS, min_size=1, max_size=3))
def test_they_find_what_the_parsed_event_has(
    tags: list[list[str]], content: str, name: str, values: list[str]
) -> None:
    event = alice.sign(1, tags, content, 1)
    found = event.tag_values(name)
    assert first_tag(event.raw, name) == event.tag(name)
    assert tag_value(event.raw, name) == next(iter(found), None)
    assert has_tag(event.raw, name, None) is bool(found)
    listed = orjson.dumps(values).decode()
    assert has_tag(event.raw, name, listed) is event.has_value(name, values)


def test_no_event_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query may ask of each row, and an event of many tags takes 10 ms to parse."""
    event = alice.sign(1, [["x", *"abc"]] * 1000 + [["shared", "true"]], "", 1)
    parsed, loads = list[int](), orjson.loads

    def noted(text: bytes | str) -> object:
        parsed.append(len(text))
        return loads(text)

    monkeypatch.setattr(orjson, "loads", noted)
    assert has_tag(event.raw, "shared", '["true"]')
    assert not has_tag(event.raw, "other", None)
    assert first_tag(event.raw, "shared") == tag_value(event.raw, "shared") == "true"
    assert max(parsed) < 10

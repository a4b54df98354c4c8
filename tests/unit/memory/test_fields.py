"""relay/memory/fields.py: contents of others that are kept, and written again."""

from __future__ import annotations

from hashlib import sha256

import pytest

from relay.cli.memory_why import _texts
from relay.memory.anamnesis.records import Entry, entry_draft
from relay.memory.anamnesis.records import record_in as claim_in
from relay.memory.fields import compact, readable_object, storable_object
from relay.memory.nmem.records import Observation, observation_draft
from relay.memory.nmem.records import record_in as observation_in
from relay.memory.unreadable import UnreadableRecord
from tests.cast import stranger


def nested(levels: int) -> str:
    """An object with so many levels below it."""
    return f'{{"a": {"[" * levels}{"]" * levels}}}'


def test_what_is_kept_can_be_written_as_a_part_of_something_larger() -> None:
    assert compact([[[{"entry": storable_object(nested(190))}]]])
    wide = f'{{"a": [{"[],{}," * 1_000}0]}}'
    assert storable_object(wide) is not None
    for unstorable in (nested(201), nested(1_000), nested(2_000), '{"a": "\\ud800"}', "[]", "x"):
        assert storable_object(unstorable) is None


def test_what_is_displayed_can_be_written_in_any_form() -> None:
    for shown in (nested(201), nested(1_000), rf'{{"\ud800": ["\ud800", {9**30}]}}'):
        assert compact([[[{"entry": readable_object(shown)}]]])
    assert readable_object(rf'{{"\ud800": ["\ud800", {9**30}]}}') == {
        "\ufffd": ["\ufffd", str(9**30)]
    }
    assert readable_object('{"a": [1, "b"]}') == {"a": [1, "b"]}
    assert readable_object("[]") is None


@pytest.mark.parametrize(("levels", "is_read"), [(190, True), (240, False), (1_000, False)])
def test_no_nesting_of_a_stranger_ends_a_command(levels: int, *, is_read: bool) -> None:
    """The relay stores it: an export, a tool or a look-up that meets it goes on."""
    claim = entry_draft(Entry("tea", "a", "A", "2026-01-01T00:00:00Z", context={"x": 0}))
    seen = observation_draft(Observation("s", 1, "marker", "hook", "tea", metadata={"x": 0}), "p")
    for draft, record_in in ((claim, claim_in), (seen, observation_in)):
        content = draft.content.replace('{"x":0}', nested(levels))
        named = sha256(content.encode()).hexdigest()
        tags = [["d", f"nmem:obs:s:{named}"], *draft.tags[1:]] if draft is seen else draft.tags
        event = stranger.sign(draft.kind, tags, content, draft.created_at)
        assert isinstance(record_in(event), UnreadableRecord) is not is_read
        assert _texts(event)

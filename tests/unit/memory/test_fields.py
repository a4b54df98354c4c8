"""relay/memory/fields.py: contents of others that are kept, and written again."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from relay.cli.memory_why import _texts
from relay.memory.aman.records import ToolCall, draft_of
from relay.memory.aman.records import record_in as tool_in
from relay.memory.anamnesis.records import Entry, entry_draft
from relay.memory.anamnesis.records import record_in as claim_in
from relay.memory.check_options import CheckOptions
from relay.memory.draft import Draft
from relay.memory.fields import compact, readable_object, storable_object
from relay.memory.nmem.records import Observation, observation_draft
from relay.memory.nmem.records import record_in as observation_in
from relay.memory.search_text import fields_text
from relay.memory.snowclaw.contents import Contents
from relay.memory.snowclaw.keys import user_d
from relay.memory.snowclaw.records import record_in as user_in
from relay.memory.systems import MEMORY_SYSTEMS
from relay.memory.unreadable import UnreadableRecord
from relay.nostr.event import object_in
from tests.cast import stranger

if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.nostr.event import Event


def with_extra(draft: Draft, extra: str) -> Event:
    """A valid record with one more field."""
    where = '"context":{' if '"context":{' in draft.content else "{"
    content = draft.content.replace(where, f'{where}"extra":{extra},', 1)
    named = sha256(content.encode()).hexdigest()
    d = draft.tags[0][1]
    if d.startswith(("nmem:", "hk:")):
        d = f"{d.rpartition(':')[0]}:{named}"
    return stranger.sign(draft.kind, [["d", d], *draft.tags[1:]], content, draft.created_at)


def claim(extra: str) -> Event:
    at = "1970-01-01T00:00:01Z"
    return with_extra(entry_draft(Entry("tea", "a", "A", at, context={"x": 0})), extra)


def observation(extra: str) -> Event:
    return with_extra(observation_draft(Observation("s", 1, "marker", "hook", "tea"), "p"), extra)


def tool(extra: str) -> Event:
    return with_extra(draft_of(ToolCall("hk", "t", True, "tea", None, None, 1)), extra)  # noqa: FBT003


def user(extra: str) -> Event:
    d = user_d(stranger.pubkey)
    return with_extra(Draft(30078, [["d", d]], '{"notes":["tea"]}', 1), extra)


READERS: dict[str, Callable[[Event], object]] = {
    "anamnesis": claim_in,
    "nmem": observation_in,
    "aman": tool_in,
    "snowclaw": user_in,
}


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


MANY = "[],{}," * 8_192


@pytest.mark.parametrize("record_of", [claim, observation, tool, user])
def test_what_has_too_many_arrays_is_not_parsed(record_of: Callable[[str], Event]) -> None:
    """A record of 330 kB took the loop for 0.2 s, in each check and on each page."""
    for extra, is_read in ((f"[{MANY}0]", False), (f'"{MANY * 3}"', True)):
        event = record_of(extra)
        record = MEMORY_SYSTEMS.type_of(event)
        system = next(each for each in MEMORY_SYSTEMS.systems if record in each.records)
        found = READERS[system.name](event)
        assert isinstance(found, UnreadableRecord) is not is_read
        assert bool(MEMORY_SYSTEMS.search_text(event)) is is_read
        for check in (system.check, system.check_lenient):
            fault = check(event, CheckOptions(latest=event.created_at))
            assert fault == (None if is_read else "content has over 16,384 arrays and objects")


@pytest.mark.parametrize("text", [f'{{"a":[{MANY}0]}}', f'{{"\\ud800":[{MANY}0]}}'])
def test_no_reader_of_texts_of_others_parses_too_many_arrays(text: str) -> None:
    profile = stranger.sign(0, [], f'{{"name":[{MANY}"tea"]}}', 1)
    assert object_in(text) is storable_object(text) is readable_object(text) is None
    assert MEMORY_SYSTEMS.search_text(profile) is None
    notes = {"notes_json": f'["a",{MANY}0]'}
    assert Contents(notes).texts("notes") == ()
    assert not fields_text(notes, ("notes_json",))


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

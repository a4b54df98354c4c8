"""Snowclaw as a memory system of the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.memory.registry import MemorySystem, RecordType, Sweeping
from relay.memory.search_text import fields, fields_text, object_or_empty, tags_text
from relay.memory.snowclaw.checks import check, check_lenient
from relay.memory.snowclaw.keys import AGENT, COLLECTIVE, CONFIG, MEMORY
from relay.nostr import kinds

if TYPE_CHECKING:
    from relay.nostr.event import Event

_USER_FIELDS: Final = (
    "display_names",
    "display_name",
    "name_history_json",
    "notes",
    "notes_json",
    "owner_notes",
    "owner_notes_json",
)
_GROUP_FIELDS: Final = ("purpose", "themes", "decisions", "notes", "notes_json", "owner_notes")


def _agent_text(event: Event) -> str:
    """Key and content of `snowclaw:<category>:<key>`."""
    _, _, key = event.d.removeprefix(AGENT).partition(":")
    return f"{key}\n{event.content}"


def _collective_text(event: Event) -> str:
    topic = event.d.removeprefix(COLLECTIVE)
    contents = fields_text(object_or_empty(event.content), ("summary", "detail"))
    return "\n".join([topic, contents, tags_text(event, ("t",))])


SNOWCLAW: Final = MemorySystem(
    "snowclaw",
    records=(
        RecordType(kinds.APP_DATA, CONFIG, sweeping=Sweeping.NAMED, h_is_label=True),
        RecordType(kinds.APP_DATA, f"{MEMORY}npub:", search_text=fields(*_USER_FIELDS)),
        RecordType(kinds.APP_DATA, f"{MEMORY}group:", search_text=fields(*_GROUP_FIELDS)),
        RecordType(kinds.APP_DATA, MEMORY),
        RecordType(kinds.APP_DATA, AGENT, search_text=_agent_text),
        RecordType(
            kinds.APP_DATA,
            COLLECTIVE,
            ("d", "snow:tier", "snow:model", "snow:confidence", "snow:source", "snow:version"),
            _collective_text,
        ),
    ),
    check=check,
    check_lenient=check_lenient,
    search_version=1,
)

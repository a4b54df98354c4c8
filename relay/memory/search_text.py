"""The text by which an event is found. MEMORY.md §1, column "search text"; NIP-50 (N50-02, N50-11).

Pure. What is encrypted is never looked into (G-21), also where only its form tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from relay.memory.sealed import is_sealed
from relay.nostr import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from relay.nostr.event import Event

TEXT_RULES: Final = 1
"""Counted up with every change of what `search_text` gives: indices are made anew then."""

_TITLES: Final = ("title", "name", "about", "summary", "subject", "description", "alt")

_NEVER: Final = frozenset(
    {
        kinds.SOURCE_DATA,
        kinds.DOC_POLICY,
        kinds.CLEAR_CONTEXT,
        kinds.SESSION_COMMAND,
        kinds.REPOST,
        kinds.GENERIC_REPOST,  # what they hold is found as itself
    }
)

_FIELDS: Final[Mapping[int, tuple[str, ...]]] = {
    kinds.PROFILE: ("name", "display_name", "displayName", "about", "nip05"),
    kinds.DOC_MANIFEST: ("title",),
    kinds.CHUNK_REF: ("text",),
    kinds.PREFERENCE: ("preference",),
    kinds.SUMMARY: ("summary",),
    kinds.TOOL_HISTORY: ("tool_name", "content"),
    kinds.SUBSCRIPTION_STATE: ("topics",),
}
"""Kinds that are found by fields of their JSON content."""

_TAGS: Final[Mapping[int, tuple[str, ...]]] = {
    kinds.SESSION_STATE: ("title", "custom_title"),
    kinds.RUN_CONFIGURATION: ("name", "command"),
}
"""Kinds that are found by tags."""

_USER_FIELDS: Final = (
    "display_names",
    "display_name",
    "name_history_json",
    "notes",
    "notes_json",
    "owner_notes",
    "owner_notes_json",
)
_GROUP_FIELDS: Final = ("purpose", "themes", "decisions", "notes", "notes_json")
_SUMMARY_FIELDS: Final = (
    "intent",
    "learned",
    "completed",
    "next_steps",
    "files_read",
    "files_edited",
    "notes",
)


def search_text(event: Event) -> str | None:
    """What a search looks at; None: no search ever finds this event."""
    kind = event.kind
    if kind in _NEVER or kinds.is_ephemeral(kind) or is_sealed(event):
        return None
    if kind in (kinds.APP_DATA, kinds.APP_RECORD):
        text = _of_record(event)
    elif kind in _FIELDS:
        text = _of_fields(event, _FIELDS[kind])
    elif kind in _TAGS:
        text = _of_tags(event, _TAGS[kind])
    else:
        text = "\n".join([event.content, _of_tags(event, _TITLES)])
    return text if text.strip() else None


def _of_record(event: Event) -> str:
    for prefix, text_of in _RECORDS.items():
        if event.d.startswith(prefix):
            return text_of(event)
    return ""


def _of_content(event: Event) -> str:
    return event.content


def _of_nothing(_: Event) -> str:
    return ""


def _of_user(event: Event) -> str:
    return _of_fields(event, _USER_FIELDS)


def _of_group(event: Event) -> str:
    return _of_fields(event, _GROUP_FIELDS)


def _of_agent_memory(event: Event) -> str:
    """Key + content of `snowclaw:<category>:<key>`."""
    _, _, key = event.d.removeprefix("snowclaw:").partition(":")
    return f"{key}\n{event.content}"


def _of_collective(event: Event) -> str:
    topic = event.d.removeprefix("snow:memory:")
    return "\n".join([topic, _of_fields(event, ("summary", "detail")), _of_tags(event, ("t",))])


def _of_session(event: Event) -> str:
    summary = _object(event.content).get("summary")
    return "\n".join(_texts(summary, _SUMMARY_FIELDS)) if isinstance(summary, dict) else ""


def _of_observation(event: Event) -> str:
    return _of_fields(event, ("content", "file_path"))


def _of_prompt(event: Event) -> str:
    return _of_fields(event, ("content",))


def _of_entry(event: Event) -> str:
    return _of_fields(event, ("content", "tags"))


def _of_patch(event: Event) -> str:
    return _of_fields(event, ("tags",))


_RECORDS: Final[Mapping[str, Callable[[Event], str]]] = {
    "snowclaw:config:": _of_nothing,
    "snowclaw:memory:npub:": _of_user,
    "snowclaw:memory:group:": _of_group,
    "snowclaw:memory:": _of_nothing,
    "snowclaw:": _of_agent_memory,
    "snow:memory:": _of_collective,
    "nmem:session:": _of_session,
    "nmem:obs:": _of_observation,
    "nmem:prompt:": _of_prompt,
    "anamnesis:memory:": _of_entry,
    "anamnesis:meta:": _of_patch,
    "nomen:group:": _of_content,
}
"""Records of 30078 and 78 by how `d` begins; any other is found by no text. The longer first."""


def _of_tags(event: Event, names: tuple[str, ...]) -> str:
    return "\n".join(value for name in names for value in event.tag_values(name))


def _of_fields(event: Event, names: tuple[str, ...]) -> str:
    return "\n".join(_texts(_object(event.content), names))


def _object(text: str) -> dict[str, object]:
    """A JSON object; empty for anything else, since a policy may let that in (G-05)."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _texts(fields: Mapping[str, object], names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        value = fields.get(name)
        if name.endswith("_json") and isinstance(value, str):
            try:
                value = orjson.loads(value)
            except orjson.JSONDecodeError:
                continue
        yield from _strings(value)


def _strings(value: object) -> Iterator[str]:
    """Every text in a JSON value, in order, keys of objects left out."""
    # A stack of our own: JSON may be nested deeper than calls may.
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            left.extend(reversed(value))
        elif isinstance(value, dict):
            left.extend(reversed(value.values()))

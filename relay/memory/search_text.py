"""Search text (NIP-50): parts that memory systems compose, and the text of every other event.

Increase `registry.SEARCH_VERSION` when the result of `general_text` changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.nostr import kinds
from relay.nostr.event import json_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from relay.nostr.event import Event

    Text = Callable[[Event], str]

_TITLES: Final = ("title", "name", "about", "summary", "subject", "description", "alt")
_PROFILE: Final = ("name", "display_name", "displayName", "about", "nip05")
_MAX_PROFILE: Final = 65_536
"""Characters; a longer one is not found. Anybody may write them: 400,000 take 20 ms of the loop."""
_MAX_VALUES: Final = 16_384
"""JSON values of one field that are looked through: 2 ms."""
_APP_KINDS: Final = frozenset({kinds.APP_DATA, kinds.APP_RECORD})
_REPOSTS: Final = frozenset({kinds.REPOST, kinds.GENERIC_REPOST})
_NOMEN_GROUP: Final = "nomen:group:"
_MAX_NOMEN_GROUP: Final = 4096
"""Characters of one that are found. Strangers may write them, and agents' searches wait until all
records of memory are indexed."""


def no_text(_: Event) -> str:
    """No search finds the event."""
    return ""


def fields(*names: str) -> Text:
    """Strings in these fields of the JSON content; fields `…_json` hold JSON in a string."""

    def text(event: Event) -> str:
        return fields_text(object_or_empty(event.content), names)

    return text


def tags(*names: str) -> Text:
    """All values of these tags."""

    def text(event: Event) -> str:
        return tags_text(event, names)

    return text


def general_text(event: Event) -> str:
    """Of an event that is no memory record: content and titles. Of app data (30078 and 78) none:
    its format is unknown."""
    kind = event.kind
    if kind in _APP_KINDS:
        return event.content[:_MAX_NOMEN_GROUP] if event.d.startswith(_NOMEN_GROUP) else ""
    if kind == kinds.PROFILE:
        if len(event.content) > _MAX_PROFILE:
            return ""
        return fields_text(object_or_empty(event.content), _PROFILE)
    if kind in _REPOSTS:  # the reposted event is indexed itself
        return ""
    return "\n".join([event.content, tags_text(event, _TITLES)])


def tags_text(event: Event, names: tuple[str, ...]) -> str:
    there = [tag for tag in event.tags if len(tag) > 1 and tag[0] in names]
    return "\n".join([tag[1] for name in names for tag in there if tag[0] == name])


def fields_text(values: Mapping[str, object], names: tuple[str, ...]) -> str:
    return "\n".join(_texts(values, names))


def object_or_empty(text: str) -> dict[str, object]:
    """A JSON object; empty for anything else, which a lenient policy lets in (G-05)."""
    try:
        value = json_in(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _texts(values: Mapping[str, object], names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        value = values.get(name)
        if name.endswith("_json") and isinstance(value, str):
            try:
                value = json_in(value)
            except ValueError:
                continue
        yield from _strings(value)


def _strings(value: object) -> Iterator[str]:
    """Every string in the first values of a JSON value, in order, without the keys of objects."""
    # A stack instead of recursion: JSON may be nested deeper than Python calls.
    stack = [value]
    for _ in range(_MAX_VALUES):
        if not stack:
            return
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            stack.extend(reversed(value))
        elif isinstance(value, dict):
            stack.extend(reversed(value.values()))

"""The checks of Snowclaw records, in the order of their refusals (G-24)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.fields import first_fault, no_object, whole_number
from relay.memory.snowclaw.config import values_fault
from relay.memory.snowclaw.contents import KNOWN
from relay.memory.snowclaw.encryption import is_encrypted
from relay.memory.snowclaw.keys import (
    COLLECTIVE,
    CONFIG,
    MEMORY,
    OfGroup,
    category_and_key,
    config_scope,
    memory_scope,
)
from relay.nostr.event import object_in

if TYPE_CHECKING:
    from relay.memory.check_options import CheckOptions
    from relay.nostr.event import Event

TIERS: Final = ("public", "group", "private")
# Unambiguous: a pattern that matches digits in two ways takes minutes for a long tag.
_NUMBER: Final = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def check(event: Event, options: CheckOptions) -> str | None:
    d = event.d
    try:
        if d.startswith(CONFIG):
            config_scope(d)
            return values_fault(event)
        if d.startswith(MEMORY):
            return _user_or_group(event)
        if d.startswith(COLLECTIVE):
            return collective_fault(event) or _object_unless_encrypted(event)
        category_and_key(d)
    except Invalid as fault:
        return fault.text
    return None


def _user_or_group(event: Event) -> str | None:
    """Raises Invalid for an invalid `d`."""
    scope = memory_scope(event.d)
    if isinstance(scope, OfGroup) and event.tag("h") not in (None, scope.id):
        return f"tag h must be {scope.id}"
    if is_encrypted(event):
        return None
    fields = object_in(event.content)
    return no_object(event.content) if fields is None else first_fault(fields, KNOWN)


def collective_fault(event: Event) -> str | None:
    """The refusal for the tags of collective memory, or None (S-27)."""
    if event.tag("snow:tier") not in TIERS:
        return "snow:tier must be public, group or private"
    confidence = event.tag("snow:confidence") or ""
    if _NUMBER.fullmatch(confidence) is None or float(confidence) > 1:
        return "snow:confidence must be a number from 0 to 1"
    version = event.tag("snow:version") or ""
    if whole_number(version.removeprefix("-")) is None:
        return "snow:version must be an integer"
    return None


def _object_unless_encrypted(event: Event) -> str | None:
    if is_encrypted(event) or object_in(event.content) is not None:
        return None
    return no_object(event.content)


def check_lenient(event: Event, options: CheckOptions) -> str | None:
    if event.d.startswith(CONFIG) and event.content == "":
        return None
    if event.d.startswith((CONFIG, MEMORY, COLLECTIVE)):
        return _object_unless_encrypted(event)
    return None

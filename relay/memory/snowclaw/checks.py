"""What a record of Snowclaw must look like. MEMORY.md 4.8, G-24."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid
from relay.memory.fields import NOT_AN_OBJECT, object_in, whole_number
from relay.nostr.keys import public_key

if TYPE_CHECKING:
    from relay.memory.terms import Terms
    from relay.nostr.event import Event

_CONFIG: Final = "snowclaw:config:"
_MEMORY: Final = "snowclaw:memory:"
_COLLECTIVE: Final = "snow:memory:"
_SHORT_KEY: Final = re.compile(r"[0-9a-f]{16}|[0-9a-f]{32}|[0-9a-f]{64}")
_BAD_KEY: Final = "d must end with an npub or 16, 32 or 64 lowercase hex characters"
_BAD_SCOPE: Final = (
    "d must be snowclaw:config:global, snowclaw:config:group:<id> or snowclaw:config:npub:<key>"
)
_BAD_MEMORY: Final = "d must be snowclaw:memory:npub:<key> or snowclaw:memory:group:<id>"
_BAD_CATEGORY: Final = "d must be snowclaw:<category>:<key>"


def check(event: Event, terms: Terms) -> str | None:
    d = event.d
    if d.startswith(_CONFIG):
        return _config(event, d.removeprefix(_CONFIG))
    if d.startswith(_MEMORY):
        return _user_or_group(event, d.removeprefix(_MEMORY))
    if d.startswith(_COLLECTIVE):
        return _collective(event)
    _, _, rest = d.partition(":")
    category, colon, _ = rest.partition(":")
    # `memory` and `config` without their colon are no categories (S-06); an empty key is none.
    if not (category and colon):
        return _BAD_CATEGORY
    return None


def _config(event: Event, scope: str) -> str | None:
    where, _, key = scope.partition(":")
    if scope != "global" and not (where in ("group", "npub") and key):
        return _BAD_SCOPE
    if where == "npub" and not _is_key(key):
        return _BAD_KEY
    return None if event.content == "" or object_in(event.content) is not None else NOT_AN_OBJECT


def _user_or_group(event: Event, scope: str) -> str | None:
    where, _, key = scope.partition(":")
    if where not in ("npub", "group") or (where == "group" and not key):
        return _BAD_MEMORY
    if where == "npub" and not _is_key(key):
        return _BAD_KEY
    if where == "group" and event.tag("h") not in (None, key):
        return f"tag h must be {key}"
    return _object_unless_encrypted(event)


def _object_unless_encrypted(event: Event) -> str | None:
    if event.tag("encrypted") == "nip44" or object_in(event.content) is not None:  # S-12
        return None
    return NOT_AN_OBJECT


def _is_key(key: str) -> bool:
    """Forms of S-01."""
    if key.startswith("npub1"):
        try:
            public_key(key)
        except Invalid:
            return False
        return key == key.lower()
    return _SHORT_KEY.fullmatch(key) is not None


def _collective(event: Event) -> str | None:
    if event.tag("snow:tier") not in ("public", "group", "private"):
        return "snow:tier must be public, group or private"
    try:
        confidence = float(event.tag("snow:confidence") or "")
    except ValueError:
        confidence = -1.0
    if not 0 <= confidence <= 1:  # NaN is not between
        return "snow:confidence must be a number from 0 to 1"
    version = event.tag("snow:version") or ""
    if whole_number(version.removeprefix("-")) is None:
        return "snow:version must be an integer"
    return _object_unless_encrypted(event)


def check_lenient(event: Event, terms: Terms) -> str | None:
    if event.d.startswith(_CONFIG) and event.content == "":
        return None
    if event.d.startswith((_CONFIG, _MEMORY, _COLLECTIVE)):
        return _object_unless_encrypted(event)
    return None

"""`content` of a rule: required JSON and refused patterns. The matched text is never logged or
sent.

Encrypted content is not parsed (G-21) and not searched. A tag that only claims encryption does not
help: content that does not look like ciphertext is searched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.errors import Prefix, Reject
from relay.memory.encrypted import may_be_encrypted
from relay.memory.fields import no_object
from relay.nostr.event import object_in

if TYPE_CHECKING:
    from policies.patterns import Patterns
    from relay.nostr.event import Event

_BASE64: Final = re.compile(r"[A-Za-z0-9+/]{54,}+={0,2}")
"""At least 40 bytes (secretbox-v1); NIP-44 has at least 99."""
_NIP04: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}\?iv=[A-Za-z0-9+/]+={0,2}")


@dataclass(frozen=True, slots=True)
class Content:
    """`content` of a rule."""

    is_json: bool = False
    """Content must be a JSON object."""
    refuse: Patterns | None = None

    def objection(self, event: Event, rule: str, reject: str | None) -> Reject | None:
        if self.is_json and not may_be_encrypted(event) and object_in(event.content) is None:
            return Reject(Prefix.INVALID, reject or no_object(event.content), rule)
        if self.refuse is not None and is_hit(event, self.refuse):
            text = reject or f"content is refused by the rule {rule!r}"
            return Reject(Prefix.BLOCKED, text, rule)
        return None


def is_hit(event: Event, patterns: Patterns) -> bool:
    """Whether a pattern matches the content, unless it is encrypted."""
    if may_be_encrypted(event) and _is_ciphertext(event.content):
        return False
    return patterns.found_in(event.content)


def _is_ciphertext(content: str) -> bool:
    if len(content) % 4 == 0 and _BASE64.fullmatch(content):
        # Unlike a key in hex or in bech32.
        return content.lower() != content != content.upper()
    return _NIP04.fullmatch(content) is not None

"""The JSON Schema of an entry: `memory-entry-schema.json` of the specification.

It cannot express that the hash is that of the content, nor that no entry is its own parent; it
wants names and platforms to be text, which `checks` leaves open.
"""

from __future__ import annotations

from typing import Any, Final

from relay.memory.anamnesis.checks import DATE_TIME, MemoryType
from relay.memory.check_options import MAX_CHARS

_HASH: Final = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TIME: Final = {"type": "string", "format": "date-time", "pattern": f"^{DATE_TIME}$"}
_SHARE: Final = {"type": "number", "minimum": 0, "maximum": 1}
_TEXT: Final = {"type": "string"}

ENTRY_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Anamnesis memory entry",
    "type": "object",
    "required": ["content", "author", "timestamp", "content_hash"],
    "additionalProperties": False,
    "properties": {
        "content": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_CHARS,
            "description": "The memory itself. A relay may also limit its UTF-8, to 10240 bytes.",
        },
        "author": {
            "type": "object",
            "required": ["id", "name"],
            "properties": {"id": _TEXT, "name": _TEXT, "platform": _TEXT},
        },
        "timestamp": _TIME,
        "content_hash": {**_HASH, "description": "SHA-256 of the UTF-8 of content."},
        "memory_type": {"enum": [each.value for each in MemoryType], "default": "episodic"},
        "parent_refs": {"type": "array", "items": _HASH, "default": []},
        "vouchers": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "timestamp"],
                "properties": {
                    "id": _TEXT,
                    "name": _TEXT,
                    "timestamp": _TIME,
                    "confidence": _SHARE,
                },
            },
        },
        "confidence": {**_SHARE, "default": 0.5},
        "tags": {"type": "array", "items": _TEXT, "default": []},
        "context": {"type": "object"},
        "superseded_by": _HASH,
    },
}

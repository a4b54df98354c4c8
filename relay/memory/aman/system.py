"""Aman as a memory system of the registry."""

from __future__ import annotations

from typing import Final

from relay.memory.aman.checks import check, check_lenient
from relay.memory.registry import MemorySystem, RecordType, Sweeping
from relay.memory.search_text import fields
from relay.nostr import kinds

_DOCUMENT: Final = ("d", "k")
_RECORD: Final = ("d", "k", "hk", "v", "ts")

AMAN: Final = MemorySystem(
    "aman",
    records=(
        RecordType(kinds.DOC_MANIFEST, "", _DOCUMENT, fields("title")),
        RecordType(kinds.CHUNK_REF, "", _DOCUMENT, fields("text")),
        RecordType(kinds.DOC_POLICY, "", _DOCUMENT),
        RecordType(
            kinds.PREFERENCE, "", _RECORD, fields("preference"), sweeping=Sweeping.NEVER
        ),
        RecordType(kinds.SUMMARY, "", _RECORD, fields("summary")),
        RecordType(kinds.TOOL_HISTORY, "", _RECORD, fields("tool_name", "content")),
        RecordType(kinds.CLEAR_CONTEXT, "", _RECORD),
        RecordType(kinds.SUBSCRIPTION_STATE, "", _RECORD, fields("topics")),
    ),
    check=check,
    check_lenient=check_lenient,
    search_version=0,
)

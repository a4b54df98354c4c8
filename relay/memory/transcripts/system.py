"""Transcripts of conversations as a memory system of the registry."""

from __future__ import annotations

from typing import Final

from relay.memory.registry import MemorySystem, RecordType
from relay.memory.search_text import general_text, tags
from relay.memory.transcripts.checks import check
from relay.nostr import kinds

TRANSCRIPTS: Final = MemorySystem(
    "transcripts",
    records=(
        RecordType(kinds.CONVERSATION_NOTE, "", ("d",), general_text),
        RecordType(kinds.SOURCE_DATA, "", ("d", "source-data")),
        RecordType(kinds.SESSION_STATE, "", ("d",), tags("title", "custom_title")),
        RecordType(kinds.SESSION_COMMAND, "", ("d", "command")),
        RecordType(kinds.RUN_CONFIGURATION, "", ("d",), tags("name", "command")),
        RecordType(kinds.ENVELOPE),
        RecordType(kinds.SHARED_ENVELOPE),
    ),
    check=check,
    search_version=0,
)

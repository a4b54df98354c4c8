"""Anamnesis as a memory system of the registry."""

from __future__ import annotations

from typing import Final

from relay.memory.anamnesis.checks import check
from relay.memory.anamnesis.permissions import (
    entry_objection,
    patch_objection,
    supersession_objection,
)
from relay.memory.anamnesis.references import (
    ENTRY,
    PATCH,
    SUPERSEDED,
    VOUCH,
    entry_references,
    patch_references,
    supersession_references,
)
from relay.memory.registry import MemorySystem, RecordType, object_fault
from relay.memory.search_text import fields
from relay.nostr import kinds

_OTHER: Final = "anamnesis:"
_HASHED: Final = ("d", "x")

ANAMNESIS: Final = MemorySystem(
    "anamnesis",
    records=(
        RecordType(
            kinds.APP_RECORD,
            ENTRY,
            _HASHED,
            fields("content", "tags"),
            references=entry_references,
        ),
        RecordType(kinds.APP_DATA, VOUCH, _HASHED),
        RecordType(kinds.APP_DATA, SUPERSEDED, _HASHED, references=supersession_references),
        RecordType(kinds.APP_DATA, PATCH, _HASHED, fields("tags"), references=patch_references),
        RecordType(kinds.APP_RECORD, _OTHER),
        RecordType(kinds.APP_DATA, _OTHER),
    ),
    check=check,
    check_lenient=object_fault,
    record_rules={
        "a memory stays its first author's": entry_objection,
        "agents and owners supersede": supersession_objection,
        "agents and owners change metadata": patch_objection,
    },
    search_version=0,
)

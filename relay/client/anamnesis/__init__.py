"""Anamnesis at a relay: reading and writing halves, text matching, entry files."""

from relay.client.anamnesis.anamnesis import OUTSIDE, Anamnesis, Imported
from relay.client.anamnesis.reader import Ambiguous, UnknownMemory
from relay.memory.anamnesis.checks import content_hash
from relay.memory.anamnesis.records import validated as validate
from relay.memory.anamnesis.trust import trust_score

__all__ = [
    "OUTSIDE",
    "Ambiguous",
    "Anamnesis",
    "Imported",
    "UnknownMemory",
    "content_hash",
    "trust_score",
    "validate",
]

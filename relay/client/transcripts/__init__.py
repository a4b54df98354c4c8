"""Transcripts: sessions of coding agents on a relay, and back on a disk to the byte.

    async with Transcripts("ws://127.0.0.1:7777", key) as transcripts:
        done = await transcripts.import_file("session.jsonl")
        assert await transcripts.export(done.session) == Path("session.jsonl").read_bytes()

MEMORY.md §3. With a channel (`pns`) what is written goes into envelopes; what is read is looked for
in both forms.
"""

from relay.client.transcripts.results import (
    ImportResult,
    Incomplete,
    Listed,
    NoSession,
    SeveralAuthors,
)
from relay.client.transcripts.writing import Transcripts

__all__ = ["ImportResult", "Incomplete", "Listed", "NoSession", "SeveralAuthors", "Transcripts"]

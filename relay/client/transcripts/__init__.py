"""Transcripts: sessions of coding agents on a relay, exported byte for byte.

    async with Transcripts("ws://127.0.0.1:7777", key) as transcripts:
        done = await transcripts.import_file("session.jsonl")
        assert await transcripts.export(done.session) == Path("session.jsonl").read_bytes()

With a channel (`pns`) events are written in envelopes; reads look for both forms.
"""

from relay.client.transcripts.results import (
    Conversation,
    Detail,
    ImportResult,
    Incomplete,
    Listed,
    NoSession,
    SeveralAuthors,
)
from relay.client.transcripts.transcripts import Transcripts

__all__ = [
    "Conversation",
    "Detail",
    "ImportResult",
    "Incomplete",
    "Listed",
    "NoSession",
    "SeveralAuthors",
    "Transcripts",
]

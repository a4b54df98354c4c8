"""The client: a signing Nostr client that knows no relay from within. The door of the package.

    async with Client("ws://127.0.0.1:7777", key) as relay:
        await relay.send(9, "good morning", [["h", "tea"]])
        async with relay.subscribe({"kinds": [9], "#h": ["tea"]}) as events:
            async for event in events:
                ...
"""

from relay.client.aman import Aman
from relay.client.anamnesis import Anamnesis, content_hash, trust_score, validate
from relay.client.connection import Client, PublishReport
from relay.client.errors import (
    AnswerTooLong,
    ClientClosed,
    ClientError,
    Incomparable,
    NoKey,
    NotARelay,
    PublishRefused,
    QueryClosed,
    Unanswered,
    Unreachable,
)
from relay.client.link import Pace
from relay.client.nmem import Nmem
from relay.client.reconciling import Difference
from relay.client.snowclaw import Leak, Recalled, Snowclaw
from relay.client.subscription import Subscription
from relay.client.transcripts import Transcripts
from relay.memory.nmem.secrets import SecretFilter
from relay.memory.nmem.summary import parse_summary
from relay.memory.nmem.tools import classify_bash, classify_tool
from relay.memory.snowclaw.context import ContextAssembler
from relay.memory.snowclaw.history import RingBuffer
from relay.memory.snowclaw.key_filter import KeyFilter

__all__ = [
    "Aman",
    "Anamnesis",
    "AnswerTooLong",
    "Client",
    "ClientClosed",
    "ClientError",
    "ContextAssembler",
    "Difference",
    "Incomparable",
    "KeyFilter",
    "Leak",
    "Nmem",
    "NoKey",
    "NotARelay",
    "Pace",
    "PublishRefused",
    "PublishReport",
    "QueryClosed",
    "Recalled",
    "RingBuffer",
    "SecretFilter",
    "Snowclaw",
    "Subscription",
    "Transcripts",
    "Unanswered",
    "Unreachable",
    "classify_bash",
    "classify_tool",
    "content_hash",
    "parse_summary",
    "trust_score",
    "validate",
]

"""The client: a signing Nostr client that knows no relay from within. The door of the package.

    async with Client("ws://127.0.0.1:7777", key) as relay:
        await relay.send(9, "good morning", [["h", "tea"]])
        async with relay.subscribe({"kinds": [9], "#h": ["tea"]}) as events:
            async for event in events:
                ...

A name is imported when it is asked for: who wants one client does not wait for five, nor a hook of
a coding agent for the network.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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

_HOMES: Final = {
    "relay.client.errors": "AnswerTooLong ClientClosed ClientError Incomparable NoKey NotARelay"
    " PublishRefused QueryClosed Unanswered Unreachable",
    "relay.client.aman": "Aman",
    "relay.client.anamnesis": "Anamnesis content_hash trust_score validate",
    "relay.client.connection": "Client PublishReport",
    "relay.client.link": "Pace",
    "relay.client.nmem": "Nmem",
    "relay.client.reconciling": "Difference",
    "relay.client.snowclaw": "Leak Recalled Snowclaw",
    "relay.client.subscription": "Subscription",
    "relay.client.transcripts": "Transcripts",
    "relay.memory.nmem.secrets": "SecretFilter",
    "relay.memory.nmem.summary": "parse_summary",
    "relay.memory.nmem.tools": "classify_bash classify_tool",
    "relay.memory.snowclaw.context": "ContextAssembler",
    "relay.memory.snowclaw.history": "RingBuffer",
    "relay.memory.snowclaw.key_filter": "KeyFilter",
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found

"""A signing Nostr client and the clients of the memory systems. Imports nothing of the server.

    async with Client("ws://127.0.0.1:7777", key) as relay:
        await relay.say("tea", "good morning")
        async with relay.subscribe({"kinds": [9], "#h": ["tea"], "limit": 0}) as events:
            async for event in events:  # from now on
                ...  # relay.say("tea", text, reply_to=event) answers

Ids such as G-30, S-37 or X-12 in docstrings are statements, listed in docs/conformance-memory.md.

Names are imported lazily (PEP 562): a hook of a coding agent starts without loading aiohttp.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.client.aman import Aman
    from relay.client.anamnesis import Anamnesis, content_hash, trust_score, validate
    from relay.client.client import Client, PublishReport
    from relay.client.connection import Timeouts
    from relay.client.errors import (
        AnswerTooLong,
        CallRefused,
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
    from relay.client.memory import LeftInCache
    from relay.client.negentropy import Difference
    from relay.client.nmem import Nmem
    from relay.client.snowclaw import Leak, Recalled, Snowclaw
    from relay.client.subscription import Subscription
    from relay.client.transcripts import Transcripts
    from relay.memory.nmem.summary import parse_summary
    from relay.memory.nmem.tools import classify_bash, classify_tool
    from relay.memory.secrets import SecretFilter
    from relay.memory.snowclaw.context import ContextAssembler
    from relay.memory.snowclaw.history import RingBuffer
    from relay.memory.snowclaw.key_filter import KeyFilter

__all__ = [
    "Aman",
    "Anamnesis",
    "AnswerTooLong",
    "CallRefused",
    "Client",
    "ClientClosed",
    "ClientError",
    "ContextAssembler",
    "Difference",
    "Incomparable",
    "KeyFilter",
    "Leak",
    "LeftInCache",
    "Nmem",
    "NoKey",
    "NotARelay",
    "PublishRefused",
    "PublishReport",
    "QueryClosed",
    "Recalled",
    "RingBuffer",
    "SecretFilter",
    "Snowclaw",
    "Subscription",
    "Timeouts",
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

_NAMES_BY_MODULE: Final = {
    "relay.client.errors": "AnswerTooLong CallRefused ClientClosed ClientError Incomparable NoKey"
    " NotARelay PublishRefused QueryClosed Unanswered Unreachable",
    "relay.client.aman": "Aman",
    "relay.client.anamnesis": "Anamnesis content_hash trust_score validate",
    "relay.client.client": "Client PublishReport",
    "relay.client.connection": "Timeouts",
    "relay.client.memory": "LeftInCache",
    "relay.client.nmem": "Nmem",
    "relay.client.negentropy": "Difference",
    "relay.client.snowclaw": "Leak Recalled Snowclaw",
    "relay.client.subscription": "Subscription",
    "relay.client.transcripts": "Transcripts",
    "relay.memory.secrets": "SecretFilter",
    "relay.memory.nmem.summary": "parse_summary",
    "relay.memory.nmem.tools": "classify_bash classify_tool",
    "relay.memory.snowclaw.context": "ContextAssembler",
    "relay.memory.snowclaw.history": "RingBuffer",
    "relay.memory.snowclaw.key_filter": "KeyFilter",
}
_MODULE_OF: Final = {
    name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()
}


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(module), name)
    return found

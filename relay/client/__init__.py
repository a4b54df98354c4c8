"""The client: a signing Nostr client that knows no relay from within. The door of the package.

    async with Client("ws://127.0.0.1:7777", key) as relay:
        await relay.send(9, "good morning", [["h", "tea"]])
        async with relay.subscribe({"kinds": [9], "#h": ["tea"]}) as events:
            async for event in events:
                ...
"""

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
from relay.client.reconciling import Difference
from relay.client.subscription import Subscription

__all__ = [
    "AnswerTooLong",
    "Client",
    "ClientClosed",
    "ClientError",
    "Difference",
    "Incomparable",
    "NoKey",
    "NotARelay",
    "Pace",
    "PublishRefused",
    "PublishReport",
    "QueryClosed",
    "Subscription",
    "Unanswered",
    "Unreachable",
]

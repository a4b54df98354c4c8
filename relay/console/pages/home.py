"""Home: what the relay is, how to connect, and for owners how it does."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from relay.console.html import qr_path
from relay.console.page import Found, Page
from relay.console.pages.groups import listed_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from relay.console.ask import Ask
    from relay.console.parts import OwnerView

_SHOWN: Final = ("name", "description", "contact", "terms_of_service", "self", "pubkey", "version")
_LIMITS: Final = {
    "max_message_length": "message size (bytes)",
    "max_content_length": "content (characters)",
    "max_event_tags": "tags per event",
    "max_limit": "events per answer",
    "max_subscriptions": "open subscriptions",
}
_GROUPS: Final = 12


async def _home(ask: Ask) -> Found:
    groups = await listed_groups(ask)
    information = ask.information
    limits = information.get("limitation")
    limits = limits if isinstance(limits, dict) else {}
    owner = information.get("pubkey")
    people = await ask.people([owner] if isinstance(owner, str) else [])
    data: dict[str, object] = {
        "relay": {name: information.get(name, "") for name in _SHOWN},
        "url": ask.url,
        "qr": qr_path(ask.url),
        "nips": information.get("supported_nips", []),
        "limits": [
            {"text": text, "value": limits.get(name, 0)}
            for name, text in _LIMITS.items()
            if limits.get(name)
        ],
        "work": limits.get("min_pow_difficulty", 0),
        "restricted_writes": bool(limits.get("restricted_writes")),
        "groups": groups[:_GROUPS],
        "groups_total": len(groups),
        "owner": None if ask.owner_view is None else await _for_owner(ask.owner_view, ask.now),
    }
    return Found(data, people)


async def _for_owner(owner_view: OwnerView, now: int) -> Mapping[str, object]:
    status, disk, findings = await asyncio.gather(
        owner_view.status(), owner_view.disk(), owner_view.findings()
    )
    numbers = status.numbers
    return {
        "up_s": int(status.up_s),
        "connections": int(numbers.get("connections", 0)),
        "logged_in": int(numbers.get("connections_logged_in", 0)),
        "subscriptions": int(numbers.get("subscriptions", 0)),
        "stored": status.events.get("stored", 0),
        "refused": sum(status.refusals.values()),
        "refusals": [
            {"rule": rule, "events": number} for rule, number in [*status.refusals.items()][:8]
        ],
        "disk": disk,
        "is_in_database": owner_view.is_in_database,
        "findings": findings,
        "problems": dict(status.problems),
        "plugins": dict(status.plugins),
        "reads": [asdict(read) for read in [*status.reads][:5]],
        "now": now,
    }


PAGES: Final = (
    Page(
        "home",
        "Home",
        "What the relay is, how to connect to it, what it supports; for owners its state.",
        _home,
        command="rookery status",
    ),
)

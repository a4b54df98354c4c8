"""A relay that somebody else runs, and which scripts make sense there."""

from __future__ import annotations

import json
import re
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from relay.nostr import kinds
from relay.server.http import NOSTR_JSON, SOFTWARE
from tests.conversations.runner import Failed
from tests.conversations.script import Says, Script

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey

PATIENCE_S: Final = 10.0
ROLES: Final = ("owner", "robot", "rover")
NIP_OF_VERB: Final = {"AUTH": 42, "COUNT": 45, "NEG-OPEN": 77}
NEVER_ANNOUNCED: Final = frozenset({1, 32, 43, 46, 65})
"""What relays do without naming it in `supported_nips`."""


@dataclass
class OtherRelay:
    """What is known of it before anybody speaks to it."""

    url: str
    preset: str
    roles: dict[str, SecretKey] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)
    """NIP-11; empty when it has none."""

    @property
    def addresses(self) -> list[str]:
        return [self.url]

    async def settle(self) -> None:
        """It is one process, as far as anybody knows."""

    async def restart(self) -> None:
        raise Failed("a relay of somebody else is not ours to restart")

    def why_not(self, script: Script) -> str | None:
        """Why this script cannot be played there, in a line; None when it can."""
        if script.preset != self.preset:
            return f"is for a relay of the preset {script.preset}"
        if script.policy:
            return "brings rules of its own"
        if script.restarts:
            return "restarts the relay"
        missing = [role for role in ROLES if role in script.people and role not in self.roles]
        if missing:
            return f"needs the key of {' and '.join(missing)}"
        if not script.proves and self.document.get("software") != SOFTWARE:
            return "is about Rookery, not about Nostr"
        return self._not_announced(script) or self._other_limits(script)

    def _not_announced(self, script: Script) -> str | None:
        announced = self.document.get("supported_nips")
        if not isinstance(announced, list):
            return None
        absent = sorted(nips_of(script) - {nip for nip in announced if isinstance(nip, int)})
        return f"NIP-{absent[0]:02d} is not announced there" if absent else None

    def _other_limits(self, script: Script) -> str | None:
        limits = self.document.get("limitation")
        for name, number in script.limits.items():
            there = limits.get(name) if isinstance(limits, dict) else None
            if there != number:
                return f"is for a {name} of {number}, there it is {there}"
        return None


def nips_of(script: Script) -> set[int]:
    """What a relay has to announce before it is held to this script."""
    folder = re.match(r"nip(\d\d)/", script.path)
    found = {int(folder[1])} if folder else set()
    for step in script.steps:
        if isinstance(step.act, Says) and step.act.frame:
            verb, *rest = step.act.frame
            found |= {NIP_OF_VERB[verb]} if verb in NIP_OF_VERB else set()
            if rest and isinstance(rest[0], dict) and rest[0].get("kind") == kinds.CREATE_GROUP:
                found.add(29)
    return found - NEVER_ANNOUNCED


def document_at(url: str) -> dict[str, Any]:
    """What the relay says of itself by NIP-11; empty when that is nothing that can be read."""
    request = urllib.request.Request(
        re.sub("^ws", "http", url), headers={"Accept": NOSTR_JSON, "User-Agent": "rookery"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=PATIENCE_S) as response:
            found = json.load(response)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

"""Table [anamnesis] of client.toml.

[anamnesis]
author_id   = "babel-moltbook-001"
author_name = "Babel"
platform    = "moltbook"
reputation  = { "npub1…" = 0.9 }            # of authors and vouchers; default 0.5
households  = [["npub1…", "npub1…"]]        # keys of one owner: they count as one voucher
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from relay.client.settings import FILE, suggestion
from relay.errors import ConfigFaults, Fault, Invalid
from relay.memory.anamnesis.trust import Reputations
from relay.nostr.keys import public_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from relay.client.settings import ClientFile

_TEXTS: Final = ("author_id", "author_name", "platform")
KEYS: Final = (*_TEXTS, "reputation", "households")


@dataclass(frozen=True, slots=True)
class AnamnesisSettings:
    author_id: str | None = None
    """None: the signing key; likewise the name."""
    author_name: str | None = None
    platform: str | None = None
    """None: no field."""
    reputations: Reputations = field(default_factory=Reputations)


def anamnesis_settings(file: ClientFile, home: Path) -> AnamnesisSettings:
    """Raises ConfigFaults with all faults of the table."""
    table: Mapping[str, Any] = dict(file.tables).get("anamnesis", {})
    faults = [Fault(str(home / FILE), 0, f"[anamnesis] {fault}") for fault in _faults(table)]
    if faults:
        raise ConfigFaults(faults)
    return AnamnesisSettings(
        author_id=table.get("author_id"),
        author_name=table.get("author_name"),
        platform=table.get("platform"),
        reputations=Reputations(
            of={public_key(key): float(at) for key, at in table.get("reputation", {}).items()},
            households=tuple(
                [frozenset(map(public_key, home)) for home in table.get("households", ())]
            ),
        ),
    )


def _faults(table: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(table.keys() - set(KEYS)):
        yield f"unknown key {key}; {suggestion(key, KEYS)}"
    for name in _TEXTS:
        if not isinstance(table.get(name, ""), str):
            yield f"{name}: must be a string"
    reputation = table.get("reputation", {})
    if not isinstance(reputation, dict):
        yield "reputation: must be a table of keys and numbers"
    else:
        for key, at in reputation.items():
            yield from _key_faults("reputation", key)
            is_number = isinstance(at, int | float) and not isinstance(at, bool)
            if not (is_number and 0 <= at <= 1):
                yield f"reputation: of {key[:16]} must be a number from 0 to 1"
    yield from _household_faults(table.get("households", []))


def _household_faults(households: object) -> Iterator[str]:
    if not isinstance(households, list) or not all(isinstance(h, list) for h in households):
        yield "households: must be an array of arrays of keys"
        return
    seen: dict[str, int] = {}
    for number, household in enumerate(households):
        for key in household:
            fault = next(_key_faults("households", key), None)
            if fault is not None:
                yield fault
            elif seen.setdefault(public_key(key), number) != number:
                yield f"households: {key[:16]} is in two of them"


def _key_faults(name: str, key: object) -> Iterator[str]:
    """A secret key is not quoted."""
    try:
        public_key(key if isinstance(key, str) else "")
    except Invalid as invalid:
        yield f"{name}: {invalid.text}"

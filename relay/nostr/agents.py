"""Agents of Buzz: owner attestations (NIP-OA, NIP-AA) and the form of personas (NIP-AP). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from relay.errors import Invalid, Prefix, Refused
from relay.nostr.event import is_hex64
from relay.nostr.keys import is_signature
from relay.nostr.kinds import MAX_KIND, PERSONA

if TYPE_CHECKING:
    from relay.nostr.event import Event

MAX_CONDITIONS: Final = 1024
"""Characters."""
_MAX_TIME: Final = 4294967295
_CLAUSE: Final = re.compile(r"(kind=|created_at<|created_at>)(0|[1-9][0-9]{0,9})", re.ASCII)
_SIGNATURE: Final = re.compile(r"[0-9a-f]{128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Attestation:
    """What an owner's `auth` tag says of an agent; its signature was verified."""

    agent: str
    owner: str
    kinds: frozenset[int] | None = None
    """Kinds of events that it covers; None: all. Two different `kind=` cover none."""
    after: int = -1
    """Valid after this second …"""
    until: int | None = None
    """… and before this one; None: no end."""

    def is_about(self, kind: int) -> bool:
        return self.kinds is None or kind in self.kinds

    def holds_at(self, second: int) -> bool:
        return self.after < second and (self.until is None or second < self.until)


def attestation_of(event: Event) -> Attestation | None:
    """The `auth` tag of an event by an agent; None: it has none. Does not compare any time.

    Raises Refused (`restricted:`) for a second tag and for what NIP-OA calls malformed or invalid.
    """
    tags = [tag for tag in event.tags if tag and tag[0] == "auth"]
    if not tags:
        return None
    if len(tags) > 1:
        raise _refused("one tag only")
    if len(tags[0]) != 4:
        raise _refused("must have four elements")
    _, owner, conditions, signature = tags[0]
    if not is_hex64(owner):
        raise _refused("the owner must be 64 lowercase hex characters")
    if owner == event.pubkey:
        raise _refused("nobody is their own owner")
    if not _SIGNATURE.fullmatch(signature):
        raise _refused("the signature must be 128 lowercase hex characters")
    attestation = _with_conditions(Attestation(event.pubkey, owner), conditions)
    if not is_signature(owner, signed_digest(event.pubkey, conditions), bytes.fromhex(signature)):
        raise _refused("not signed by this owner for this agent and these conditions")
    return attestation


def signed_digest(agent: str, conditions: str) -> bytes:
    """What the owner signs: 32 bytes."""
    return sha256(f"nostr:agent-auth:{agent}:{conditions}".encode()).digest()


def _with_conditions(attestation: Attestation, conditions: str) -> Attestation:
    if len(conditions) > MAX_CONDITIONS:
        raise _refused(f"the conditions have at most {MAX_CONDITIONS} characters")
    kinds, after, until = attestation.kinds, attestation.after, attestation.until
    for number, clause in enumerate(conditions.split("&") if conditions else (), 1):
        parsed = _CLAUSE.fullmatch(clause)
        value = int(parsed[2]) if parsed is not None else -1
        if parsed is None or value > (MAX_KIND if parsed[1] == "kind=" else _MAX_TIME):
            raise _refused(f"condition {number} is malformed or unknown")
        match parsed[1]:
            case "kind=":
                one = frozenset({value})
                kinds = one if kinds is None else kinds & one
            case "created_at>":
                after = max(after, value)
            case _:
                until = value if until is None else min(until, value)
    return Attestation(attestation.agent, attestation.owner, kinds, after, until)


def _refused(why: str) -> Refused:
    return Refused(Prefix.RESTRICTED, f"auth: {why}")


def check_persona(event: Event) -> None:
    """Raises Invalid when a persona has not one `d`, or a `shared` that is not `true` (NIP-AP)."""
    if event.kind != PERSONA:
        return
    named = [tag[1] if len(tag) > 1 else "" for tag in event.tags if tag and tag[0] == "d"]
    if len(named) != 1 or not named[0]:
        raise Invalid("d: a persona has one, not empty")
    shared = [tag[1:] for tag in event.tags if tag and tag[0] == "shared"]
    if len(shared) > 1 or any(values != ["true"] for values in shared):
        raise Invalid('shared: at most one, ["shared", "true"]')

"""Settings of policy files beside rules, as frozen values; defaults are in `policies/defaults`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from relay.lifecycle.rows import Tie
from relay.memory.check_options import MAX_CHARS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from policies.patterns import Patterns
    from relay.memory.registry import MemorySystem


class AuthWrites(Enum):
    """`[auth] writes`: which events need a login on their connection (Z-10)."""

    NEVER = "never"
    GROUPS = "groups"
    ALWAYS = "always"


class SchemaMode(Enum):
    """How strictly records of a memory system are checked (G-05)."""

    STRICT = "strict"
    LENIENT = "lenient"
    OFF = "off"


class TsRule(Enum):
    """What tag `ts` may say beside `created_at` (A-08)."""

    ORDER = "order"
    EQUAL = "equal"


class AnonymousRead(Enum):
    """Which rows of 30090–30097 everyone may read (A-20)."""

    NONE = "none"
    ENCRYPTED = "encrypted"
    ALL = "all"


class Vouchers(Enum):
    """Who may vouch for a memory beside the owner (X-12)."""

    AGENTS = "agents"
    MEMBERS = "members"


UPPER_S: Final = 900


@dataclass(frozen=True, slots=True)
class Limits:
    """`[limits]` of policy files; NIP-11 announces them."""

    created_at_upper: int = UPPER_S
    """Seconds ahead."""
    created_at_lower: int = 0
    """Seconds back; 0: any age."""
    max_content_length: int = 400_000
    """Characters."""
    max_event_tags: int = 5000
    min_pow_difficulty: int = 0
    """Bits."""


@dataclass(frozen=True, slots=True)
class Memory:
    """`[memory]` and its tables."""

    schemas: Mapping[str, SchemaMode] = field(default_factory=dict)
    """Name of a memory system → mode."""
    owner_annotations: bool = False
    tie: Tie = Tie.HIGH
    ts_rule: TsRule = TsRule.ORDER
    verify_hash: bool = False
    anonymous_read: AnonymousRead = AnonymousRead.NONE
    envelope_keys: frozenset[str] = frozenset()
    vouchers: Vouchers = Vouchers.AGENTS
    max_chars: int = MAX_CHARS
    """Code points of an entry's content (X-03)."""
    max_bytes: int = 0
    """Of its UTF-8; 0: no limit."""
    created_at_upper: int = UPPER_S
    """How far ahead `ts` may be (G-14): the general limit."""
    reject_patterns: Patterns | None = None
    """Patterns that no unencrypted content may match (M-31)."""

    def schema_of(self, system: MemorySystem) -> SchemaMode:
        return self.schemas.get(system.name, SchemaMode.STRICT)


SERVER_TABLES: Final = ("relay", "server", "storage", "bus", "log")
"""Tables of rookery.toml; `[limits]` is in both files with other keys."""

SERVER_LIMITS: Final = (
    "max_message_length",
    "max_subscriptions",
    "max_filters",
    "max_limit",
    "default_limit",
    "max_connections",
    "connections_per_address",
    "outbox_bytes",
    "neg_records",
    "neg_sessions",
)

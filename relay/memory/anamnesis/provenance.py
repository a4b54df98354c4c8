"""What a memory rests on, and what rests on it. MEMORY.md 6.2.

A hash covers the content of a memory and not its `parent_refs`, so that two memories can name each
other: every walk here passes each memory once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relay.memory.anamnesis.archive import Archive
    from relay.memory.anamnesis.records import Memory

MOST_NODES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Trace:
    order: tuple[str, ...]
    """Known ancestors, parents before children, the memory itself last."""
    depth: int
    """Steps of the longest way up."""
    missing: tuple[str, ...]
    """Hashes that nothing is known of, in the order in which they were met."""
    truncated: bool
    """There were more than MOST_NODES."""


@dataclass(frozen=True, slots=True)
class Credit:
    """One author of an ancestry."""

    author: str
    """Public key."""
    name: str
    """As their newest entry there claims."""
    entries: int


def trace(hashed: str, archive: Archive) -> Trace:
    """X-09. What several authors wrote counts as its original author has it."""
    depths: dict[str, int] = {}
    missing: dict[str, None] = {}
    entered: set[str] = set()
    truncated = False
    ways: list[tuple[str, Iterator[str]]] = []

    def enter(node: str) -> None:
        memory = archive.original(node)
        if memory is None:
            missing[node] = None
            return
        entered.add(node)
        ways.append((node, iter(memory.entry.parents)))

    enter(hashed)
    while ways:
        node, parents = ways[-1]
        parent = next(parents, None)
        if parent is None:
            ways.pop()
            depths[node] = _depth(node, archive, depths)
        elif parent not in entered and parent not in missing:
            if len(entered) + len(missing) >= MOST_NODES:
                truncated = True
            else:
                enter(parent)
    return Trace(tuple(depths), depths.get(hashed, 0), tuple(missing), truncated)


def _depth(node: str, archive: Archive, depths: dict[str, int]) -> int:
    memory = archive.original(node)
    parents = () if memory is None else memory.entry.parents
    # A parent without a depth is missing, or waits below in a circle.
    return max([depths[parent] + 1 for parent in parents if parent in depths], default=0)


def children(hashed: str, archive: Archive) -> Sequence[Memory]:
    """What builds upon a memory directly, oldest first, each hash once (X-09)."""
    found = [memory for node in archive.memories if (memory := archive.original(node)) is not None]
    built = [memory for memory in found if hashed in memory.entry.parents]
    return sorted(built, key=lambda memory: (memory.event.created_at, memory.event.id))


def credit(hashed: str, archive: Archive) -> Sequence[Credit]:
    """Whose work a memory is, with its ancestry: most entries first, then by key (X-10)."""
    found: dict[str, list[Memory]] = {}
    for node in trace(hashed, archive).order:
        memory = archive.original(node)
        if memory is not None:
            found.setdefault(memory.author, []).append(memory)
    credits_ = [
        Credit(author, max(memories, key=_age).entry.author_name, len(memories))
        for author, memories in found.items()
    ]
    return sorted(credits_, key=lambda each: (-each.entries, each.author))


def _age(memory: Memory) -> tuple[int, str]:
    return memory.event.created_at, memory.event.id

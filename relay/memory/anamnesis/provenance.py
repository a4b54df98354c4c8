"""Provenance: ancestors, children and contributors of a memory.

The hash of a memory does not cover its `parent_refs`, so the graph may have cycles: every traversal
visits each memory once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relay.memory.anamnesis.archive import Archive
    from relay.memory.anamnesis.records import Memory

MAX_NODES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Trace:
    order: tuple[str, ...]
    """Known ancestors, parents before children, the memory itself last."""
    depth: int
    """Length of the longest path to an ancestor."""
    missing: tuple[str, ...]
    """Hashes of unknown ancestors, in the order of the traversal."""
    truncated: bool
    """There are more than MAX_NODES."""


@dataclass(frozen=True, slots=True)
class Credit:
    """One author among the ancestors."""

    author: str
    """Public key."""
    name: str
    """Name claimed in their newest entry among them."""
    entries: int


def trace(hashed: str, archive: Archive) -> Trace:
    """X-09. Entries of several authors count as their original author's."""
    depths: dict[str, int] = {}
    missing: dict[str, None] = {}
    entered: set[str] = set()
    truncated = False
    stack: list[tuple[str, Iterator[str]]] = []

    def enter(node: str) -> None:
        memory = archive.original(node)
        if memory is None:
            missing[node] = None
            return
        entered.add(node)
        stack.append((node, iter(memory.entry.parents)))

    enter(hashed)
    while stack:
        node, parents = stack[-1]
        parent = next(parents, None)
        if parent is None:
            stack.pop()
            depths[node] = _depth(node, archive, depths)
        elif parent not in entered and parent not in missing:
            if len(entered) + len(missing) >= MAX_NODES:
                truncated = True
            else:
                enter(parent)
    return Trace(tuple(depths), depths.get(hashed, 0), tuple(missing), truncated)


def _depth(node: str, archive: Archive, depths: dict[str, int]) -> int:
    memory = archive.original(node)
    parents = () if memory is None else memory.entry.parents
    # A parent without a depth is missing, or part of a cycle.
    return max([depths[parent] + 1 for parent in parents if parent in depths], default=0)


def children(hashed: str, archive: Archive) -> Sequence[Memory]:
    """The memories that have it as a parent, oldest first, each hash once (X-09)."""
    found = [memory for node in archive.memories if (memory := archive.original(node)) is not None]
    built = [memory for memory in found if hashed in memory.entry.parents]
    return sorted(built, key=lambda memory: (memory.event.created_at, memory.event.id))


def credit(hashed: str, archive: Archive) -> Sequence[Credit]:
    """The authors of a memory and its ancestors: most entries first, then by key (X-10)."""
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

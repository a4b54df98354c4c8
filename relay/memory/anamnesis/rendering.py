"""Provenance graphs as a text tree, Graphviz DOT or SVG, parents below their children.

Texts of memories are untrusted: cut to one line and escaped for each format.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Final

from relay.memory.anamnesis.provenance import trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relay.memory.anamnesis.archive import Archive

HASH_CHARS: Final = 12
_TEXT_CHARS: Final = 48
_AUTHOR_CHARS: Final = 24
_MISSING: Final = "missing"
_WIDTH, _HEIGHT, _GAP = 380, 44, 36
"""Size of a box and distance of boxes, in pixels."""


@dataclass(frozen=True, slots=True)
class Node:
    hash: str
    text: str
    """One line of its content; `missing` for an unknown memory."""
    author: str
    """Name claimed by the entry; empty for an unknown memory."""
    parents: tuple[str, ...]
    layer: int
    """Length of the longest path to a memory without known parents."""
    known: bool

    @property
    def short(self) -> str:
        return self.hash[:HASH_CHARS]


def nodes_of(hashed: str, archive: Archive) -> Sequence[Node]:
    """The ancestors of a memory in the order of `trace`, missing ones first, itself last."""
    found = trace(hashed, archive)
    nodes = {missing: Node(missing, _MISSING, "", (), 0, known=False) for missing in found.missing}
    for each in found.order:
        memory = archive.original(each)
        assert memory is not None
        drawn = tuple(dict.fromkeys(memory.entry.parents))
        layer = max([nodes[parent].layer + 1 for parent in drawn if parent in nodes], default=0)
        text = _line(memory.entry.content, _TEXT_CHARS)
        author = _line(memory.entry.author_name, _AUTHOR_CHARS)
        nodes[each] = Node(each, text, author, drawn, layer, known=True)
    # A truncated trace lacks some parents.
    return [
        replace(node, parents=tuple(parent for parent in node.parents if parent in nodes))
        for node in nodes.values()
    ]


def tree_of(nodes: Sequence[Node]) -> Iterator[str]:
    """The lines of a tree; a memory that occurs repeatedly is expanded at its first place only."""
    by_hash = {node.hash: node for node in nodes}
    expanded: set[str] = set()
    left = [(nodes[-1].hash, "", "")] if nodes else []
    while left:
        hashed, before, indent = left.pop()
        node = by_hash[hashed]
        again = hashed in expanded and bool(node.parents)
        yield f"{before}{node.short} {'(see above)' if again else node.text}"
        if again:
            continue
        expanded.add(hashed)
        last = len(node.parents) - 1
        for number, parent in reversed(list(enumerate(node.parents))):
            corner, further = ("└─ ", "   ") if number == last else ("├─ ", "│  ")
            left.append((parent, indent + corner, indent + further))


def dot_of(nodes: Sequence[Node]) -> str:
    """DOT for Graphviz: edges go from a memory to its parents."""
    lines = ["digraph provenance {", "  rankdir=TB;", "  node [shape=box, fontname=sans];"]
    for node in nodes:
        style = "" if node.known else ", style=dashed"
        label = f"{_quoted(_heading(node))}\\n{_quoted(node.text)}"
        lines.append(f'  "{node.hash}" [label="{label}"{style}];')
    for node in nodes:
        lines.extend(f'  "{node.hash}" -> "{parent}";' for parent in node.parents)
    return "\n".join([*lines, "}", ""])


def svg_of(nodes: Sequence[Node]) -> str:
    """A standalone SVG: one row per layer, the traced memory on top."""
    layers: dict[int, list[Node]] = {}
    for node in nodes:
        layers.setdefault(node.layer, []).append(node)
    top = max(layers, default=0)
    step = _WIDTH + _GAP
    places = {  # every other row is shifted, so that arrows across a row pass between its boxes
        node.hash: (
            _GAP + number * step + layer % 2 * step // 2,
            _GAP + (top - layer) * (_HEIGHT + _GAP * 2),
        )
        for layer, row in layers.items()
        for number, node in enumerate(row)
    }
    width = max([x for x, _ in places.values()], default=0) + _WIDTH + _GAP
    height = max([y for _, y in places.values()], default=0) + _HEIGHT + _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="13">',
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"'
        ' markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#888"/></marker></defs>',
    ]
    for node in nodes:
        x, y = places[node.hash]
        for parent in node.parents:
            to_x, to_y = places[parent]
            lines.append(
                f'<line x1="{x + _WIDTH // 2}" y1="{y + _HEIGHT}" x2="{to_x + _WIDTH // 2}"'
                f' y2="{to_y}" stroke="#888" marker-end="url(#arrow)"/>'
            )
    for node in nodes:
        x, y = places[node.hash]
        dashes = "" if node.known else ' stroke-dasharray="4"'
        heading = escape(_heading(node))
        lines.append(
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#fff"'
            f' stroke="#333"{dashes}/>'
            f'<text x="{x + 10}" y="{y + 18}" font-family="monospace">{heading}</text>'
            f'<text x="{x + 10}" y="{y + 36}">{escape(node.text)}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def _heading(node: Node) -> str:
    return f"{node.short}  {node.author}".rstrip()


def _line(text: str, max_chars: int) -> str:
    """The text on one line, without unprintable characters."""
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return words if len(words) <= max_chars else words[: max_chars - 1] + "…"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

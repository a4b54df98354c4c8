"""Provenance as text, DOT and SVG."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from relay.memory.anamnesis.archive import archive_of
from relay.memory.anamnesis.checks import content_hash
from relay.memory.anamnesis.records import Memory
from relay.memory.anamnesis.rendering import dot_of, nodes_of, svg_of, tree_of
from tests.cast import robot
from tests.unit.memory.anamnesis.making import read, told

GONE = content_hash("gone")
NASTY = 'He said "\\n</text><script>" & left\x1b[2J\nfor good, and then some more, and more again'
A, B, N = content_hash("a"), content_hash("b"), content_hash(NASTY)
EVENTS = [
    told(robot, "a", parents=(GONE,)),
    told(robot, "b", parents=(A,)),
    told(robot, NASTY, parents=(A, B, A)),
]
NODES = nodes_of(N, archive_of([read(Memory, event) for event in EVENTS]))


@pytest.mark.proves("X-09")
def test_a_tree_tells_each_memory_once_and_what_is_missing() -> None:
    lines = list(tree_of(NODES))
    assert lines == [
        f"{N[:12]} {lines[0][13:]}",
        f"├─ {A[:12]} a",
        f"│  └─ {GONE[:12]} missing",
        f"└─ {B[:12]} b",
        f"   └─ {A[:12]} (see above)",
    ]
    assert lines[0][13:].startswith('He said "\\n</text><script>" & left [2J for good')
    assert len(lines[0]) <= 13 + 48
    assert list(tree_of(nodes_of(GONE, archive_of([])))) == [f"{GONE[:12]} missing"]


def test_dot_has_an_edge_to_each_parent_and_quotes_what_others_wrote() -> None:
    drawn = dot_of(NODES)
    assert drawn.count(" -> ") == 4
    assert f'  "{B}" -> "{A}";' in drawn
    assert f'"{GONE}" [label="{GONE[:12]}\\nmissing", style=dashed];' in drawn
    assert '\\nHe said \\"\\\\n</text>' in drawn


def test_svg_is_well_formed_whatever_others_wrote_and_newer_stand_above() -> None:
    root = ET.fromstring(svg_of(NODES))
    names = [element.tag.rpartition("}")[2] for element in root]
    assert (names.count("rect"), names.count("line")) == (4, 4)
    assert "script" not in names
    texts = {e.text: int(e.get("y", "0")) for e in root if e.tag.endswith("text")}
    headings = [f"{N[:12]}  Robot", f"{B[:12]}  Robot", f"{A[:12]}  Robot", GONE[:12]]
    assert sorted(headings, key=texts.__getitem__) == headings
    lines = [element for element in root if element.tag.endswith("line")]
    assert {element.get("marker-end") for element in lines} == {"url(#arrow)"}


def test_memories_that_name_each_other_are_drawn_once() -> None:
    events = [told(robot, "a", parents=(B,)), told(robot, "b", parents=(A,))]
    nodes = nodes_of(A, archive_of([read(Memory, event) for event in events]))
    assert list(tree_of(nodes)) == [f"{A[:12]} a", f"└─ {B[:12]} b", f"   └─ {A[:12]} (see above)"]
    assert dot_of(nodes).count(" -> ") == 2
    ET.fromstring(svg_of(nodes))

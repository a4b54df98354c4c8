"""Lines of keys in TOML texts."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.toml.lines import lines_of

TEXT = '''\
top = 1        # [not a table]
"quoted key" = "# no comment \\" ]"
a.b = 3

[table]
list = [
  1, # one
  "x]",
  { deep = 1, deeper = { deepest = [ 2,
    3 ] } },
]
text = """
key = "not one"
[nor a table]
"quoted\\""" """
raw = \'\'\'
[neither]\'\'\'\'
after = true

  [[rule]]
  name = "one"
  [rule.match]
  kinds = [1]
[[rule]]
name = "two"
match = { kinds = [2], "snow:tier" = 1 }
match2.kinds = 1979-05-27T07:32:00Z
'''


def test_every_key_has_its_line() -> None:
    tomllib.loads(TEXT)
    lines = lines_of(TEXT)
    assert {
        path: lines[path]
        for path in [
            ("top",),
            ("quoted key",),
            ("a", "b"),
            ("table",),
            ("table", "list"),
            ("table", "list", 0),
            ("table", "list", 1),
            ("table", "list", 2),
            ("table", "list", 2, "deep"),
            ("table", "list", 2, "deeper", "deepest"),
            ("table", "list", 2, "deeper", "deepest", 1),
            ("table", "text"),
            ("table", "raw"),
            ("table", "after"),
            ("rule", 0),
            ("rule", 0, "name"),
            ("rule", 0, "match", "kinds"),
            ("rule", 1),
            ("rule", 1, "match", "kinds"),
            ("rule", 1, "match", "snow:tier"),
            ("rule", 1, "match2", "kinds"),
        ]
    } == {
        ("top",): 1,
        ("quoted key",): 2,
        ("a", "b"): 3,
        ("table",): 5,
        ("table", "list"): 6,
        ("table", "list", 0): 7,
        ("table", "list", 1): 8,
        ("table", "list", 2): 9,
        ("table", "list", 2, "deep"): 9,
        ("table", "list", 2, "deeper", "deepest"): 9,
        ("table", "list", 2, "deeper", "deepest", 1): 10,
        ("table", "text"): 12,
        ("table", "raw"): 16,
        ("table", "after"): 18,
        ("rule", 0): 20,
        ("rule", 0, "name"): 21,
        ("rule", 0, "match", "kinds"): 23,
        ("rule", 1): 24,
        ("rule", 1, "match", "kinds"): 26,
        ("rule", 1, "match", "snow:tier"): 26,
        ("rule", 1, "match2", "kinds"): 27,
    }


def test_crlf_counts_once() -> None:
    assert lines_of("a = 1\r\nb = 2\r\n") == {("a",): 1, ("b",): 2}


NAMES = st.text("abc-_1", min_size=1, max_size=4)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.integers() | st.booleans() | st.sampled_from(["x", "#", "]", "}", '"', "=", "a.b", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return "[ # list\n" + ",\n".join(map(_toml, value)) + "\n]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return '"' + str(value).replace('"', '\\"') + '"'


def _paths(value: object, path: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    inner: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *[found for key, one in inner for found in _paths(one, (*path, key))]]


@pytest.mark.slow
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_every_key_that_tomllib_reads_has_a_line(values: dict[str, object]) -> None:
    text = "".join(f"{key} = {_toml(value)}\n" for key, value in values.items())
    assert tomllib.loads(text) == values
    lines = lines_of(text)
    assert set(lines) == {path for path in _paths(values, ()) if path}
    for path, line in lines.items():
        if len(path) == 1:
            assert text.splitlines()[line - 1].startswith(f"{path[0]} = ")

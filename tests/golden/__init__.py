"""Golden vectors, and a runner `test_<file>.py` for each file of them. Origins: SOURCES.md."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def document(name: str) -> Any:
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def lines(name: str) -> list[Any]:
    # Not splitlines(): U+2028 and its like are content here.
    text = (HERE / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def table(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))

"""Policies: TOML files of rules, compiled to a PolicySet; the language is in README.md beside this.

`load(folder)` gives a PolicySet or raises ConfigFaults with every fault of every file. May enter:
what reads, applies or explains rules. Knows no store, no socket and no memory system by name.
"""

from __future__ import annotations

from policies.engine import Explanation, PolicySet
from policies.load import load

__all__ = ["Explanation", "PolicySet", "load"]

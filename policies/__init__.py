"""Policies: TOML files of rules, compiled to a PolicySet.

`load(folder)` gives a PolicySet or raises ConfigFaults with every fault of every file.
"""

from __future__ import annotations

from policies.engine import Explanation, PolicySet
from policies.load import load

__all__ = ["Explanation", "PolicySet", "load"]

"""The policy module: TOML files that an admin can read aloud, and the rules that they make.

`load(folder)` gives a PolicySet or raises ConfigFaults with every fault of every file.
"""

from __future__ import annotations

from policies.engine import Explanation, PolicySet
from policies.load import load

__all__ = ["Explanation", "PolicySet", "load"]

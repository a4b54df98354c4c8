"""What the server of `tests.harness.programs` imports before it forks: every command.

Invariants: no thread is started; a fork copies only the thread that forks.
"""

from __future__ import annotations

import gc
import threading
from importlib import import_module

import relay.launcher
from relay.cli import COMMANDS

__all__ = ["relay"]

for _name in ("encodings.idna", "uvloop"):  # imported only by `serve` itself
    import_module(_name)
for _module, _ in COMMANDS.values():
    import_module(f"relay.cli.{_module}")
assert threading.active_count() == 1
gc.freeze()

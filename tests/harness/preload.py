"""What the server of `tests.harness.programs` imports before it forks: every command, and the
packaged policies.

Invariants: no thread is started; a fork copies only the thread that forks.
"""

from __future__ import annotations

import gc
import threading
from importlib import import_module
from tempfile import TemporaryDirectory

import relay.launcher
from policies.load import load
from relay.cli import COMMANDS
from relay.memory.systems import MEMORY_SYSTEMS

__all__ = ["relay"]

# Imported only by `serve` itself, or only for a database.
for _name in ("encodings.idna", "uvloop", "relay.storage.postgres.store"):
    import_module(_name)
for _module, _ in COMMANDS.values():
    import_module(f"relay.cli.{_module}")
with TemporaryDirectory() as _folder:
    load(_folder, MEMORY_SYSTEMS)
assert threading.active_count() == 1
gc.freeze()

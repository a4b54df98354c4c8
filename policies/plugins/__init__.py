"""Plug-ins: programs of an admin's own that may object to an event. DESIGN §5.

Invariants: they can only object, never accept for anybody else; each has a deadline, and no
answer is `error:`. They are asked before the lane, so that a slow one holds up no commit, and what
they say counts in the lane, behind the rules of the files.

    [[plugin]] run    a process that speaks the JSON lines of strfry's write policies   process.py
    [[plugin]] entry  a Python function of an installed package, here in the process    entry.py

What a package with such a function imports is here: `Rule`, `Event`, `Arrival`, `Reject`, and
`objection`, which reads "restricted: no links" as a relay would say it.
"""

from __future__ import annotations

from policies.plugins.asked import Asked, Rule, objection
from policies.plugins.chain import Chain
from policies.plugins.definition import Plugin, PluginDefinition, plugin_from
from relay.nostr.event import Event
from relay.verdict import Arrival, Reject

__all__ = [
    "Arrival",
    "Asked",
    "Chain",
    "Event",
    "Plugin",
    "PluginDefinition",
    "Reject",
    "Rule",
    "objection",
    "plugin_from",
]

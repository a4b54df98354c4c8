"""Plug-ins: external programs or Python functions that may refuse an event.

Invariants: a plug-in can only refuse, never override another refusal; each has a deadline, and a
missing answer is `error:`. Plug-ins are asked before the lane, so a slow one delays no commit;
their refusal applies in the lane, after the rules of the policy files.

    [[plugin]] run    a process that speaks the JSON lines of strfry's write policies   process.py
    [[plugin]] entry  a Python function of an installed package, in this process        entry.py

A package with such a function imports from here: `Rule`, `Event`, `Arrival`, `Reject`, and
`objection`, which parses "restricted: no links" into prefix and text.
"""

from __future__ import annotations

from policies.plugins.chain import Chain
from policies.plugins.definition import Plugin, PluginDefinition, plugin_from
from policies.plugins.protocol import Question, Rule, objection
from relay.errors import Reject
from relay.facts import Arrival
from relay.nostr.event import Event

__all__ = [
    "Arrival",
    "Chain",
    "Event",
    "Plugin",
    "PluginDefinition",
    "Question",
    "Reject",
    "Rule",
    "objection",
    "plugin_from",
]

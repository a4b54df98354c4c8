"""The web console: pages for people on the relay's own address.

A page is a function from a question to a dict, and a template; its `.json` twin gives the dict.
Works on what `read` returns: no page reads the store or groups itself. Belongs here: pages,
templates, sign-in, sessions. Knows no socket: `relay.server` calls it through a protocol.

Invariants: every event of a page came from `Ask.events`, with the Visibility of the signed-in key;
templates escape everything; the server signs nothing for anybody.
"""

from relay.console.app import Console

__all__ = ["Console"]

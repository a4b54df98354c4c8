"""nmem's client: a local cache with the document's own tables, and a relay behind it. MEMORY.md §5.

A hook imports parts of this package and nothing of the network: see relay.client.nmem.keeper.
"""

from relay.client.nmem.memory import Nmem, NotFound
from relay.client.nmem.reading import Found, FoundPrompt, Order

__all__ = ["Found", "FoundPrompt", "Nmem", "NotFound", "Order"]

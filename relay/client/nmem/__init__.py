"""nmem's client: a local cache with the document's own tables, and a relay behind it. MEMORY.md §5.

A hook imports parts of this package and nothing of the network (`relay.client.nmem.keeper` brings
what it records to the relay), so the names of the door are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.client.nmem.finding import NotFound
    from relay.client.nmem.memory import Nmem
    from relay.client.nmem.reading import Found, FoundPrompt, Order

__all__ = ["Found", "FoundPrompt", "Nmem", "NotFound", "Order"]

_MODULE_OF: Final = {
    "Found": "reading",
    "FoundPrompt": "reading",
    "Nmem": "memory",
    "NotFound": "finding",
    "Order": "reading",
}


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return found

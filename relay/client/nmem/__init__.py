"""nmem's client: a local SQLite cache with nmem's own tables, and a relay.

Names are imported lazily: a hook imports parts of this package without aiohttp. The keeper process
(`relay.client.nmem.keeper`) sends what hooks record.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from relay.client.nmem.memory import Nmem
    from relay.client.nmem.queries import Found, FoundPrompt, Order
    from relay.client.nmem.reader import NotFound

__all__ = ["Found", "FoundPrompt", "Nmem", "NotFound", "Order"]

_MODULE_OF: Final = {
    "Found": "queries",
    "FoundPrompt": "queries",
    "Nmem": "memory",
    "NotFound": "reader",
    "Order": "queries",
}


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return found

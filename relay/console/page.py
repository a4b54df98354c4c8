"""A page: its path, who may request it, its data and its template."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from relay.console.ask import Ask
    from relay.console.tables import Rows


class Audience(Enum):
    ANYONE = auto()
    """Anyone; shows what the reader may read."""
    OWNER = auto()
    """Owners of the relay."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a page shows: the `.json` twin gives `data`, with the table's page in `table`."""

    data: dict[str, object]
    people: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """pubkey → `npub` and `name`, of every key in `data`."""
    table: Rows | None = None


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    """Its path below `/console/`, and its template."""
    title: str
    summary: str
    """One sentence, for the page and for the description of the API."""
    find: Callable[[Ask], Coroutine[Any, Any, Found]]
    """Raises NotFoundError, Refused, StoreFault."""
    audience: Audience = Audience.ANYONE
    params: Mapping[str, str] = field(default_factory=dict)
    """Query parameter → what it means; those of tables are added."""
    has_table: bool = False
    in_menu: bool = True
    command: str = ""
    """The command that shows the same."""

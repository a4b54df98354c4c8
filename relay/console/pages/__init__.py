"""The pages of the console, in the order of the menu; the first is also the relay's own address.

A module has the pages of one subject: what they find, as a function of `Ask`. Their templates are
in `relay/console/templates/`, by the name of the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from relay.console.pages import (
    changes,
    context,
    events,
    groups,
    home,
    memory,
    operation,
    people,
    policies,
)

if TYPE_CHECKING:
    from relay.console.page import Page

PAGES: Final[tuple[Page, ...]] = (
    *home.PAGES,
    *groups.PAGES,
    *people.PAGES,
    *memory.PAGES,
    *context.PAGES,
    *events.PAGES,
    *policies.PAGES,
    *operation.PAGES,
    *changes.PAGES,
)

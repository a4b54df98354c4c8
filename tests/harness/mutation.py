"""Mistakes that are put into the product, to see that a test finds them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Patch = tuple[Any, str, Any]
"""A module or class, the name of one of its attributes, and another value for it."""


@contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    before = []
    for where, attribute, value in patches:
        before.append((where, attribute, getattr(where, attribute)))
        setattr(where, attribute, value)
    try:
        yield
    finally:
        for where, attribute, value in reversed(before):
            setattr(where, attribute, value)

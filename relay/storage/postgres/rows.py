"""Rows of the events table as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relay.storage import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.lifecycle.rows import Stored


def stored(row: Sequence[Any]) -> Stored:
    """Of seq, raw, grp, quiet, slot, version and expires_at."""
    seq, raw, grp, quiet, slot, version, expires_at = row
    group = None if grp is None else grp.decode()
    return rows.stored((seq, raw, group, quiet, slot, version, expires_at))

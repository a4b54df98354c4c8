"""What PostgreSQL has not removed yet, by the request that deleted it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.storage.postgres.connections import Connections
from relay.storage.postgres.erasing import Erasing

if TYPE_CHECKING:
    import pytest


def deleted(erasing: Erasing, request: str) -> None:
    erasing.begin([request])
    erasing.end()


def test_too_many_requests_wait_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is called erased before a VACUUM, and no more memory is taken."""
    monkeypatch.setattr("relay.storage.postgres.erasing._MAX_REQUESTS", 10)
    erasing = Erasing(Connections("postgresql:///rookery", None))
    before = erasing.pending_s
    for number in range(100):
        deleted(erasing, f"{number}")
        assert not erasing.is_erased(f"{number}")
        assert len(erasing._left) <= 10
    assert not erasing.is_erased("0")
    assert erasing.pending_s >= before

"""`rookery forget`, against a relay that may answer anything."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from relay.cli import forget, run
from relay.client.nmem import updates
from relay.client.receipts import verified
from relay.client.transcripts import transcripts
from relay.lifecycle.deletion import MAX_TARGETS
from relay.nostr.erasure import RECEIPT
from relay.nostr.event import event_from
from tests.cast import alice, owner
from tests.harness.fake_relay import FakeRelay

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.erasure import Erasure
    from relay.nostr.event import Event

REQUEST = "a" * 64
BAD = "\x9b2J\x7f\u202e"


@pytest.mark.parametrize("most", [forget._MAX_TARGETS, transcripts._DELETED_AT_ONCE])
def test_a_relay_takes_as_many_targets_as_a_command_puts_into_one_request(most: int) -> None:
    """Each event is named by its id, and a version by its address too."""
    assert 2 * most <= MAX_TARGETS


def test_a_relay_takes_as_many_targets_as_nmem_puts_into_one_request() -> None:
    assert updates._DELETE_BATCH <= MAX_TARGETS


async def test_no_text_of_a_receipt_controls_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = [["e", REQUEST], ["k", "5"], ["p", owner.pubkey], ["deleted_at", "1"]]
    receipt = alice.sign(RECEIPT, tags, f"erased {BAD}", 2)

    async def receipt_of(*_: object) -> tuple[Event, Erasure]:
        return verified(receipt.raw, alice.pubkey, REQUEST)

    monkeypatch.setattr("relay.client.receipts.receipt_of", receipt_of)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROOKERY_KEY", owner.nsec)
    monkeypatch.chdir(tmp_path)
    async with FakeRelay() as relay:
        args = ["forget", "--receipt", REQUEST, "--relay", relay.url]
        file = tmp_path / "receipt.json"
        assert await asyncio.to_thread(run, [*args, "-o", str(file)]) == 0
        assert await asyncio.to_thread(run, args) == 0
    assert file.read_bytes() == receipt.raw + b"\n"
    assert file.stat().st_mode & 0o777 == 0o600
    shown = capsys.readouterr().out
    assert not set(BAD[:1] + BAD[3:]) & set(shown)
    assert event_from(json.loads(shown.splitlines()[-1])) == receipt

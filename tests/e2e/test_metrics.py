"""/metrics of a running relay: what moves when a stage of a pipeline happens."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import TYPE_CHECKING

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from relay.observe.metrics import ReadStages, WriteStages
from tests.cast import alice, owner, stranger
from tests.harness.relay_program import Rookery, command, connected, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.slow

_PLUGIN = """#!/usr/bin/env python3
import json, sys
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["event"]["id"], "action": "accept"}), flush=True)
"""
_WRITE = tuple(each.name for each in fields(WriteStages))
_READ = tuple(each.name for each in fields(ReadStages))


@pytest.fixture
async def rookery(tmp_path: Path) -> AsyncIterator[Rookery]:
    async with Rookery(tmp_path / "data") as relay:
        await relay.init("--owner", owner.pubkey, "--preset", "open")
        policies = relay.folder / "policies"
        (policies / "20-own.toml").write_text('[[plugin]]\nname = "sifter"\nrun = "sift"\n')
        (policies / "sift").write_text(_PLUGIN)
        (policies / "sift").chmod(0o755)
        await relay.start()
        yield relay


async def scrape(rookery: Rookery) -> dict[tuple[str, ...], float]:
    """(name, label values…) → value."""
    url = rookery.url.replace("ws", "http", 1) + "/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        page = await response.text()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_every_stage_is_measured_when_it_happens(rookery: Rookery) -> None:
    now = int(time.time())
    before = await scrape(rookery)
    stages = [("rookery_write_seconds_count", name) for name in _WRITE]
    stages += [("rookery_read_seconds_count", name) for name in _READ]
    async with connected(rookery.url) as writer, connected(rookery.url) as reader:
        await reader.send("REQ", "live", {"kinds": [1]})
        assert (await reader.receive())[0] == "EOSE"
        assert (await writer.publish(alice.sign(1, [], "one", now)))[0] is True
        assert (await reader.receive())[0] == "EVENT"
        assert len(await reader.query({"kinds": [1]}, {"kinds": [7]})) == 1
        async with until("the event is indexed") as tries:
            async for _ in tries:
                after = await scrape(rookery)
                if after["rookery_search_lag_rows",] == 0:
                    break
    assert [stage for stage in stages if after[stage] == before[stage]] == []
    took = [after[name.replace("_count", "_sum"), stage] for name, stage in stages]
    assert min(took) > 0
    assert after["rookery_plugin_seconds_count", "sifter"] == 1
    for of in ("verify", "plugin", "commit"):
        assert after[f"rookery_{of}_batch_events_sum",] >= 1
    assert after["rookery_live_deliveries_total",] == 1
    assert after["rookery_rows_sent_total",] == 1
    assert 300 < after["rookery_bytes_in_total",] < 1000
    assert 700 < after["rookery_bytes_out_total",] < 2000
    assert after["rookery_frames_in_total",] == 4
    assert after["rookery_file_bytes", "rookery.db"] > 0
    assert after["rookery_disk_free_bytes",] > 0
    assert after["rookery_events_waiting", "commit"] == 0
    assert after["rookery_queries_waiting",] == 0


async def test_the_last_backup_has_its_time(rookery: Rookery, tmp_path: Path) -> None:
    assert (await scrape(rookery))["rookery_last_backup_timestamp_seconds",] == 0
    began = time.time()
    code, text = await command("backup", str(tmp_path), "--data", str(rookery.folder))
    assert code == 0, text
    at = (await scrape(rookery))["rookery_last_backup_timestamp_seconds",]
    assert began - 1 < at < time.time() + 1


async def test_what_deletion_leaves_is_truncated_and_counted(rookery: Rookery) -> None:
    now = int(time.time())
    async with connected(rookery.url) as wire:
        note = alice.sign(1, [], "one", now)
        assert (await wire.publish(note))[0] is True
        before = (await scrape(rookery))["rookery_checkpoints_total", "truncated"]
        assert (await wire.publish(alice.sign(5, [["e", note.id]], "", now)))[0] is True
        async with until("the log is truncated") as tries:
            async for _ in tries:
                after = await scrape(rookery)
                if after["rookery_checkpoints_total", "truncated"] > before:
                    break
    assert after["rookery_checkpoint_held_seconds_total",] > 0


async def test_labels_have_no_key_no_group_and_no_content(rookery: Rookery) -> None:
    now = int(time.time())
    async with connected(rookery.url) as wire:
        for words in ("hidden one", "hidden two"):
            await wire.publish(stranger.sign(9, [["h", "hidden-group"]], words, now))
        await wire.publish(alice.sign(1, [["t", "hidden-tag"]], "hidden", now))
        await wire.query(
            {"authors": [alice.pubkey], "#t": ["hidden-tag"]}, {"#h": ["hidden-group"]}
        )
    named = " ".join(" ".join(sample) for sample in await scrape(rookery))
    assert "hidden" not in named
    assert alice.pubkey not in named
    assert stranger.pubkey not in named

"""deploy/alerts.yaml, judged by `promtool`: each alert fires when it should, and only then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.harness.patience import PROGRAM_S

if TYPE_CHECKING:
    from collections.abc import Mapping

ALERTS: Final = Path(__file__).parents[2] / "deploy/alerts.yaml"
RELAY: Final = 'instance="relay", job="rookery"'

WELL: Final[Mapping[str, str]] = {
    "up": "1x240",
    "process_start_time_seconds": "1000x240",
    "process_open_fds": "100x240",
    "process_max_fds": "65536x240",
    "rookery_events_total": "0+100x240",
    'rookery_events_total{prefix="error"}': "7x240",
    "rookery_disk_free_bytes": "50000000000x240",
    "rookery_last_backup_timestamp_seconds": "1x240",
    "rookery_erasure_pending_seconds": "2x240",
    'rookery_file_bytes{file="rookery.db-wal"}': "50000000x240",
    'rookery_file_bytes{file="rookery.db"}': "9000000000x240",
    'rookery_log_lines_total{level="error"}': "3x240",
    'rookery_log_lines_total{level="info"}': "0+10x240",
    "rookery_policies_current": "1x240",
    "rookery_plugins_down": "0x240",
    'rookery_events_waiting{queue="commit"}': "100x240",
    'rookery_commit_seconds_bucket{le="0.1"}': "0+100x240",
    'rookery_commit_seconds_bucket{le="0.5"}': "0+100x240",
    'rookery_commit_seconds_bucket{le="2.0"}': "0+100x240",
    'rookery_commit_seconds_bucket{le="+Inf"}': "0+100x240",
    "rookery_slow_queries_total": "0x240",
    "rookery_search_lag_rows": "10x240",
    "rookery_connections_refused_total": "0+1x240",
}
"""Series of a relay that is well; a value for each minute."""
ILL: Final[Mapping[str, Mapping[str, str]]] = {
    "RookeryDown": {"up": "0x240"},
    "RookeryStartsAgainAndAgain": {"process_start_time_seconds": "0+60x240"},
    "RookeryWritesFail": {'rookery_events_total{prefix="error"}': "0+1x240"},
    "RookeryDiskFull": {"rookery_disk_free_bytes": "50000000000-20000000x240"},
    # Never one, of a relay that runs for more than two days.
    "RookeryBackupOld": {
        "rookery_last_backup_timestamp_seconds": "0x240",
        "process_start_time_seconds": "-200000x240",
    },
    "RookeryErasurePending": {"rookery_erasure_pending_seconds": "0+60x240"},
    "RookeryLogLarge": {'rookery_file_bytes{file="rookery.db-wal"}': "500000000x240"},
    "RookeryLogsErrors": {'rookery_log_lines_total{level="error"}': "0+1x240"},
    "RookeryPoliciesNotInForce": {"rookery_policies_current": "0x240"},
    "RookeryPluginDown": {"rookery_plugins_down": "1x240"},
    "RookeryWritesWait": {'rookery_events_waiting{queue="commit"}': "20000x240"},
    "RookeryCommitsSlow": {
        'rookery_commit_seconds_bucket{le="0.1"}': "0+50x240",
        'rookery_commit_seconds_bucket{le="0.5"}': "0+50x240",
    },
    "RookeryQueriesSlow": {"rookery_slow_queries_total": "0+60x240"},
    "RookerySearchBehind": {"rookery_search_lag_rows": "20000x240"},
    "RookeryRefusesConnections": {"rookery_connections_refused_total": "0+600x240"},
    "RookeryFewFiles": {"process_open_fds": "60000x240"},
}


def promtool(*args: str) -> tuple[int, str]:
    program = shutil.which("promtool", path=os.environ.get("PATH", ""))
    if program is None:
        pytest.skip("promtool is not installed: apt install prometheus")
    done = subprocess.run(
        [program, *args], capture_output=True, text=True, check=False, timeout=PROGRAM_S
    )
    return done.returncode, done.stdout + done.stderr


def series(values: Mapping[str, str]) -> list[dict[str, str]]:
    found = []
    for name, of_minutes in values.items():
        metric, _, labels = name.partition("{")
        joined = ", ".join(filter(None, (RELAY, labels.removesuffix("}"))))
        found.append({"series": f"{metric}{{{joined}}}", "values": of_minutes})
    return found


def fired(folder: Path, values: Mapping[str, str]) -> set[str]:
    """The alerts that fire after four hours."""
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    about: dict[str, Any] = {"expr": query, "eval_time": "4h", "exp_samples": []}
    case = {"interval": "1m", "input_series": series(values), "promql_expr_test": [about]}
    file = folder / "case.yaml"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": [case]}))
    code, text = promtool("test", "rules", str(file))
    assert code == 0 or "got:" in text, text
    return {name for name in ILL if f'alertname="{name}"' in text}


@pytest.mark.slow
def test_nothing_fires_while_all_is_well(tmp_path: Path) -> None:
    code, text = promtool("check", "rules", str(ALERTS))
    assert code == 0, text
    assert f"{len(ILL)} rules found" in text
    assert fired(tmp_path, WELL) == set()


@pytest.mark.slow
def test_the_queries_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    board = json.loads(ALERTS.with_name("dashboard.json").read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    code, text = promtool("check", "rules", str(file))
    assert (code, f"{len(queries)} rules found" in text) == (0, True), text


@pytest.mark.slow
@pytest.mark.parametrize("name", ILL)
def test_an_alert_fires_for_what_it_is_named_after(tmp_path: Path, name: str) -> None:
    assert set(ILL[name]) <= set(WELL)
    assert fired(tmp_path, {**WELL, **ILL[name]}) == {name}

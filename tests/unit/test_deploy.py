"""The files in deploy/ agree with the relay and with each other. tests/e2e has what runs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from relay.config import LimitsConfig
from relay.observe import Metrics
from relay.server.connection import _HEARTBEAT_S
from relay.server.http import FORWARDED
from tests.harness.patience import PROGRAM_S

if TYPE_CHECKING:
    from collections.abc import Sequence

DEPLOY: Final = Path(__file__).parents[2] / "deploy"


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text("utf-8")


# systemd ------------------------------------------------------------------------------------------

UNITS: Final = sorted(path.name for path in DEPLOY.glob("rookery*.[st]*"))


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    """Section → key → values, as systemd reads them: a key may come twice."""
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in text_of(name).splitlines():
        if line.startswith("["):
            section = found[line.strip("[]")] = {}
        elif line and not line.startswith("#"):
            key, is_set, value = line.partition("=")
            assert is_set, line
            section.setdefault(key, []).append(value)
    return found


def test_each_unit_has_what_systemd_wants_of_its_kind() -> None:
    assert UNITS == [
        "rookery-backup.service",
        "rookery-backup.timer",
        "rookery.service",
        "rookery.socket",
    ]
    for name in UNITS:
        kind = name.rpartition(".")[2].title()
        assert {"Unit", kind} <= set(unit(name)) <= {"Unit", kind, "Install"}
    for name in UNITS[1:]:
        assert unit(name)["Install"]["WantedBy"]


def test_a_restart_of_the_service_waits_for_the_relay_and_keeps_the_port() -> None:
    assert unit("rookery.service")["Service"]["Type"] == ["notify"]
    assert unit("rookery.socket")["Socket"]["ListenStream"] == ["127.0.0.1:7777"]


@pytest.mark.parametrize("name", ["rookery.service", "rookery-backup.service"])
def test_a_service_may_do_little(name: str) -> None:
    service = unit(name)["Service"]
    assert service["User"] == service["Group"] == ["rookery"]
    assert service["CapabilityBoundingSet"] == [""]
    assert service["ProtectSystem"] == ["strict"]
    assert service["UMask"] == ["0077"]
    for key in ("NoNewPrivileges", "PrivateDevices", "PrivateTmp", "ProtectHome", "ProtectClock"):
        assert service[key] == ["true"], key


def test_the_relay_reaches_neither_the_backups_nor_the_process_that_makes_them() -> None:
    service = unit("rookery.service")["Service"]
    assert service["PrivateUsers"] == ["true"]
    assert service["InaccessiblePaths"] == ["-/var/backups/rookery"]


def printed(*command: str) -> tuple[int, str]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROGRAM_S)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.process
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    """A program that is not installed would be a fault: another takes its place."""
    for name in UNITS:
        text = text_of(name).replace("/opt/rookery/bin/rookery", "/bin/true")
        (tmp_path / name).write_text(text, "utf-8")
    said = printed("systemd-analyze", "verify", *(str(tmp_path / name) for name in UNITS))
    assert said == (0, "")


@pytest.mark.process
@pytest.mark.parametrize("name", ["rookery.service", "rookery-backup.service"])
def test_systemd_calls_the_exposure_of_a_service_at_most_2(name: str) -> None:
    options = ("--offline=true", "--threshold=20")
    code, text = printed("systemd-analyze", "security", *options, str(DEPLOY / name))
    assert code == 0, text


@pytest.mark.process
def test_the_installer_is_a_shell_script_that_installs_nothing_by_accident() -> None:
    assert printed("sh", "-n", str(DEPLOY / "install.sh")) == (0, "")
    script = text_of("install.sh")
    assert script.splitlines()[0] == "#!/bin/sh"
    assert "\nset -eu\n" in script
    assert "\numask 022" in script, "the user rookery could not run what a strict root installs"
    assert "://" not in script.replace("wss://relay.example.org", "")  # no index of packages


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "missing"), [((), "--owner"), (("--owner", "npub1ada"), "--url too")]
)
def test_the_installer_says_what_a_first_call_lacks(
    options: Sequence[str], missing: str, tmp_path: Path
) -> None:
    """With no program in reach that it could install with."""
    (tmp_path / "id").write_text("#!/bin/sh\necho 0\n")
    (tmp_path / "dirname").write_text('#!/bin/sh\necho "${1%/*}"\n')
    for name in ("id", "dirname"):
        (tmp_path / name).chmod(0o755)
    script = text_of("install.sh").replace("/var/lib/rookery", str(tmp_path / "data"))
    (tmp_path / "install.sh").write_text(script, "utf-8")
    done = subprocess.run(
        ["/bin/sh", str(tmp_path / "install.sh"), *options],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_S,
    )
    assert done.returncode == 1
    assert missing in done.stderr


def test_the_installer_makes_what_the_units_name() -> None:
    script = text_of("install.sh")
    made = dict(re.findall(r"(\w+)=(/\S+)", script))
    assert set(re.findall(r"^for unit in (.*); do$", script, re.M)[0].split()) == set(UNITS)
    for name in ("rookery.service", "rookery-backup.service"):
        service = unit(name)["Service"]
        [command] = service["ExecStart"]
        assert command.startswith(f"{made['program']}/bin/rookery ")
        for path in re.findall(r" (/\S+)", " ".join([command, " ", *service["ReadWritePaths"]])):
            assert path in (made["data"], made["backups"])
    for lock in ("requirements.lock", "build.lock"):
        assert f"--require-hashes -r deploy/{lock}" in script


def test_root_runs_no_command_as_another_user_with_its_own_terminal() -> None:
    """Another process of that user could type commands into it (CVE-2016-2779)."""
    root = DEPLOY.parent
    documents = [*DEPLOY.iterdir(), *root.glob("docs/*.md"), root / "relay/cli/folder_lock.py"]
    said = "\n".join(path.read_text("utf-8") for path in documents if path.is_file())
    calls = re.findall(r"(.{0,20})\b(?:runuser|setpriv) (\S+)", said)
    assert len(calls) > 6
    for before, option in calls:
        assert option == "--pty" or before.endswith(("setsid --wait ", "setsid -w ")), before


# containers ---------------------------------------------------------------------------------------


def test_the_container_may_do_little_with_and_without_caddy() -> None:
    """Its service is the same in both files, but for the network."""
    alone, behind = text_of("compose.host.yaml"), text_of("compose.yaml")
    shared, *_ = behind[behind.index("  rookery:") :].partition("    networks:")
    assert shared in alone
    for line in (
        "read_only: true",
        "cap_drop: [ALL]",
        'security_opt: ["no-new-privileges:true"]',
        "mem_limit: 2g",
        "pids_limit: 200",
    ):
        assert f"    {line}\n" in shared
    several = text_of("compose.postgres.yaml")
    confined, *_ = shared[shared.index("    restart:") :].partition("    volumes:")
    assert several.count(confined) == 2


def test_several_relays_are_asked_whether_they_are_ready() -> None:
    several, proxy = text_of("compose.postgres.yaml"), text_of("Caddyfile.relays")
    assert "ROOKERY_UPSTREAM: rookery-1:7777 rookery-2:7777" in several
    assert "./Caddyfile.relays:/etc/caddy/Caddyfile:ro" in several
    assert "health_uri /readyz" in proxy
    assert "lb_policy ip_hash" in proxy


def test_the_image_runs_as_nobody_in_particular_and_reports_its_health() -> None:
    *_, image = text_of("Dockerfile").split("\nFROM ")
    steps = re.findall(r"^[A-Z]+", image, re.M)
    assert steps.index("USER") < steps.index("CMD")
    assert {"HEALTHCHECK", "VOLUME"} <= set(steps)
    assert "pip" not in image


# proxies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cleared"),
    [
        ("Caddyfile", "header_up -{}"),
        ("Caddyfile.relays", "header_up -{}"),
        ("nginx.conf", 'proxy_set_header {} "";'),
        ("haproxy.cfg", "http-request del-header {}"),
    ],
)
def test_a_proxy_drops_each_header_by_which_a_client_could_name_an_address(
    name: str, cleared: str
) -> None:
    text = text_of(name)
    for header in set(FORWARDED) - {"X-Forwarded-For"}:
        assert cleared.format(header) in text


def test_every_proxy_and_the_units_mean_the_same_port() -> None:
    port = unit("rookery.socket")["Socket"]["ListenStream"][0]
    for name in ("Caddyfile", "nginx.conf", "haproxy.cfg"):
        assert port in text_of(name)


def test_no_proxy_closes_what_is_silent_between_two_pings() -> None:
    for name, key in (
        ("nginx.conf", "proxy_read_timeout"),
        ("nginx.conf", "proxy_send_timeout"),
        ("haproxy.cfg", "timeout tunnel"),
    ):
        [(number, unit)] = re.findall(rf"{key} (\d+)([mh])", text_of(name))
        assert int(number) * {"m": 60, "h": 3600}[unit] > 2 * _HEARTBEAT_S
    for name in ("Caddyfile", "Caddyfile.relays"):  # Caddy has none for websockets by itself
        assert {"write", "stream_timeout"}.isdisjoint(text_of(name).split())


def test_nginx_passes_on_twice_as_many_connections_of_an_address_as_the_relay_keeps() -> None:
    """The relay decides which it closes for a new one. Refusals fill no log."""
    text = text_of("nginx.conf")
    most = {zone: int(most) for zone, most in re.findall(r"limit_conn (\w+) (\d+);", text)}
    assert most["rookery"] == 2 * LimitsConfig().connections_per_address
    assert most["rookery_networks"] > most["rookery"]
    assert all(f"zone={zone}:" in text for zone in most)
    assert "limit_conn_log_level info;" in text


# alerts and dashboard ----------------------------------------------------------------------------

METRIC: Final = re.compile(r"\b((?:rookery|process)_\w+)(?:\{(.*?)\})?")
OF_SCRAPES: Final = {"instance", "job"}


def metrics() -> dict[str, set[str]]:
    """Every series of /metrics with its labels. The tables are complete: test_docs.py."""
    pages = (DEPLOY.parent / "docs" / "operations.md").read_text("utf-8")
    found: dict[str, set[str]] = {}
    for name, labels, meaning in re.findall(
        r"^\| `(rookery_\w+)` \|(.*?)\| (.*?) \|$", pages, re.M
    ):
        names = set(re.findall(r"`(\w+)`", labels))
        if meaning.startswith("histogram"):
            found[f"{name}_bucket"] = names | {"le"}
            found[f"{name}_sum"] = found[f"{name}_count"] = names
        else:
            found[name] = names
    for line in Metrics().page().decode().splitlines():
        if line.startswith("process_"):
            found[line.split()[0]] = set()
    return found


def wrong_in(query: str) -> list[str]:
    """Metrics and labels of a PromQL expression that are not there."""
    known, labels, wrong = metrics(), set(OF_SCRAPES), []
    for name, selected in METRIC.findall(query):
        if name not in known:
            wrong.append(name)
            continue
        labels |= known[name]
        named = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selected))
        wrong += sorted(f"{name}: {label}" for label in named - known[name] - OF_SCRAPES)
    for grouped in re.findall(r"\bby \((.*?)\)", query):
        wrong += sorted(f"by {label}" for label in set(grouped.split(", ")) - labels)
    return wrong


def test_wrong_names_are_found() -> None:
    assert wrong_in("sum by (rule) (rate(rookery_refusals_total[5m]))") == []
    assert wrong_in('rookery_refusal_total + rookery_connections{rule="a"}') == [
        "rookery_refusal_total",
        "rookery_connections: rule",
    ]
    assert wrong_in("sum by (kind) (rookery_connections)") == ["by kind"]


def alerts() -> dict[str, str]:
    """Expression of each alert."""
    found = re.findall(
        r"^ +- alert: (\w+)\n(?: +#.*\n)* +expr: (.+)$", text_of("alerts.yaml"), re.M
    )
    assert len(found) == text_of("alerts.yaml").count("alert:")
    return dict(found)


@pytest.mark.parametrize("name", alerts())
def test_an_alert_asks_for_metrics_that_are_there(name: str) -> None:
    assert wrong_in(alerts()[name]) == []


def test_each_alert_says_what_to_do() -> None:
    text = text_of("alerts.yaml")
    assert text.count("summary: ") == text.count("cure: ") == len(alerts())


def panels() -> list[dict[str, Any]]:
    found = json.loads(text_of("dashboard.json"))["panels"]
    assert isinstance(found, list)
    return found


def test_the_dashboard_asks_for_metrics_that_are_there() -> None:
    queries = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    assert len(queries) > 20
    assert [wrong for query in queries for wrong in wrong_in(query)] == []
    for query in queries:
        for _, selected in METRIC.findall(query):
            assert 'instance=~"$instance"' in selected, query


def test_the_panels_of_the_dashboard_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        here = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not here & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= here
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)

"""`rookery doctor`: each planted fault is found, and nothing is said of a folder without one."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shlex
import socket
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from relay.cli import run
from relay.cli.doctor import findings_of, machine_of
from relay.cli.status import Disk
from tests.cast import owner, robot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from relay.cli.doctor_facts import Machine

DAY = timedelta(days=1)
GB = 10**9


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new data folder on a machine with nothing wrong; its port is 0."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made = tmp_path / "data"
    assert run(["init", str(made), "--owner", owner.pubkey, "--agent", robot.pubkey]) == 0
    set_in(made, "server", "port = 0")
    return made


def set_in(folder: Path, table: str, line: str) -> None:
    file = folder / "rookery.toml"
    file.write_text(file.read_text().replace(f"[{table}]\n", f"[{table}]\n{line}\n", 1))


def write_certificate(
    folder: Path, names: tuple[str, ...] = ("relay.test",), *, begins: int = -1, ends: float = 90
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    now = datetime.now(UTC)
    found = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + begins * DAY)
        .not_valid_after(now + ends * DAY)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(found.public_bytes(serialization.Encoding.PEM))
    write_key(folder, key)


def write_key(folder: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path = folder / "key.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)


def with_tls(folder: Path) -> None:
    set_in(folder, "relay", 'url = "wss://relay.test"')
    set_in(folder, "server", 'host = "0.0.0.0"\ntls_cert = "cert.pem"\ntls_key = "key.pem"')


def doctor(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, str]]]:
    capsys.readouterr()
    code = run(["doctor", "--data", str(folder), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is (code == 0)
    return code, told["findings"]


def test_a_folder_without_a_fault_gets_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["doctor", "--data", str(folder)]) == 0
    assert capsys.readouterr().out == f"ok: nothing wrong with {folder}\n"
    with_tls(folder)
    write_certificate(folder)
    assert doctor(folder, capsys) == (0, [])
    write_certificate(folder, ("*.test", "other.example"))
    assert doctor(folder, capsys) == (0, [])


def test_a_relay_behind_a_proxy_gets_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_in(folder, "relay", 'url = "wss://relay.test"')
    set_in(folder, "server", 'trusted_proxies = ["127.0.0.1/32"]')
    assert doctor(folder, capsys) == (0, [])


def proxy_is_not_trusted(folder: Path) -> None:
    set_in(folder, "relay", 'url = "wss://relay.test"')


def proxy_for_no_url(folder: Path) -> None:
    set_in(folder, "server", 'trusted_proxies = ["127.0.0.1/32"]')


def everybody_is_a_proxy(folder: Path) -> None:
    set_in(folder, "relay", 'url = "wss://relay.test"')
    set_in(folder, "server", 'trusted_proxies = ["0.0.0.0/0"]')


def url_without_tls(folder: Path) -> None:
    with_tls(folder)
    write_certificate(folder)
    file = folder / "rookery.toml"
    file.write_text(file.read_text().replace("wss://relay.test", "ws://relay.test"))


def listens_locally_only(folder: Path) -> None:
    set_in(folder, "relay", 'url = "ws://relay.test"')


def certificate_of_another_host(folder: Path) -> None:
    with_tls(folder)
    write_certificate(folder, ("other.test", "*.relay.test"))


def certificate_expired(folder: Path) -> None:
    with_tls(folder)
    write_certificate(folder, begins=-90, ends=-1)


def certificate_expires(folder: Path) -> None:
    with_tls(folder)
    write_certificate(folder, ends=5.5)


def key_of_another_certificate(folder: Path) -> None:
    with_tls(folder)
    write_certificate(folder)
    write_key(folder, ec.generate_private_key(ec.SECP256R1()))


def no_certificate(folder: Path) -> None:
    with_tls(folder)
    write_certificate(folder)
    (folder / "cert.pem").write_text("nothing")


def certificate_is_a_pipe(folder: Path) -> None:
    no_certificate(folder)
    (folder / "cert.pem").unlink()
    os.mkfifo(folder / "cert.pem")


def key_is_a_pipe(folder: Path) -> None:
    (folder / "relay.key").unlink()
    os.mkfifo(folder / "relay.key", 0o600)


def settings_are_a_pipe(folder: Path) -> None:
    (folder / "rookery.toml").unlink()
    os.mkfifo(folder / "rookery.toml", 0o600)


def key_readable(folder: Path) -> None:
    (folder / "relay.key").chmod(0o644)


def key_missing(folder: Path) -> None:
    (folder / "relay.key").unlink()


def folder_writable(folder: Path) -> None:
    folder.chmod(0o777)


def policy_fault(folder: Path) -> None:
    (folder / "policies" / "20-own.toml").write_text("[limits]\nmax_content_lenght = 5\n")


def setting_fault(folder: Path) -> None:
    set_in(folder, "limits", "max_limit = 'many'")


def from_the_future(folder: Path) -> None:
    os.utime(folder / "rookery.toml", (time.time() + 7230, time.time() + 7230))


def left_by_a_killed_relay(folder: Path) -> None:
    (folder / "rookery.db-wal").write_bytes(b"\0" * 4096)
    (folder / "rookery.db-wal").chmod(0o600)


def store_of_another_program(folder: Path) -> None:
    (folder / "rookery.db").write_bytes(b"no database, " * 1000)
    (folder / "rookery.db").chmod(0o600)


def no_backup_for_long(folder: Path) -> None:
    long_ago = time.time() - 9 * DAY.total_seconds()
    os.utime(folder / "relay.key", (long_ago, long_ago))


def no_backup_since_the_key_was_rotated(folder: Path) -> None:
    long_ago = time.time() - 9 * DAY.total_seconds()
    os.utime(folder / "rookery.toml", (long_ago, long_ago))


def old_backup(folder: Path) -> None:
    (folder / "last-backup.json").write_text('{"file": "/b", "created_at": 1700000000}')


def left_by_a_move(folder: Path) -> None:
    moved = folder / "rookery.db.moved"
    moved.touch(0o600)
    long_ago = time.time() - 9 * DAY.total_seconds()
    os.utime(moved, (long_ago, long_ago))


def group_from_before_a_policy(folder: Path) -> None:
    own, lines = folder / "policies" / "20-own.toml", folder.parent / "groups.jsonl"
    own.write_text('[groups]\nalways = ["closed"]\nnew = ["closed"]\n')
    made = [
        owner.sign(9007, [["h", "tea"]], "", 1_700_000_000),
        owner.sign(9007, [["h", "den"], ["private"], ["restricted"]], "", 1_700_000_000),
    ]
    lines.write_bytes(b"".join([event.raw + b"\n" for event in made]))
    assert run(["import", str(lines), "--data", str(folder)]) == 0
    own.unlink()


def hook_of_a_program_that_went(folder: Path) -> None:
    home = folder.parent / "home"
    assert run(["hook", "install", "--settings", str(home / ".claude/settings.json")]) == 0
    file = home / ".claude" / "settings.json"
    settings = json.loads(file.read_text())
    for entries in settings["hooks"].values():
        for each in entries[0]["hooks"]:
            each["command"] = f"/gone/rookery hook {each['command'].rsplit(' ', 1)[1]}"
    file.write_text(json.dumps(settings))


FAULTS: tuple[tuple[Callable[[Path], None], str, str, str], ...] = (
    (proxy_is_not_trusted, "warning", "trusts no proxy", "trusted_proxies"),
    (proxy_for_no_url, "error", "through the proxy cannot log in", "[relay] url"),
    (everybody_is_a_proxy, "error", "trusted_proxies has 0.0.0.0/0", "127.0.0.1/32"),
    (url_without_tls, "error", "but the relay speaks TLS", "wss://"),
    (listens_locally_only, "error", "host 127.0.0.1 accepts this machine only", "host"),
    (certificate_of_another_host, "error", "not for relay.test", "certificate for relay.test"),
    (certificate_expired, "error", "cert.pem expired at", "renew"),
    (certificate_expires, "warning", "cert.pem expires in ", "renew"),
    (key_of_another_certificate, "error", "is not the key of", "tls_key"),
    (no_certificate, "error", "cert.pem cannot be read as a certificate", "PEM"),
    (certificate_is_a_pipe, "error", "cert.pem cannot be read as a certificate: it is a", "PEM"),
    (key_is_a_pipe, "error", "relay.key cannot be used: it is a pipe, not a file", "backup"),
    (settings_are_a_pipe, "error", "rookery.toml: it is a pipe, not a file", "correct this file"),
    (key_readable, "error", "relay.key has mode 0644", "chmod 600"),
    (key_missing, "error", "relay.key cannot be used: No such file", "backup"),
    (folder_writable, "error", "has mode 0777", "chmod 700"),
    (policy_fault, "error", "20-own.toml:2: ", "rookery policy check"),
    (setting_fault, "error", "rookery.toml:", "correct this line"),
    (from_the_future, "error", "in the future", "set-ntp"),
    (left_by_a_killed_relay, "warning", "the relay was killed", "rookery serve"),
    (store_of_another_program, "error", "rookery.db", "rookery restore"),
    (old_backup, "warning", "the last backup of", "rookery backup"),
    (no_backup_for_long, "warning", "no backup of", "rookery backup"),
    (no_backup_since_the_key_was_rotated, "warning", "no backup of", "rookery backup"),
    (left_by_a_move, "warning", "also what was deleted since", "rm "),
    (group_from_before_a_policy, "warning", "always: tea (private, restricted)", "group edit"),
    (hook_of_a_program_that_went, "warning", "calls /gone/rookery", "rookery hook install"),
)


@pytest.mark.parametrize(
    ("plant", "severity", "says", "cure"), FAULTS, ids=[each[0].__name__ for each in FAULTS]
)
def test_a_planted_fault_is_the_one_that_is_found(
    plant: Callable[[Path], None],
    severity: str,
    says: str,
    cure: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(folder)
    code, findings = doctor(folder, capsys)
    assert code == 1
    (found,) = findings
    assert found["severity"] == severity
    assert says in found["text"]
    assert cure in found["cure"]
    assert run(["doctor", "--data", str(folder)]) == 1
    page = capsys.readouterr().out
    assert f"{severity}: {found['text']}\n  cure: {found['cure']}\n1 finding\n" == page


def test_a_cure_acts_on_the_file_that_is_named_and_runs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "a team; id >$HOME"
    assert run(["init", str(folder), "--owner", owner.pubkey]) == 0
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(shown) == ["start", "it", "with:", "rookery", "serve", "--data", str(folder)]
    set_in(folder, "server", "port = 0")
    seen = [folder / name for name in ("x.db;id>$HOME;#", "x.db $(id) 'q' \"`id`", "-x.db&id")]
    for path in (*seen, folder / "x.db\nid", folder / "x.db\x1b[2J"):
        path.touch(0o644)
    code, findings = doctor(folder, capsys)
    assert code == 1
    cures = sorted(shlex.split(each["cure"]) for each in findings)
    named = [str(path) for path in seen]
    assert cures == sorted(["chmod", "600", name] for name in (*named, "PATH", "PATH"))


@contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.process
def test_a_port_that_another_program_has_is_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening() as port:
        file = folder / "rookery.toml"
        file.write_text(file.read_text().replace("port = 0", f"port = {port}"))
        code, (found,) = doctor(folder, capsys)
        assert code == 1
        assert f"port {port} is in use by another program" in found["text"]
        assert "--port" in found["cure"]


def with_systemctl(listed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `systemctl` whose list of sockets has this line too."""
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    other = "/run/dbus/system_bus_socket dbus.socket dbus.service"
    program.write_text(f"#!/bin/sh\necho '{other}'\necho '{listed}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


@pytest.mark.process
@pytest.mark.parametrize(
    ("unit", "says"),
    [
        ("rookery.socket", ""),
        ("other.socket", "is held by systemd for other.socket"),
        ("other.socket elsewhere", "is in use by another program"),
    ],
)
def test_a_port_that_systemd_holds_for_the_relay_is_no_fault(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unit: str,
    says: str,
) -> None:
    with listening() as port:
        file = folder / "rookery.toml"
        file.write_text(file.read_text().replace("port = 0", f"port = {port}"))
        name, _, elsewhere = unit.partition(" ")
        held = port + 1 if elsewhere else port
        service = name.replace("socket", "service")
        with_systemctl(f"127.0.0.1:{held} {name} {service}", tmp_path, monkeypatch)
        code, findings = doctor(folder, capsys)
    assert code == bool(says)
    assert [says in each["text"] for each in findings] == [True] * bool(says)


@pytest.mark.process
@pytest.mark.parametrize("unit", ["rookery.socket", ""])
def test_a_port_below_1024_needs_a_unit_of_systemd(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unit: str,
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refused)
    file = folder / "rookery.toml"
    file.write_text(file.read_text().replace("port = 0", "port = 443"))
    with_systemctl(f"[::]:443 {unit} rookery.service" if unit else "", tmp_path, monkeypatch)
    code, findings = doctor(folder, capsys)
    assert code == (not unit)
    assert ["ListenStream=" in each["cure"] for each in findings] == [True] * (not unit)


@pytest.mark.process
def test_a_host_that_can_be_no_name_is_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "rookery.toml"
    file.write_text(file.read_text().replace("port = 0", f'port = 443\nhost = "{"a" * 64}"'))
    (found,) = [each for each in doctor(folder, capsys)[1] if "label too long" in each["text"]]
    assert "set [server] host" in found["cure"]


MACHINES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("only 9.0 MB are free", {"disk": Disk(GB, 0, 0, 9_000_000, 0, None)}),
    ("full in 5 days", {"disk": Disk(GB, 0, 0, 5 * GB, GB, None)}),
    ("rookery.db-wal has 1.0 GB", {"disk": Disk(GB, GB, 0, 99 * GB, 0, None)}),
    ("may open 1024 files", {"max_files": 1024}),
    ("SQLite is 3.30.0", {"sqlite_version": (3, 30, 0)}),
    ("without FTS5", {"compile_options": frozenset({"THREADSAFE=1"})}),
    ("ignores PRAGMA secure_delete", {"keeps_secure_delete": False}),
    ("is on nfs4", {"file_system": "nfs4"}),
    ("the clock of this machine shows 1970-01-02", {"now": 86_400}),
)


@pytest.mark.parametrize(("says", "facts"), MACHINES, ids=[each[0] for each in MACHINES])
def test_a_fault_of_the_machine_is_found(says: str, facts: dict[str, Any], folder: Path) -> None:
    machine: Machine = replace(machine_of(folder), **facts)
    (found,) = asyncio.run(findings_of(folder, machine))
    assert says in found.text
    assert found.cure


def test_what_is_no_data_folder_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--data", str(tmp_path)]) == 1
    assert "is no data folder" in capsys.readouterr().err


def test_a_text_of_others_is_printed_without_control_characters(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "policies" / "20-own.toml").write_text('[limits]\n"\\u001b[2Jx" = 5\n')
    assert run(["doctor", "--data", str(folder)]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_serve_on_a_taken_port_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening() as port:
        assert run(["serve", "--data", str(tmp_path / "data"), "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in (
        capsys.readouterr().err
    )
    assert list(tmp_path.iterdir()) == []

"""Caddy, nginx and HAProxy with their files of deploy/, in front of `rookery serve`."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import TYPE_CHECKING, Any, Final

import pytest
import websockets
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests import cast
from tests.bench.relays import free_port
from tests.harness.clock import now
from tests.harness.patience import PROGRAM_S
from tests.harness.relay_program import Rookery, connected, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
DOMAIN: Final = "relay.example.org"
URL: Final = f"wss://{DOMAIN}"
ADA, BOB = "127.0.0.5", "127.0.0.6"
"""Addresses of clients; the proxies connect from 127.0.0.1."""
_NANOSECONDS: Final = 10**9
SETTINGS: Final = f"""\
[relay]
url = "{URL}"
[server]
trusted_proxies = ["127.0.0.1/32"]
metrics_from = ["{ADA}/32"]
[limits]
connections_per_address = 1
"""


@dataclass(frozen=True, slots=True)
class Behind:
    """A proxy with a relay behind it."""

    port: int
    trusting: ssl.SSLContext

    def visit(self, address: str, **headers: str) -> Any:
        """A websocket from this address."""
        return connected(
            URL,
            host="127.0.0.1",
            port=self.port,
            ssl=self.trusting,
            local_addr=(address, 0),
            additional_headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    def answer_to_http_2(self, protocols: list[str]) -> tuple[str | None, bytes]:
        """Which of `protocols` is chosen, and the first bytes of the answer to an HTTP/2 client."""
        self.trusting.set_alpn_protocols(protocols)
        with self._connection(ADA) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            return connection.selected_alpn_protocol(), connection.recv(8)

    async def get(self, path: str, address: str, headers: Mapping[str, str]) -> tuple[int, str]:
        return await asyncio.to_thread(self._get, path, address, headers)

    def _get(self, path: str, address: str, headers: Mapping[str, str]) -> tuple[int, str]:
        client = http.client.HTTPConnection(DOMAIN)
        client.sock = self._connection(address)
        try:
            client.request("GET", path, headers=dict(headers))
            answer = client.getresponse()
            return answer.status, answer.read().decode()
        finally:
            client.close()

    def _connection(self, address: str) -> ssl.SSLSocket:
        plain = socket.create_connection(
            ("127.0.0.1", self.port), PROGRAM_S, source_address=(address, 0)
        )
        return self.trusting.wrap_socket(plain, server_hostname=DOMAIN)


def replaced(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def caddy(folder: Path, port: int, relay: str) -> tuple[list[str], dict[str, str]]:
    options = "admin off\nlocal_certs\nskip_install_trust\nauto_https disable_redirects\n"
    options += f"default_bind 127.0.0.1\nhttps_port {port}\nhttp_port {free_port()}\n"
    options += f"storage file_system {folder}\n"
    file = folder / "Caddyfile"
    text = (DEPLOY / "Caddyfile").read_text("utf-8")
    file.write_text(replaced(text, {"\n{\n": f"\n{{\n{options}"}), "utf-8")
    env = {"HOME": str(folder), "ROOKERY_DOMAIN": DOMAIN, "ROOKERY_UPSTREAM": relay}
    return ["run", "--config", str(file), "--adapter", "caddyfile"], env


def nginx(folder: Path, port: int, relay: str) -> tuple[list[str], dict[str, str]]:
    certificate(folder)
    live = f"/etc/letsencrypt/live/{DOMAIN}"
    changes = {
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "\tlisten [::]:443 ssl;\n": "",
        f"{live}/fullchain.pem": str(folder / "chain.pem"),
        f"{live}/privkey.pem": str(folder / "key.pem"),
        "127.0.0.1:7777": relay,
    }
    site, redirecting, _ = (DEPLOY / "nginx.conf").read_text("utf-8").rpartition("\n\nserver {")
    assert redirecting
    (folder / "site.conf").write_text(replaced(site, changes), "utf-8")
    scratch = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user}daemon off;\npid {folder}/pid;\nworker_processes 1;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{scratch}include {folder}/site.conf;\n}}\n",
        "utf-8",
    )
    return ["-c", str(folder / "nginx.conf"), "-e", "stderr"], {}


def haproxy(folder: Path, port: int, relay: str) -> tuple[list[str], dict[str, str]]:
    certificate(folder)
    pem = (folder / "chain.pem").read_bytes() + (folder / "key.pem").read_bytes()
    (folder / "both.pem").write_bytes(pem)
    text = (DEPLOY / "haproxy.cfg").read_text("utf-8")
    lines = [line for line in text.splitlines(keepends=True) if "bind [::]" not in line]
    assert len(lines) == text.count("\n") - 1
    changes = {
        "bind :443": f"bind 127.0.0.1:{port}",
        "/etc/haproxy/certs/": str(folder / "both.pem"),
        "127.0.0.1:7777": relay,
    }
    (folder / "haproxy.cfg").write_text(replaced("".join(lines), changes), "utf-8")
    return ["-db", "-f", str(folder / "haproxy.cfg")], {}


PROXIES: Final[dict[str, Callable[[Path, int, str], tuple[list[str], dict[str, str]]]]] = {
    "caddy": caddy,
    "nginx": nginx,
    "haproxy": haproxy,
}


def signed(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, by: ec.EllipticCurvePrivateKey
) -> bytes:
    today = datetime.datetime.now(datetime.UTC)
    is_ca = name == issuer
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .sign(by, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def certificate(folder: Path) -> None:
    """chain.pem and key.pem of the domain; ca.pem is what signed it."""
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    (folder / "ca.pem").write_bytes(signed("a test", authority, "a test", authority))
    (folder / "chain.pem").write_bytes(signed(DOMAIN, key, "a test", authority))
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(secret)


@asynccontextmanager
async def running(name: str, folder: Path, relay: str) -> AsyncIterator[Behind]:
    """The proxy of this name, from when it accepts connections."""
    program = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip(f"{name} is not installed: apt install {name}")
    root = folder / ("pki/authorities/local/root.crt" if name == "caddy" else "ca.pem")
    said = []
    for _ in range(3):  # the port may be taken between its choice and the start
        port = free_port()
        args, env = PROXIES[name](folder, port, relay)
        process = await asyncio.create_subprocess_exec(
            program, *args, env={**os.environ, **env}, cwd=folder, stdout=PIPE, stderr=STDOUT
        )
        reading = asyncio.create_task(process.communicate())
        try:
            async with until(f"{name} accepts connections", PROGRAM_S) as tries:
                async for _ in tries:
                    if process.returncode is not None or await accepts(port, root):
                        break
            if process.returncode is None:
                yield Behind(port, ssl.create_default_context(cafile=str(root)))
                return
        finally:
            if process.returncode is None:
                process.terminate()
            said.append((await reading)[0].decode())
    pytest.fail("\n".join(said))


async def accepts(port: int, root: Path) -> bool:
    try:
        _, writer = await asyncio.open_connection(
            "127.0.0.1",
            port,
            ssl=ssl.create_default_context(cafile=str(root)),
            server_hostname=DOMAIN,
        )
    except OSError:  # also: Caddy accepts before its root has been written
        return False
    writer.transport.abort()
    return True


@asynccontextmanager
async def relay_behind(name: str, home: Path, settings: str = SETTINGS) -> AsyncIterator[Behind]:
    folder = home / "proxy"
    folder.mkdir()
    async with Rookery(home / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey)
        (rookery.folder / "rookery.toml").write_text(settings)
        await rookery.start()
        async with running(name, folder, rookery.url.removeprefix("ws://")) as behind:
            yield behind
        assert await rookery.stop() == 0


@pytest.fixture(params=PROXIES)
async def behind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Behind]:
    async with relay_behind(request.param, tmp_path) as behind:
        yield behind


@pytest.mark.slow
async def test_an_owner_logs_in_and_writes_over_wss_through_a_proxy(behind: Behind) -> None:
    async with behind.visit(ADA) as wire:
        await wire.log_in(cast.owner, URL, now())
        assert await wire.publish(cast.owner.sign(9007, [["h", "tea"]], "", now())) == (True, "")
        long = cast.owner.sign(9, [["h", "tea"]], "tea " * 60_000, now())
        assert await wire.publish(long) == (True, "")
        assert [event["id"] for event in await wire.query({"kinds": [9]})] == [long.id]


FORGED: Final[dict[str, dict[str, str]]] = {
    "nothing": {},
    "X-Forwarded-For": {"X-Forwarded-For": "{}"},
    "X-Forwarded-For of a chain": {"X-Forwarded-For": "203.0.113.9, {}"},
    "X-Real-IP": {"X-Real-IP": "{}"},
    "Forwarded": {"Forwarded": "for={}"},
    "every header": {"X-Forwarded-For": "{}", "X-Real-IP": "{}", "Forwarded": "for={}"},
    "lower case": {"x-forwarded-for": "{}", "x-real-ip": "{}", "forwarded": "for={}"},
}


@pytest.mark.slow
async def test_the_relay_sees_the_address_of_the_client_whatever_it_forges(behind: Behind) -> None:
    """`metrics_from` names Ada alone, and a second connection of one address is refused."""
    for name, headers in FORGED.items():
        for me, other, status in ((ADA, BOB, 200), (BOB, ADA, 403)):
            forged = {header: value.format(other) for header, value in headers.items()}
            found, text = await behind.get("/metrics", me, forged)
            assert (name, me, found) == (name, me, status), text
    async with behind.visit(ADA):
        async with behind.visit(BOB, X_Forwarded_For=ADA):
            pass
        for forged in ({}, {"X_Forwarded_For": "203.0.113.9"}, {"X_Real_IP": "203.0.113.9"}):
            with pytest.raises(websockets.InvalidStatus):
                async with behind.visit(ADA, **forged):
                    pass


@pytest.mark.slow
async def test_nginx_passes_on_a_bounded_number_of_connections_of_one_address(
    tmp_path: Path,
) -> None:
    """Here the relay has no bound of its own. Others get no answer: nothing counts the sockets of
    those who do not read one."""
    [most] = re.findall(r"limit_conn rookery (\d+);", (DEPLOY / "nginx.conf").read_text("utf-8"))
    settings = replaced(SETTINGS, {"connections_per_address = 1": "connections_per_address = 0"})
    async with relay_behind("nginx", tmp_path, settings) as behind, AsyncExitStack() as opened:
        for _ in range(int(most)):
            await opened.enter_async_context(behind.visit(BOB))
        with pytest.raises(websockets.InvalidMessage):
            await opened.enter_async_context(behind.visit(BOB))
        with pytest.raises(http.client.RemoteDisconnected):
            await behind.get("/healthz", BOB, {})
        assert await behind.get("/healthz", ADA, {}) == (200, "ok\n")
        async with behind.visit(ADA):
            pass


@pytest.mark.slow
async def test_caddy_itself_refuses_what_expects_100_continue(tmp_path: Path) -> None:
    """One client that sent such requests crashed Caddy 2.6 within a minute, whatever the relay
    answered. To a long path it would answer 414."""
    async with relay_behind("caddy", tmp_path) as behind:
        long = "/" + "x" * 3000
        assert (await behind.get(long, ADA, {}))[0] == 414
        assert (await behind.get(long, ADA, {"Expect": "100-continue"}))[0] == 417


@pytest.mark.slow
async def test_a_proxy_speaks_no_http_2(behind: Behind) -> None:
    """One connection makes hundreds of requests at once there: members waited behind them."""
    for protocols in (["h2", "http/1.1"], ["http/1.1"]):
        answer = await asyncio.to_thread(behind.answer_to_http_2, protocols)
        assert answer == ("http/1.1", b"HTTP/1.1"), protocols


@pytest.mark.parametrize("name", ["Caddyfile", "Caddyfile.relays"])
def test_caddy_bounds_what_is_unfinished_on_each_port(name: str) -> None:
    """By default half a head of 1 MB of tiny fields stays for ever and takes 23 MB: 90 of them on
    port 80, whose redirect Caddy adds by itself, took 2 GB."""
    program = shutil.which("caddy") or pytest.skip("caddy is not installed: apt install caddy")
    text = subprocess.run(
        [program, "adapt", "--config", DEPLOY / name, "--adapter", "caddyfile"],
        env={**os.environ, "ROOKERY_DOMAIN": DOMAIN},
        capture_output=True,
        check=True,
        timeout=PROGRAM_S,
    ).stdout
    servers = json.loads(text)["apps"]["http"]["servers"].values()
    assert sorted(port for server in servers for port in server["listen"]) == [":443", ":80"]
    for server in servers:
        assert 0 < server["read_header_timeout"] <= 10 * _NANOSECONDS
        assert 0 < server["read_timeout"] <= 10 * _NANOSECONDS
        assert 0 < server["max_header_bytes"] <= 1 << 14


@pytest.mark.slow
async def test_caddy_itself_refuses_large_heads(tmp_path: Path) -> None:
    """By default it takes a megabyte. The relay would answer 414 to the path."""
    async with relay_behind("caddy", tmp_path) as behind:
        long = "/" + "x" * 3000
        fields = {f"A-{number}": "a" * 6_000 for number in range(4)}
        assert (await behind.get(long, ADA, dict([*fields.items()][:2])))[0] == 414
        by_caddy = (431, "431 Request Header Fields Too Large")
        assert await behind.get(long, ADA, fields) == by_caddy


@pytest.mark.slow
async def test_the_relay_s_own_pages_pass_a_proxy(behind: Behind) -> None:
    assert await behind.get("/healthz", BOB, {}) == (200, "ok\n")
    status, text = await behind.get("/", BOB, {"Accept": "application/nostr+json"})
    assert (status, '"supported_nips"' in text) == (200, True)

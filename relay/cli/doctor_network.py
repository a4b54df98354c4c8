"""What `rookery doctor` finds wrong with the relay's URL, certificate and port."""

from __future__ import annotations

import errno
import socket
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from relay.cli.doctor_facts import mode_of
from relay.cli.findings import Finding, error, warning
from relay.cli.humanize import counted
from relay.config import LOOPBACK
from relay.files import content_of
from relay.memory.fence import shell_word
from relay.nostr.nip42 import relay_address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cryptography.x509 import Certificate

    from relay.cli.doctor_facts import Examined

_EXPIRES_DAYS: Final = 14
_SYSTEMCTL_S: Final = 5.0


def address_findings(seen: Examined) -> Iterator[Finding]:
    """The public URL, the listening address, and proxies."""
    relay, server, file = seen.config.relay, seen.config.server, seen.folder / "rookery.toml"
    has_tls, is_local = server.tls_cert is not None, _is_loopback(server.host)
    for name, networks, effect in (
        ("trusted_proxies", server.trusted_proxies, "every client can claim another address"),
        ("metrics_from", server.metrics_from, "everybody may read the metrics"),
    ):
        for network in networks:
            if network.prefixlen == 0:
                yield error(
                    f"{file}: [server] {name} has {network}: {effect}",
                    f"name single addresses, like [server] {name} = ['127.0.0.1/32']",
                )
    if relay.url is None:
        if server.trusted_proxies:
            yield error(
                f"{file}: [server] trusted_proxies is set and [relay] url is missing: clients that"
                " come through the proxy cannot log in",
                "set [relay] url to the URL that clients use, like 'wss://relay.example.org'",
            )
        elif not is_local:
            yield warning(
                f"{file}: [server] host is {server.host} and [relay] url is missing: clients that"
                " come by a host name cannot log in",
                "set [relay] url to the URL that clients use, like 'wss://relay.example.org'",
            )
        return
    url = relay_address(relay.url)
    assert url is not None
    is_wss = relay.url.lower().startswith("wss:")
    if has_tls and not is_wss:
        yield error(
            f"{file}: [relay] url is {relay.url}, but the relay speaks TLS (tls_cert)",
            "begin [relay] url with wss://",
        )
    if is_wss and not has_tls and not server.trusted_proxies:
        yield warning(
            f"{file}: [relay] url is {relay.url}, the relay has no tls_cert and trusts no proxy:"
            " all clients seem to have the address of the proxy that speaks TLS",
            "set [server] trusted_proxies to its address, like ['127.0.0.1/32', '::1/128'],"
            " and let it send X-Forwarded-For",
        )
    direct = has_tls or not (is_wss or server.trusted_proxies)
    if direct and is_local and not _is_loopback(_host_of(relay.url)):
        yield error(
            f"{file}: [relay] url is {relay.url}, but [server] host {server.host} accepts this"
            " machine only",
            "set [server] host to '0.0.0.0' or '::', or put a proxy in front and name it in"
            " [server] trusted_proxies",
        )


def _host_of(url: str) -> str:
    from urllib.parse import urlsplit

    return urlsplit(url).hostname or ""


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return any(ip_address(host) in network for network in LOOPBACK)
    return False


def certificate_findings(seen: Examined) -> Iterator[Finding]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509 import load_pem_x509_certificates

    cert, key = seen.config.server.tls_cert, seen.config.server.tls_key
    if cert is None or key is None:
        return
    public = None
    try:
        found = load_pem_x509_certificates(content_of(cert))[0]
    except (OSError, ValueError) as wrong:
        yield error(
            f"{cert} cannot be read as a certificate: {_reason(wrong)}",
            "set [server] tls_cert to a PEM file, its own certificate first",
        )
    else:
        public = found.public_key()
        yield from _validity(cert, found, seen)
    try:
        private = serialization.load_pem_private_key(content_of(key), None)
    except (OSError, ValueError, TypeError) as wrong:
        yield error(
            f"{key} cannot be read as a private key: {_reason(wrong)}",
            "set [server] tls_key to the PEM file without a passphrase that belongs to tls_cert",
        )
        return
    if public is not None and private.public_key() != public:
        yield error(
            f"{key} is not the key of {cert}",
            "set [server] tls_key to the key with which the certificate was requested",
        )
    if mode_of(key) & 0o007:
        yield error(
            f"{key} has mode {mode_of(key):04o}: others may use it",
            f"chmod 600 {shell_word(key)}",
        )


def _reason(wrong: BaseException) -> str:
    if isinstance(wrong, OSError):
        return wrong.strerror or str(wrong)
    return "not such a PEM file"


def _validity(path: Path, found: Certificate, seen: Examined) -> Iterator[Finding]:
    renew = "renew it, for example with `certbot renew`; the relay reads the new file by itself"
    now = datetime.fromtimestamp(seen.machine.now, UTC)
    left = found.not_valid_after_utc - now
    if left.total_seconds() < 0:
        yield error(f"{path} expired at {found.not_valid_after_utc:%Y-%m-%d %H:%M} UTC", renew)
    elif found.not_valid_before_utc > now:
        yield error(
            f"{path} is not valid before {found.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
            "set the clock of this machine",
        )
    elif left.days < _EXPIRES_DAYS:
        yield warning(f"{path} expires in {counted(left.days, 'day')}", renew)
    host = _host_of(seen.config.relay.url or "")
    names = _names_in(found)
    if host and not any(_covers(name, host) for name in names):
        yield error(
            f"{path} is for {', '.join(sorted(names)[:5]) or 'no host'}, not for {host} of [relay]"
            " url",
            f"get a certificate for {host}, or correct [relay] url",
        )


def _names_in(found: Certificate) -> set[str]:
    from cryptography.x509 import DNSName, ExtensionNotFound, IPAddress, SubjectAlternativeName

    try:
        names = found.extensions.get_extension_for_class(SubjectAlternativeName).value
    except (ExtensionNotFound, ValueError):
        return set()
    return {
        *names.get_values_for_type(DNSName),
        *map(str, names.get_values_for_type(IPAddress)),
    }


def _covers(name: str, host: str) -> bool:
    """Whether a name in the certificate covers the host. RFC 6125: `*.` stands for one label."""
    name, host = name.lower(), host.lower()
    if name.startswith("*."):
        return "." in host and host.split(".", 1)[1] == name[2:]
    return name == host


def port_findings(seen: Examined) -> Iterator[Finding]:
    """Whether a stopped relay could listen."""
    server = seen.config.server
    if seen.running is not None or server.port == 0 or seen.is_held:
        return
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            tried.listen(1)
    except (OSError, ValueError) as wrong:
        where = f"{seen.folder / 'rookery.toml'}: [server] host {server.host} port {server.port}"
        unit = _socket_unit(server.port)
        if unit.startswith("rookery"):
            return  # systemd holds the port for the relay while it is stopped
        match getattr(wrong, "errno", None):
            case errno.EADDRINUSE:
                yield error(
                    f"{where} is held by systemd for {unit}"
                    if unit
                    else f"{where} is in use by another program",
                    "stop that program, set [server] port, or start with `rookery serve --port N`",
                )
            case errno.EACCES:
                yield error(
                    f"{where} needs privileges below 1024",
                    "set [server] port to 7777 behind a proxy, or let systemd open the port:"
                    " ListenStream= of rookery.socket",
                )
            case _:
                yield error(
                    f"{where} is no address of this machine: {getattr(wrong, 'strerror', wrong)}",
                    "set [server] host to '127.0.0.1', '0.0.0.0' or '::'",
                )


def _socket_unit(port: int) -> str:
    """The socket unit by which systemd listens on this port; empty if there is none."""
    try:
        listed = subprocess.run(
            ("systemctl", "list-sockets", "--no-legend", "--plain", "--no-pager"),  # noqa: S607
            capture_output=True,
            text=True,
            timeout=_SYSTEMCTL_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    for line in listed.splitlines():
        match line.split():
            case [address, unit, *_] if address.endswith(f":{port}"):
                return unit
    return ""

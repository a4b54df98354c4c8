"""The certificate of a relay that speaks TLS itself, read again when its files change.

Invariants: handshakes see one certificate with its key, never the halves of two. Files that cannot
be used change nothing; the log and `/readyz` say why.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, Final

from relay.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from relay.observe import Readiness

    Files = tuple[tuple[int, ...] | None, ...]

_log = logging.getLogger(__name__)

_POLL_S: Final = 1.0


class Certificate:
    """`[server] tls_cert` and `tls_key`."""

    def __init__(self, cert: Path, key: Path, readiness: Readiness) -> None:
        """Raises UserError when they cannot be used."""
        self._cert, self._key = cert, key
        self._readiness = readiness
        self._tried = self._files()
        self._current = usable(cert, key)
        self.context = usable(cert, key)
        """For the listening sockets; each handshake goes on with the context in force."""
        self.context.sni_callback = self._show

    def _show(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    async def watch(self) -> None:
        """Look at the files every second; until it is cancelled."""
        before = self._tried
        while True:
            await asyncio.sleep(_POLL_S)
            files = await asyncio.to_thread(self._files)
            # The two are written one after the other: not before both have been left alone.
            if files == before and files != self._tried:
                self._tried = files
                await self._read()
            before = files

    async def _read(self) -> None:
        try:
            self._current = await asyncio.to_thread(usable, self._cert, self._key)
        except UserError as error:
            text = f"{error}. The certificate that was read before stays in use"
            _log.error("%s", text)
            self._readiness.note("certificate", text)
        else:
            _log.info("the certificate %s was read again", self._cert)
            self._readiness.clear("certificate")

    def _files(self) -> Files:
        return _state_of(self._cert), _state_of(self._key)


def _state_of(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def usable(cert: Path, key: Path) -> ssl.SSLContext:
    """A context with both. Raises UserError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without `password`, OpenSSL would ask on the terminal.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"[server] tls_cert {cert} with tls_key {key} cannot be used: {_fault(error)};"
            " `rookery doctor` looks at both"
        ) from error
    return context


def _fault(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    match error.reason:
        case "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        case "EE_KEY_TOO_SMALL" | "CA_MD_TOO_WEAK":
            return "the certificate is too weak: its key is short, or it is signed with an old hash"
        case _:
            return "one of them is no PEM file, or the key has a passphrase"

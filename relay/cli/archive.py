"""The file of a backup: a tar in gzip, `manifest.json` first, then what the manifest lists.

tar and gzip are in every standard library and on every machine: without Rookery `tar xzf` opens it.

Invariants: a file is read to its end and checked against the manifest before anything of it counts.
Headers are read here rather than by `tarfile`, which follows links and reads extended headers of
any size.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import zlib
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import msgspec

from relay.errors import UserError
from relay.storage.sqlite.opening import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

FORMAT: Final = 1
DATES_END: Final = 2**32
"""gzip has 32 bits for the seconds since 1970."""
STORE: Final = "rookery.db"
KEY: Final = "relay.key"
SETTINGS: Final = "rookery.toml"
POLICIES: Final = "policies"
_MANIFEST: Final = "manifest.json"
_MAX_MANIFEST: Final = 4 * 2**20
_BLOCK: Final = tarfile.BLOCKSIZE
_CHUNK: Final = 2**20
_MAX_NAME: Final = 100
"""Bytes: longer names need extended headers."""
_LEVEL: Final = 4
_DAMAGED: Final = (zlib.error, gzip.BadGzipFile, tarfile.HeaderError)
_NAME: Final = re.compile(rf"{STORE}|{KEY}|{SETTINGS}|{POLICIES}(/(?!\.\.?(/|\Z))[^/\0]+)+")


class Entry(msgspec.Struct, frozen=True):
    """One file of a backup."""

    size: int
    sha256: str
    mode: int = 0o600


_Text = Annotated[str, msgspec.Meta(max_length=_MAX_NAME)]
"""Of a manifest that somebody else may have made: messages quote it."""


class Manifest(msgspec.Struct, frozen=True):
    """`manifest.json`."""

    format: int
    rookery: _Text
    """Version of the program that made it."""
    schema: int
    """Schema version of the store."""
    created_at: Annotated[int, msgspec.Meta(ge=0, lt=DATES_END)]
    relay: str
    """Public key, 64 hex."""
    events: int
    head: int
    files: dict[_Text, Entry]


class _Version(msgspec.Struct):
    """The fields that a manifest of any format has."""

    format: int
    rookery: _Text
    schema: int


def entry_of(source: Path | bytes, mode: int) -> Entry:
    digest = sha256()
    size = 0
    with _opened(source) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return Entry(size, digest.hexdigest(), mode)


def write_archive(
    path: Path,
    manifest: Manifest,
    sources: Mapping[str, Path | bytes],
    note: Callable[[int], None],
) -> None:
    """Write the new file `path` (0600), synced. `note` gets the number of content bytes written."""
    text = msgspec.json.format(msgspec.json.encode(manifest))
    done = 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with (
        os.fdopen(fd, "wb") as file,
        gzip.GzipFile("", "wb", _LEVEL, file, manifest.created_at) as out,
    ):
        for name, source in {_MANIFEST: text, **sources}.items():
            entry = manifest.files.get(name) or Entry(len(text), "", 0o600)
            out.write(_header(name, entry, manifest.created_at))
            with _opened(source) as content:
                size = 0
                while chunk := content.read(_CHUNK):
                    out.write(chunk)
                    size += len(chunk)
                    note(done + size)
            done += size
            out.write(bytes(-size % _BLOCK))
        out.write(bytes(2 * _BLOCK))
        out.close()
        file.flush()
        os.fsync(file.fileno())


def _header(name: str, entry: Entry, at: int) -> bytes:
    if len(os.fsencode(name)) > _MAX_NAME:
        raise UserError(f"{name}: names in a backup have at most {_MAX_NAME} bytes; shorten it")
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = entry.size, entry.mode, at
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def manifest_of(path: Path) -> Manifest:
    """Read only the manifest of a backup. Raises UserError."""
    with _reading(path) as (_, stream):
        return _manifest(path, stream)


def read_archive(path: Path, into: Path | None, note: Callable[[int], None]) -> Manifest:
    """Check the whole file and write its files into the empty folder `into`.

    `note` gets the number of bytes read. Raises UserError, and OSError while writing.
    """
    with _reading(path) as (file, stream):
        manifest = _manifest(path, stream)
        if into is not None:
            _check_space(into, sum(entry.size for entry in manifest.files.values()))
        missing = dict(manifest.files)
        while (info := _next(stream)) is not None:
            entry = missing.pop(info.name, None)
            if entry is None or info.type != tarfile.REGTYPE:
                raise UserError(f"{path} is no backup: its manifest does not list {info.name!r}")
            digest = sha256()
            with _target(into, info.name, entry) as target:
                for chunk in _content(stream, entry.size):
                    digest.update(chunk)
                    if target is not None:
                        target.write(chunk)
                    note(file.tell())
            if info.size != entry.size or digest.hexdigest() != entry.sha256:
                raise UserError(
                    f"{path}: {info.name} was changed or is damaged; use another backup"
                )
        if missing:
            raise UserError(f"{path}: {min(missing)} is missing in it; use another backup")
        # To the end: gzip has a checksum there.
        for _ in range(_BLOCK):
            if not stream.read(_BLOCK):
                return manifest
        raise UserError(f"{path} is no backup: there is data after its end")


def _manifest(path: Path, stream: gzip.GzipFile) -> Manifest:
    info = _next(stream)
    # A size below zero would read the rest of the file at once.
    if info is None or info.name != _MANIFEST or not 0 <= info.size <= _MAX_MANIFEST:
        raise UserError(f"{path} is not a backup of Rookery: it does not begin with a manifest")
    text = b"".join(_content(stream, info.size))
    try:
        made_by = msgspec.json.decode(text, type=_Version)
        if made_by.format > FORMAT or made_by.schema > SCHEMA_VERSION:
            raise UserError(
                f"{path} was made by Rookery {made_by.rookery} (format {made_by.format}, schema"
                f" {made_by.schema}); this version knows up to format {FORMAT}, schema"
                f" {SCHEMA_VERSION}: restore it with that version or a newer one"
            )
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise UserError(f"{path}: its manifest is damaged: {wrong}") from None
    for name, entry in manifest.files.items():
        if not _NAME.fullmatch(name) or entry.size < 0:
            raise UserError(f"{path} is no backup: a backup has no file named {name!r}")
    for name in (STORE, KEY):
        if name not in manifest.files:
            raise UserError(f"{path}: {name} is missing in it; use another backup")
    return manifest


def _next(stream: gzip.GzipFile) -> tarfile.TarInfo | None:
    """The next header; None at the end."""
    block = stream.read(_BLOCK)
    if block and not block.strip(b"\0"):
        return None
    if len(block) < _BLOCK:
        raise EOFError
    return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")


def _content(stream: gzip.GzipFile, size: int) -> Iterator[bytes]:
    left = size
    while left:
        chunk = stream.read(min(left, _CHUNK))
        if not chunk:
            raise EOFError
        left -= len(chunk)
        yield chunk
    if len(stream.read(-size % _BLOCK)) < -size % _BLOCK:
        raise EOFError


@contextmanager
def _reading(path: Path) -> Iterator[tuple[BinaryIO, gzip.GzipFile]]:
    try:
        with path.open("rb") as file, gzip.GzipFile("", "rb", fileobj=file) as stream:
            yield file, stream
    except EOFError:
        raise UserError(f"{path} is cut off: it ends too early; use another backup") from None
    except _DAMAGED as wrong:
        raise UserError(f"{path} is not a backup of Rookery, or damaged: {wrong}") from None


@contextmanager
def _target(into: Path | None, name: str, entry: Entry) -> Iterator[BinaryIO | None]:
    if into is None:
        yield None
        return
    path = into / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Programs of policies stay executable; store and key are private to their owner.
    mode = 0o600 if name in (STORE, KEY) else 0o600 | entry.mode & 0o755
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        yield file
        file.flush()
        os.fchmod(fd, mode)
        os.fsync(fd)


def _check_space(folder: Path, needed: int) -> None:
    free = os.statvfs(folder)
    there = free.f_bavail * free.f_frsize
    if there < needed:
        raise UserError(
            f"{folder.parent}: {needed:,} bytes are needed and {there:,} are free: nothing restored"
        )


def _opened(source: Path | bytes) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")

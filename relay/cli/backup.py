"""`rookery backup`: one file with everything that a relay cannot rebuild.

It is made beside its destination, read back, and renamed, so that a file with the name of a backup
is complete. `safety_copy` makes one before a data folder is changed irreversibly.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import tempfile
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from grp import getgrgid
from pathlib import Path
from pwd import getpwall, getpwuid
from typing import TYPE_CHECKING, Final

import click

from relay import __version__
from relay.cli.database import refuse_database, refuse_store_fault
from relay.cli.folder_lock import flocked
from relay.cli.humanize import counted, size_of
from relay.cli.options import WholeNumber, folder_option, json_option, print_json, printable
from relay.clock import unix_now
from relay.errors import UserError
from relay.files import in_container, regular_file, replace_own_file, sync, trusted_users, way_to
from relay.memory.fence import shell_word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

    from relay.cli.archive import Manifest

_OURS: Final = re.compile(r"rookery-\d{8}-\d{6}\.tar\.gz")
_UNFINISHED: Final = ".rookery-unfinished-"
LAST_BACKUP: Final = "last-backup.json"
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_KEPT_DAYS: Final = 7
_MAX_SMALL: Final = 256 * 10**6
_BEFORE_UPGRADE: Final = "before-upgrade.tar.gz"
_BEFORE_REPAIR: Final = "before-repair.tar.gz"
_BEFORE_LAST_REPAIR: Final = "before-last-repair.tar.gz"
_SAFETY_COPIES: Final = (_BEFORE_UPGRADE, _BEFORE_REPAIR, _BEFORE_LAST_REPAIR)


@click.command("backup", epilog="Example: rookery backup /backups --keep 7 --data ./data")
@click.argument("dest", metavar="DEST", type=click.Path())
@folder_option
@click.option(
    "--keep",
    metavar="N",
    type=WholeNumber(min=1),
    help="Afterwards keep the N newest backups of this relay in the folder DEST.",
)
@json_option
def backup_command(dest: str, folder: Path, keep: int | None, *, as_json: bool) -> None:
    """Copy a relay into one file: events, bans, members, relay.key, settings and policies.

    The relay may run. DEST is a new file, or a folder: the file is then named by its date (UTC).
    The file is verified before it gets its name. It contains the relay's secret key, so its mode is
    0600.
    """
    from relay.cli.progress import Amount, progress_bar

    refuse_database(folder, "back it up by pg_dump, and copy relay.key, rookery.toml and policies")
    now, destination = unix_now(), Path(dest)
    is_folder = destination.is_dir()
    if not is_folder and (keep is not None or dest.endswith("/")):
        why = "--keep is for a folder, and " if keep is not None else ""
        raise UserError(
            f"{why}{destination} is no folder: make it with `mkdir {shell_word(destination)}`",
            code=2,
        )
    at = datetime.fromtimestamp(now, UTC)
    file = destination / f"rookery-{at:%Y%m%d-%H%M%S}.tar.gz" if is_folder else destination
    _check_destination(folder, file)
    with progress_bar(Amount.BYTES) as progress:
        manifest = make_backup(folder, file, now, progress)
    removed = [] if keep is None else _remove_older(file, manifest.relay, keep)
    _note_last(folder, file, manifest)
    left_out = sorted(str(path) for path in (folder / "keys").glob("*.nsec"))
    size = file.stat().st_size
    if as_json:
        print_json(
            {
                "file": str(file),
                "bytes": size,
                "events": manifest.events,
                "head": manifest.head,
                "schema": manifest.schema,
                "created_at": manifest.created_at,
                "removed": [str(path) for path in removed],
                "left_out": left_out,
            }
        )
        return
    shown = printable(str(file))
    click.echo(f"wrote {shown}: {counted(manifest.events, 'event')}, {size_of(size)}, read back")
    for path in removed:
        click.echo(f"removed {printable(str(path))}")
    if left_out:
        listed = ", ".join(map(printable, left_out))
        click.echo(f"not included, back them up separately: {listed}")
    click.echo(f"try it with: rookery restore {shell_word(file)} --check")


def _check_destination(folder: Path, file: Path) -> None:
    if os.path.lexists(file):
        raise UserError(f"{file} exists and is not overwritten; choose another name, or a folder")
    if not file.parent.is_dir():
        raise UserError(f"{file.parent} is not a folder: create it first")
    refuse_shared(file.parent)
    if file.parent.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"{file} is in the data folder, and would be lost with it; choose a place outside,"
            " best on another disk"
        )


def refuse_shared(folder: Path) -> None:
    """For a folder in which another user may rename what is made there, or in whose place another
    user may put one: that user could have the copy of the store written into a file of their own.
    Raises UserError, OSError."""
    if in_container():
        return
    trusted = trusted_users()
    for place, about in way_to(folder):
        if about.st_uid not in trusted:
            why = f"{place} belongs to another user ({about.st_uid})"
            cure = "mount a disk that keeps no owners with `uid=`"
        elif _others_write(place, about, trusted):
            why = f"other users may write to {place}"
            cure = f"`chmod go-w {shell_word(place)}`, or mount a disk that keeps no modes with"
            cure += " `umask=022`"
        else:
            continue
        raise UserError(
            f"{why}: who renames files there could read the store while it is copied; choose a"
            f" folder of your own, or {cure}"
        )


def _others_write(place: Path, about: os.stat_result, trusted: set[int]) -> bool:
    """Whether others than these users may rename files of these in a folder."""
    if not stat.S_ISDIR(about.st_mode) or about.st_mode & stat.S_ISVTX:
        return False
    if about.st_mode & stat.S_IWOTH:
        return True
    return bool(about.st_mode & stat.S_IWGRP) and (
        _has_access_list(place) or not _is_private_group(about.st_gid, trusted)
    )


def _has_access_list(place: Path) -> bool:
    """Whether the bits of the group are those of an ACL, which names others (acl(5))."""
    if sys.platform != "linux":
        return False
    try:
        return bool(os.getxattr(place, "system.posix_acl_access"))
    except OSError:
        return False


def _is_private_group(gid: int, trusted: set[int]) -> bool:
    """Whether a group is that of one of these users and has no other members: Debian makes one for
    each user, and its umask may let the group write."""
    names = set[str]()
    for uid in trusted:
        with suppress(KeyError):  # a number without a name, as in a container
            names.add(getpwuid(uid).pw_name)
    try:
        group = getgrgid(gid)
    except KeyError:
        return False
    members = {*group.gr_mem, *(user.pw_name for user in getpwall() if user.pw_gid == gid)}
    return group.gr_name in names and members <= names


def make_backup(folder: Path, file: Path, now: int, progress: Progress) -> Manifest:
    """Write the backup `file` of a data folder, with or without a running relay; an existing file
    is replaced, and what killed backups left beside it is removed. Raises UserError, StoreFault;
    then nothing is left behind.
    """
    from relay.cli.archive import (
        DATES_END,
        STORE,
        Manifest,
        entry_of,
        read_archive,
        write_archive,
    )
    from relay.nostr.keys import read_key_file
    from relay.storage.sqlite.copying import copy_store, facts_of, schema_of
    from relay.storage.sqlite.opening import SCHEMA_VERSION

    if now >= DATES_END:
        raise UserError(f"the clock of this machine is {now} s after 1970: set the clock")
    refuse_store_fault(folder)
    store = folder / STORE
    schema = schema_of(store)
    if schema is None:
        raise UserError(f"{store} holds nothing yet: start the relay once, then back it up")
    if schema > SCHEMA_VERSION:
        raise UserError(
            f"{store} has schema {schema}, this Rookery knows up to {SCHEMA_VERSION}: back it up"
            " with the version that wrote it"
        )
    texts = _small_files(folder)
    key = read_key_file(texts["relay.key"][0].decode("utf-8", "replace"), str(folder / "relay.key"))
    try:
        remove_left(file.parent, _UNFINISHED)
        with staging_folder(file.parent, _UNFINISHED) as staging:
            copy, unfinished = staging / STORE, staging / "backup"
            size = store.stat().st_size
            task = progress.add_task("copy", total=size)
            copy_store(store, copy, lambda done: progress.update(task, completed=done))
            progress.update(task, completed=size)
            facts = facts_of(copy)
            entries = {STORE: entry_of(copy, 0o600)}
            entries |= {name: entry_of(text, mode) for name, (text, mode) in texts.items()}
            manifest = Manifest(
                format=1,
                rookery=__version__,
                schema=facts.schema,
                created_at=now,
                relay=key.pubkey,
                events=facts.events,
                head=facts.head,
                files=entries,
            )
            sources: dict[str, Path | bytes] = {
                STORE: copy,
                **{name: text for name, (text, _) in texts.items()},
            }
            task = progress.add_task("pack", total=sum(entry.size for entry in entries.values()))
            write_archive(
                unfinished, manifest, sources, lambda done: progress.update(task, completed=done)
            )
            copy.unlink()
            task = progress.add_task("read back", total=unfinished.stat().st_size)
            if read_archive(unfinished, None, lambda n: progress.update(task, completed=n)) != (
                manifest
            ):
                raise UserError(f"{file} was read back with another content: check the disk")
            unfinished.replace(file)
            sync(file.parent)
            return manifest
    except OSError as error:
        raise UserError(f"{file} was not written: {_reason(error, store)}") from error


def _reason(error: OSError, store: Path) -> str:
    if error.errno in _NO_ROOM:
        needed = size_of(2 * store.stat().st_size)
        return f"no space left on the disk; up to {needed} are needed"
    return str(error.strerror or error)


def _small_files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Name → content and mode of the folder's files except databases. Links are followed."""
    from relay.cli.archive import KEY, POLICIES, SETTINGS

    paths = [folder / KEY]
    if (folder / SETTINGS).is_file():
        paths.append(folder / SETTINGS)
    paths += sorted(path for path in (folder / POLICIES).rglob("*") if path.is_file())
    found, left = {}, _MAX_SMALL
    for path in paths:
        try:
            with open(path, "rb", opener=regular_file) as file:
                about = os.fstat(file.fileno())
                if about.st_size > left:
                    raise UserError(
                        f"{path} is too large: {KEY}, {SETTINGS} and {POLICIES} may have"
                        f" {size_of(_MAX_SMALL)} together, as they are read into memory"
                    )
                content = file.read(about.st_size)
            left -= len(content)
            found[path.relative_to(folder).as_posix()] = content, stat.S_IMODE(about.st_mode)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return found


@contextmanager
def staging_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new private folder in `parent`, locked while it is used, removed afterwards unless it was
    renamed."""
    staging = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        with flocked(staging):
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove_left(parent: Path, prefix: str) -> None:
    """Remove what `staging_folder` of a killed process left."""
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError), flocked(left):
            shutil.rmtree(left)


def _remove_older(file: Path, relay: str, keep: int) -> list[Path]:
    """Remove the backups of this relay beside `file` beyond the `keep` newest; returns them.
    Backups of others stay, and `file`: the clock may have been ahead when another was made."""
    from relay.cli.archive import manifest_of

    user = file.stat().st_uid
    found: list[Path] = []
    for path in sorted(file.parent.iterdir(), reverse=True):
        if _OURS.fullmatch(path.name) and path.name != file.name:
            with suppress(UserError, OSError):
                there = path.lstat()
                # In a shared folder another user may write what looks like a later backup.
                if not stat.S_ISREG(there.st_mode) or there.st_uid != user:
                    continue
                if manifest_of(path).relay == relay:
                    found.append(path)
    for path in found[keep - 1 :]:
        path.unlink()
    return found[keep - 1 :]


def _note_last(folder: Path, file: Path, manifest: Manifest) -> None:
    """Record when the last backup was made; not in a folder that cannot be written."""
    import orjson

    text = orjson.dumps({"file": str(file.absolute()), "created_at": manifest.created_at})
    with suppress(OSError):
        replace_own_file(folder / LAST_BACKUP, text)


# before a data folder is changed ------------------------------------------------------------------


def safety_copy(folder: Path, name: str, now: int) -> Path:
    """A backup in the folder itself, named `name`. Raises UserError, StoreFault.

    `drop_safety_copies` removes it: it may hold texts that are deleted later.
    """
    from relay.cli.progress import Amount, progress_bar

    file = folder / name
    with progress_bar(Amount.BYTES) as progress:
        make_backup(folder, file, now, progress)
    return file


def back_up_before_upgrade(folder: Path, now: int) -> Path | None:
    """A safety copy when the store has an older schema than this version writes."""
    from relay.storage.sqlite.copying import schema_of
    from relay.storage.sqlite.opening import SCHEMA_VERSION

    schema = schema_of(folder / "rookery.db")
    if schema is None or schema >= SCHEMA_VERSION:
        return None
    try:
        return safety_copy(folder, _BEFORE_UPGRADE, now)
    except UserError as error:
        raise UserError(
            f"the store has schema {schema} and is not upgraded to {SCHEMA_VERSION} without a"
            f" backup: {error}"
        ) from error


def back_up_before_repair(folder: Path, now: int) -> Path:
    """A safety copy. That of an earlier repair stays for its week: only it has what that repair
    removed."""
    first = folder / _BEFORE_REPAIR
    is_kept = first.exists() and not _is_old(first, now)
    return safety_copy(folder, _BEFORE_LAST_REPAIR if is_kept else _BEFORE_REPAIR, now)


def drop_safety_copies(folder: Path, now: int) -> list[Path]:
    """Remove safety copies that are older than a week; returns them."""
    dropped = []
    for name in _SAFETY_COPIES:
        with suppress(FileNotFoundError):
            if _is_old(folder / name, now):
                (folder / name).unlink()
                dropped.append(folder / name)
    return dropped


def _is_old(copy: Path, now: int) -> bool:
    return copy.stat().st_mtime < now - _KEPT_DAYS * 86_400

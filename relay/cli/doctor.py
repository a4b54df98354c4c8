"""`rookery doctor`: what is wrong with a data folder and its machine, each with its cure.

Invariant: nothing is changed, and nothing outside of this machine is contacted.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sqlite3
from contextlib import closing, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import policies
from relay.cli.database import second_store, store_fault
from relay.cli.doctor_database import database_findings
from relay.cli.doctor_facts import Examined, Machine, mode_of
from relay.cli.doctor_network import address_findings, certificate_findings, port_findings
from relay.cli.findings import Finding, Severity, error, warning
from relay.cli.folder_lock import locked
from relay.cli.hook import hook_faults
from relay.cli.humanize import counted, size_of
from relay.cli.move_switch import MOVED, unended
from relay.cli.options import Colour, coloured, folder_option, json_option, print_json, printable
from relay.cli.pushed_policies import has_pushed_policies, policies_of
from relay.cli.status import disk_of, running_status
from relay.clock import unix_now
from relay.config import load_config
from relay.errors import ConfigFaults, FolderBusy, RookeryError, StoreFault, UserError
from relay.files import MAX_KEY_FILE, content_of
from relay.memory.fence import shell_word
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.keys import read_key_file
from relay.storage.sqlite.copying import schema_of
from relay.storage.sqlite.group_flags import groups_without
from relay.storage.sqlite.opening import SCHEMA_VERSION
from relay.storage.sqlite.store import RESERVED_SPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from relay.cli.status import Disk

_DAY_S: Final = 86_400
_FUTURE_S: Final = 120
_FULL_DAYS: Final = 14
_BACKUP_DAYS: Final = 8
_MOVED_DAYS: Final = 7
_LARGE_WAL: Final = 256 << 20
_PENDING_S: Final = 60
_OTHER_FILES: Final = 128
"""File descriptors that a relay needs besides those of its connections."""
_OLDEST_SQLITE: Final = (3, 37, 0)
_NAMED: Final = 5
"""Groups that a finding names."""
_BUILT_AT: Final = 1_735_689_600
"""2025-01-01: a clock that shows an earlier time is wrong."""
_REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})
"""File systems on which SQLite's WAL does not work."""


@click.command("doctor", epilog="Example: rookery doctor --data ./data")
@folder_option
@json_option
def doctor_command(folder: Path, *, as_json: bool) -> int:
    """Look for faults: settings, URL, certificate, clock, disk, limits, modes, policies.

    Each finding comes with its cure. Exit code 1 with findings, 0 without. The relay may run or
    not; nothing is changed.
    """
    findings = asyncio.run(findings_of(folder))
    if as_json:
        print_json({"ok": not findings, "findings": [asdict(each) for each in findings]})
    else:
        _print(folder, findings)
    return 1 if findings else 0


def _print(folder: Path, findings: Sequence[Finding]) -> None:
    if not findings:
        ok = coloured("ok:", Colour.OK)
        click.echo(f"{ok} nothing wrong with {printable(str(folder))}")
        return
    for each in findings:
        colour = Colour.REFUSED if each.severity is Severity.ERROR else Colour.WARNING
        click.echo(f"{coloured(each.severity.value, colour)}: {printable(each.text)}")
        click.echo(f"  cure: {printable(each.cure)}")
    click.echo(counted(len(findings), "finding"))


async def findings_of(folder: Path, machine: Machine | None = None) -> Sequence[Finding]:
    """Errors first. Raises UserError for what is no data folder."""
    running = await running_status(folder)
    try:
        config = load_config(folder / "rookery.toml")
    except ConfigFaults as wrong:
        found = [
            error(str(fault), f"correct this {'line' if fault.line else 'file'}")
            for fault in wrong.faults
        ]
        # The other checks would examine the defaults.
        return [*found, *_policy_faults(folder), *_key_faults(folder)]
    if machine is None:
        machine = machine_of(folder)
    examined = Examined(folder, config, running, machine, is_held=_is_held(folder))
    findings = [each for check in CHECKS for each in check(examined)]
    findings += await database_findings(config.storage, is_running=running is not None)
    return sorted(findings, key=lambda each: each.severity is not Severity.ERROR)


def machine_of(folder: Path) -> Machine:
    now = unix_now()
    disk = None
    with suppress(StoreFault):
        disk = disk_of(folder, now)
    with closing(sqlite3.connect(":memory:")) as db:
        options = frozenset(row[0] for row in db.execute("PRAGMA compile_options"))
        db.execute("PRAGMA secure_delete = ON")
        keeps = db.execute("PRAGMA secure_delete").fetchone() == (1,)
    return Machine(
        now=now,
        disk=disk,
        max_files=_max_files(folder),
        sqlite_version=sqlite3.sqlite_version_info,
        compile_options=options,
        keeps_secure_delete=keeps,
        file_system=_file_system(folder),
        home=Path.home(),
    )


def _max_files(folder: Path) -> int:
    """`serve` raises the soft limit to the hard one."""
    with suppress(OSError, ValueError):
        pid = int(content_of(folder / "rookery.lock"))
        limits = Path(f"/proc/{pid}/limits").read_text()
        found = re.search(r"^Max open files +(\d+) +(\d+)", limits, re.MULTILINE)
        if found:
            return int(found[1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 2**31 if hard == resource.RLIM_INFINITY else hard


def _file_system(folder: Path) -> str:
    """Type of the file system with the longest mount point above the folder; empty if unknown."""
    path, best, kind = str(folder.resolve()), "", ""
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, point, name, *_ = line.split()
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, name
    return kind


def _is_held(folder: Path) -> bool:
    try:
        with locked(folder):
            return False
    except FolderBusy:
        return True
    except UserError:
        return False


# the running relay -------------------------------------------------------------------------------


def _relay(seen: Examined) -> Iterator[Finding]:
    """What the running relay reports."""
    if seen.running is None:
        if seen.is_held and (seen.folder / "control.sock").exists():
            yield error(
                f"a process holds {seen.folder / 'rookery.lock'}, but {seen.folder}/control.sock"
                " does not answer",
                "wait if it is starting; else restart the relay and read its log",
            )
        return
    for name, text in seen.running.problems.items():
        if name == "policies" and any(_policy_faults(seen.folder)):
            continue  # reported with file and line by the check of the policies
        yield error(f"the running relay says: {name}: {text}", "correct it, or read its log")
    pending = seen.running.numbers.get("erasure_pending_seconds", 0)
    if pending > _PENDING_S:
        is_file = seen.config.storage.url is None
        where = f"{seen.folder}/rookery.db-wal" if is_file else "the tables of the database"
        yield warning(
            f"deleted texts are still in {where}, for {pending:.0f} s",
            "end the program that keeps the store open for reading",
        )


# machine -----------------------------------------------------------------------------------------


def _clock(seen: Examined) -> Iterator[Finding]:
    now = seen.machine.now
    cure = "set the clock: `timedatectl set-ntp true`"
    if now < _BUILT_AT:
        shown = datetime.fromtimestamp(now, UTC)
        yield error(f"the clock of this machine shows {shown:%Y-%m-%d}", cure)
        return
    for path in [seen.folder / "rookery.toml", *sorted(seen.folder.glob("rookery.db*"))]:
        ahead = int(_changed_at(path)) - now
        if ahead > _FUTURE_S:
            yield error(
                f"{path} was changed {counted(ahead // 60, 'minute')} in the future: the clock of"
                " this machine is behind",
                cure,
            )
            return


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _disk(seen: Examined) -> Iterator[Finding]:
    disk = seen.machine.disk
    if seen.machine.file_system in _REMOTE:
        yield error(
            f"{seen.folder} is on {seen.machine.file_system}: SQLite's write-ahead log needs a"
            " local file system",
            "move the folder to a local disk, and back up to the remote one",
        )
    if disk is None:
        return
    cure = (
        "free space, or keep less: [[retention]] in a policy file, then `rookery policy sweep"
        f" --data {shell_word(seen.folder)}`"
    )
    if disk.free_bytes < RESERVED_SPACE:
        yield error(f"{seen.folder}: only {size_of(disk.free_bytes)} are free", cure)
    elif disk.bytes_per_day and disk.free_bytes // disk.bytes_per_day < _FULL_DAYS:
        days = disk.free_bytes // disk.bytes_per_day
        yield warning(
            f"{seen.folder}: {size_of(disk.free_bytes)} are free and {size_of(disk.bytes_per_day)}"
            f" a day are added: full in {counted(days, 'day')}",
            cure,
        )
    if disk.wal_bytes > _LARGE_WAL:
        yield warning(
            f"{seen.folder}/rookery.db-wal has {size_of(disk.wal_bytes)}",
            "end the program that keeps the store open for reading, or restart the relay",
        )
    elif disk.wal_bytes and seen.running is None and not _is_held(seen.folder):
        yield warning(
            f"{seen.folder}/rookery.db-wal has {size_of(disk.wal_bytes)}: the relay was killed;"
            " deleted texts may be in it",
            f"start it once: `rookery serve --data {shell_word(seen.folder)}`",
        )
    yield from _backup(seen, disk)


def _backup(seen: Examined, disk: Disk) -> Iterator[Finding]:
    if seen.config.storage.url is not None:
        return  # made by tools of the database
    cure = (
        f"`rookery backup /path/of/backups --keep 7 --data {shell_word(seen.folder)}`, by a timer"
    )
    now, week_s = seen.machine.now, _BACKUP_DAYS * _DAY_S
    if disk.backup_at is not None:
        if now - disk.backup_at > week_s:
            days = (now - disk.backup_at) // _DAY_S
            yield warning(f"the last backup of {seen.folder} is {counted(days, 'day')} old", cure)
    elif (made := _made_at(seen.folder)) is not None and now - made > week_s:
        yield warning(f"no backup of {seen.folder} is known", cure)


def _made_at(folder: Path) -> float | None:
    """Time when the folder was made, by the oldest of its files: relay.key may have been rotated,
    settings edited."""
    files = (folder / "relay.key", folder / "rookery.toml", *folder.glob("policies/*.toml"))
    return min(filter(None, map(_changed_at, files)), default=None)


def _limits(seen: Examined) -> Iterator[Finding]:
    wanted = seen.config.limits.max_connections
    if seen.machine.max_files < wanted + _OTHER_FILES:
        yield warning(
            f"{seen.folder / 'rookery.toml'}: [limits] max_connections is {wanted}, but a process"
            f" here may open {seen.machine.max_files} files",
            f"LimitNOFILE={wanted + 1000} in the service (or `ulimit -n`), or a lower"
            " max_connections",
        )


def _sqlite(seen: Examined) -> Iterator[Finding]:
    machine = seen.machine
    cure = "install a newer SQLite, or a Python that is built with one"
    version = ".".join(map(str, machine.sqlite_version))
    if machine.sqlite_version < _OLDEST_SQLITE:
        yield error(f"SQLite is {version}, 3.37 or newer is needed", cure)
    if "ENABLE_FTS5" not in machine.compile_options:
        yield error(f"SQLite {version} is built without FTS5: nothing can be searched", cure)
    if "THREADSAFE=0" in machine.compile_options:
        yield error(f"SQLite {version} is built without threads", cure)
    if not machine.keeps_secure_delete:
        yield error(
            f"SQLite {version} ignores PRAGMA secure_delete: deleted texts stay in the file", cure
        )


# files -------------------------------------------------------------------------------------------


def _modes(seen: Examined) -> Iterator[Finding]:
    folder = seen.folder
    if mode_of(folder) & 0o022:
        yield error(
            f"{folder} has mode {mode_of(folder):04o}: others may replace its files",
            f"chmod 700 {shell_word(folder)}",
        )
    secret = [folder / "relay.key", *sorted(folder.glob("keys/*.nsec"))]
    for path in [*secret, *sorted(folder.glob("*.db*")), folder / "control.sock"]:
        if mode_of(path) & 0o077:
            yield error(
                f"{path} has mode {mode_of(path):04o}: other users may read it",
                f"chmod 600 {shell_word(path)}",
            )
    user = os.geteuid()
    for path in (folder, *secret, folder / "rookery.db"):
        with suppress(OSError):
            if path.stat().st_uid != user and user != 0:
                owner = path.stat().st_uid
                yield error(
                    f"{path} belongs to user {owner}, this command runs as {user}",
                    "run commands and relay as the same user, or chown the folder",
                )
                return


def _key(seen: Examined) -> Iterator[Finding]:
    yield from _key_faults(seen.folder)


def _key_faults(folder: Path) -> Iterator[Finding]:
    path = folder / "relay.key"
    try:
        read_key_file(content_of(path, MAX_KEY_FILE).decode("ascii"), str(path))
    except (OSError, UnicodeDecodeError, RookeryError) as wrong:
        reason = wrong.strerror if isinstance(wrong, OSError) else str(wrong)
        yield error(
            f"{path} cannot be used: {reason}",
            "put it back from a backup; with another key the relay signs its groups again",
        )


def _store(seen: Examined) -> Iterator[Finding]:
    path, moved = seen.folder / "rookery.db", seen.folder / MOVED
    if moved.exists() and seen.machine.now - moved.stat().st_mtime > _MOVED_DAYS * _DAY_S:
        yield warning(
            f"{moved} still has the events from before a move, also what was deleted since",
            f"rm {shell_word(moved)}*",
        )
    left = None
    try:
        left = unended(seen.folder)
    except StoreFault as wrong:
        yield error(str(wrong), f"rm {shell_word(seen.folder / 'move.json')}")
    second = second_store(seen.folder)
    if left is not None and seen.running is None:
        yield left
    elif second is not None and left is None:
        yield second
    fault = store_fault(seen.folder)
    if fault is not None:
        yield fault
        return
    try:
        schema = schema_of(path)
    except RookeryError as wrong:
        cure = f"`rookery verify --data {shell_word(seen.folder)}`, or `rookery restore` a backup"
        yield error(str(wrong), cure)
        return
    if schema is not None and schema > SCHEMA_VERSION:
        yield error(
            f"{path} has schema {schema}, this Rookery knows up to {SCHEMA_VERSION}",
            "install the newer version that wrote it",
        )


def _policies(seen: Examined) -> Iterator[Finding]:
    yield from _policy_faults(seen.folder)
    with suppress(ConfigFaults, StoreFault):  # said above, and by _store
        always = policies.load(policies_of(seen.folder), MEMORY_SYSTEMS).groups.always
        groups = groups_without(seen.folder / "rookery.db", always)
        if groups:
            named = [f"{id_} ({', '.join(sorted(groups[id_]))})" for id_ in sorted(groups)]
            more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
            yield warning(
                f"{counted(len(named), 'group')} without flags of [groups] always:"
                f" {', '.join(named[:_NAMED])}{more}",
                "`rookery group edit ID`, whatever it changes, gives them to a group",
            )


def _policy_faults(folder: Path) -> Iterator[Finding]:
    home, cure = policies_of(folder), "correct it; `rookery policy check` reads the files again"
    if has_pushed_policies(folder):
        cure = "correct it in a folder, then `rookery policy push`"
        if not home.is_dir():
            return  # the first start takes them
    try:
        found = policies.load(home, MEMORY_SYSTEMS)
    except ConfigFaults as wrong:
        for fault in wrong.faults:
            yield error(str(fault), cure)
        return
    if not (found.actors.owners or found.actors.households):
        yield warning(
            f"{home}: [actors] owners is empty: nobody may govern the relay",
            "name your public key in policies/00-actors.toml",
        )


def _hooks(seen: Examined) -> Iterator[Finding]:
    for text in hook_faults(seen.machine.home):
        yield warning(text, "`rookery hook install` writes the entries again")


CHECKS: Final[Sequence[Callable[[Examined], Iterator[Finding]]]] = (
    address_findings,
    certificate_findings,
    port_findings,
    _relay,
    _clock,
    _disk,
    _limits,
    _sqlite,
    _modes,
    _key,
    _store,
    _policies,
    _hooks,
)

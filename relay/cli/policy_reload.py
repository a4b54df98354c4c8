"""Reload of the policies: within 2 s of a change of the files or a push, or at once on SIGHUP.

Invariants: a set of files takes effect whole or not at all. While a file has a fault, the previous
set stays in force, and the log, `/readyz` and a metric say so. Files that change between two polls,
or while they are read, or that a program has open for writing, are being written: they are left
alone until they rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from policies.changes import rule_changes
from policies.reload import emptied, fingerprint, read_files, reloaded
from relay.access.management import BannedAuthorRows
from relay.cli.policy_files import plugin_faults
from relay.errors import ConfigFaults, Fault, StoreFault
from relay.files import is_open_for_writing
from relay.write.commands import ManagementChange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Set

    from policies import PolicySet
    from policies.reload import Fingerprint
    from relay.cli.services import Services

_log = logging.getLogger("rookery")

_POLL_S: Final = 0.8
"""Two and the reading take less than the two seconds that are promised."""
_UNTOLD_REST_S: Final = 15.0
"""How long a change rests where the system does not tell whether a program is writing."""


class PolicyReload:
    """`async with` it: watches the folder's policy files inside."""

    def __init__(
        self, services: Services, requested: asyncio.Event, rights_changed: Callable[[], None]
    ) -> None:
        """`requested`: set it to reload at once. `rights_changed`: called after each reload."""
        self._services = services
        self._requested = requested
        self._rights_changed = rights_changed
        self._pushed = services.pushed
        self._folder = services.policy_folder
        self._policy = services.policy
        self._files: Fingerprint | None = services.policy_files
        """What was read last; None: what is there must be read."""
        self._in_force = services.policy_files
        self._seen: Fingerprint = ()
        """The policy files and files of keys at the last look."""
        self._seen_at = 0.0
        """When they were first seen so."""
        self._waits_for = ""
        self._faults = ""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PolicyReload:
        if self._pushed is not None:
            self._pushed.call_when_pushed(self._requested.set)
        self._task = asyncio.create_task(self._run(), name="policy reload")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        work: Callable[[], Awaitable[None]] = self._begin
        while True:
            try:
                await work()
                work = self._check
            except Exception as error:  # last frame of the task: it must go on  # noqa: BLE001
                why = f"internal error: {type(error).__name__}"
                faults = ConfigFaults([Fault(str(self._folder), 0, why)])
                if str(faults) != self._faults:
                    _log.exception("policies not reloaded")
                    self._report(faults)
                await asyncio.sleep(_POLL_S)  # also if it was asked for: nothing may have waited
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._requested.wait()

    async def _begin(self) -> None:
        self._files = self._look()
        keys = [file for file in self._read_of(self._files) if not file[0].endswith(".toml")]
        # After the other: a change between the two is seen here, a later one by the next poll.
        self._seen, self._seen_at = fingerprint(self._folder), asyncio.get_running_loop().time()
        if self._seen != self._in_force:
            self._files = None
        self._seen = (*self._seen, *keys)
        self._in_force = (*(self._in_force or ()), *keys)
        _log_notes(self._policy.notes)
        self._delete_rows_of_banned(frozenset())
        self._list_members()

    async def _check(self) -> None:
        is_asked = self._requested.is_set()
        self._requested.clear()
        try:
            if self._pushed is not None:
                self._folder = await self._pushed.newest()
        except StoreFault:  # the store says so itself; the next poll asks again
            return
        except ConfigFaults as faults:
            if str(faults) != self._faults:
                self._report(faults)
            return
        files = await asyncio.to_thread(self._look)
        now = asyncio.get_running_loop().time()
        rests = self._read_of(files) == self._seen
        if not rests:
            self._seen, self._seen_at = self._read_of(files), now
        # A fault can be mended without a change of the fingerprint (a missing file, a permission):
        # while there is one, every poll reads the files again.
        is_changed = files != self._files or is_asked
        if not (rests or is_asked) or not (is_changed or self._faults):
            return
        if not is_asked and await self._is_being_written(now - self._seen_at):
            return
        policy = await asyncio.to_thread(self._read, files)
        if self._read_of(await asyncio.to_thread(self._look)) != self._seen:
            self._files = None
            return
        self._files = files
        if not isinstance(policy, ConfigFaults):
            changes = await asyncio.to_thread(_changes_of, self._policy, policy)
            self._in_force = self._read_of(files)
            self._enforce(policy, changes)
        elif is_changed or str(policy) != self._faults:
            self._report(policy)

    async def _is_being_written(self, rested_s: float) -> bool:
        """Whether a changed policy file may be in the middle of a text; says so once."""
        why = ""
        for path in sorted({path for path, *_ in set(self._seen) - set(self._in_force or ())}):
            is_open = await asyncio.to_thread(is_open_for_writing, Path(path))
            if is_open:
                why = f"{path} is open for writing"
                break
            if is_open is None and rested_s < _UNTOLD_REST_S:
                why = f"no file may change for {_UNTOLD_REST_S:g} s: {path} may be being written"
        if why not in ("", self._waits_for):
            _log.warning("policies not reloaded yet: %s", why)
        self._waits_for = why
        return bool(why)

    def _look(self) -> Fingerprint:
        return fingerprint(self._folder, self._policy.watched)

    def _read_of(self, files: Fingerprint) -> Fingerprint:
        return read_files(files, self._policy.key_files)

    def _read(self, files: Fingerprint) -> PolicySet | ConfigFaults:
        found = reloaded(self._policy, self._folder)
        if isinstance(found, ConfigFaults):
            return found
        faults = emptied(self._in_force or (), self._read_of(files))
        if self._pushed is not None:
            faults += plugin_faults(found)
        return ConfigFaults(faults) if faults else found

    def _report(self, faults: ConfigFaults) -> None:
        self._faults = str(faults)
        first, *others = faults.faults
        more = f"; and {len(others)} more, see `rookery policy check`" if others else ""
        self._services.readiness.note("policies", f"{first}{more}")
        self._services.metrics.reloaded(ok=False)
        for fault in faults.faults:
            _log.error("policies not reloaded: %s", fault)

    def _enforce(self, policy: PolicySet, changes: Iterable[str]) -> None:
        services, before = self._services, self._policy
        self._policy, self._faults = policy, ""
        services.state.enforce(policy)
        version = ""
        if self._pushed is not None:
            self._pushed.took(self._folder)
            version = f" (version {self._pushed.in_force})"
        was_deleting = before.banned_rows is BannedAuthorRows.DELETE
        self._delete_rows_of_banned(before.actors.banned if was_deleting else frozenset())
        self._list_members()
        services.plugins.enforce(policy.plugins)
        self._rights_changed()
        services.readiness.clear("policies")
        services.metrics.reloaded(ok=True)
        told = rule_changes(before, policy) or "no rule changed"
        _log.info("policies reloaded%s: %s", version, told)
        fewer = len(before.actors.banned) - len(policy.actors.banned)
        if fewer > 0:
            _log.warning("policies: the files ban %d keys fewer than before", fewer)
        for change in changes:
            _log.warning("policies: %s", change)
        known = {(note.file, note.text) for note in before.notes}
        _log_notes(note for note in policy.notes if (note.file, note.text) not in known)

    def _delete_rows_of_banned(self, already_deleted: Set[str]) -> None:
        """With `[bans] stored = "delete"`: delete the rows of keys that the files ban."""
        banned = self._policy.actors.banned - already_deleted
        if banned and self._policy.banned_rows is BannedAuthorRows.DELETE:
            self._services.ingest.manage(
                ManagementChange((), lambda _: None, deleted_authors=banned)
            )

    def _list_members(self) -> None:
        """Sign 13534 again if the files name other owners or agents (N43-01)."""
        self._services.ingest.manage(ManagementChange((), lambda _: None))


def _log_notes(notes: Iterable[Fault]) -> None:
    """Packaged rules that the files replace or disable: the admin should know."""
    for note in notes:
        _log.warning("policies: %s", note)


def _changes_of(before: PolicySet, policy: PolicySet) -> Iterable[str]:
    # Imported by the first reload: its commands take 0.1 s, and a start needs none of them.
    from relay.cli.policy.access_changes import access_changes

    return access_changes(before, policy)

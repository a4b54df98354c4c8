"""What owners of the relay see in the console besides events: the results of commands, computed in
this process."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from click import UsageError

from policies import PolicySet
from policies.lint import warnings_of
from policies.load import DEFAULTS
from relay.access.read_rules import targets_of
from relay.access.visibility import Viewer, everything_visible
from relay.cli.doctor import findings_of
from relay.cli.policy.check import left_open
from relay.cli.policy.edit import checked, new_file, save
from relay.cli.policy.explain import asked_in, explained_here
from relay.cli.policy.show import sections_of
from relay.cli.status import disk_of
from relay.errors import Invalid, Prefix, Refused
from relay.files import content_of
from relay.lifecycle.rows import Stored
from relay.nostr.event import event_from_raw
from relay.observe import DAY_S
from relay.storage import PageQuery
from relay.write.commands import Purpose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from policies.engine import ReadStep
    from relay.cli.console_verify import VerifyRun
    from relay.cli.data_folder import LocalFolder
    from relay.cli.policy.edit import Edit
    from relay.cli.services import Services
    from relay.nostr.event import Event
    from relay.observe import LogLine, Refusal, Sample, Status
    from relay.server.connection import Connection

Made = TypeVar("Made")
Done = TypeVar("Done")

_MAX_READERS: Final = 200
"""Members of a group for whom a read is explained."""
_MAX_BESIDE: Final = 500
_PACKAGED: Final = "packaged/"
_FRESH_S: Final = 20
"""Seconds for which results from files are cached."""
_COUNTED_S: Final = 600
"""Seconds for which the effect of a sweep is cached: counting a million rows takes minutes."""
_PATIENCE_S: Final = 2.0
"""How long a page waits for the effect of a sweep."""


class OwnersView:
    """Satisfies `relay.console.parts.OwnerView`."""

    def __init__(
        self,
        services: Services,
        folder: LocalFolder,
        connections: Callable[[], Collection[Connection]],
        verify_run: VerifyRun,
    ) -> None:
        self._services = services
        self._open = connections
        self._verify_run = verify_run
        self._folder = folder
        self._editing = asyncio.Lock()
        self._disk = _Cached(services.clock, self._read_disk)
        self._findings = _Cached(services.clock, self._read_findings)
        self._retention = _Cached(services.clock, self._read_retention, _COUNTED_S)

    @property
    def data_folder(self) -> str:
        return os.path.abspath(self._services.folder)

    @property
    def is_in_database(self) -> bool:
        return self._services.config.storage.url is not None

    @property
    def may_edit_policies(self) -> bool:
        return self._services.pushed is None

    async def status(self) -> Status:
        return await self._folder.status()

    def day(self) -> Sequence[Sample]:
        return self._services.metrics.day.samples

    async def disk(self) -> Mapping[str, object]:
        return await self._disk.value()

    async def refusals(self) -> Sequence[Refusal]:
        return await self._folder.refusals(0)

    async def log_lines(self) -> Sequence[LogLine]:
        return await self._folder.log_lines(0)

    async def findings(self) -> Sequence[Mapping[str, str]]:
        return await self._findings.value()

    def verification(self) -> Mapping[str, Any]:
        return self._verify_run.state

    def start_verify(self) -> None:
        self._verify_run.start()

    async def retention(self) -> Sequence[Mapping[str, object]] | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                return await self._retention.value()
        return None

    async def _read_retention(self) -> Sequence[Mapping[str, object]]:
        summed: dict[tuple[object, ...], dict[str, object]] = {}
        async for lines in self._services.sweeper(DAY_S).run_now(Purpose.DRY_RUN):
            for line in lines:
                one = {**asdict(line), "place": self._short(line.place)}
                named = (line.rule, line.place, line.kind, line.held)
                before = summed.setdefault(named, {**one, "events": 0, "bytes": 0})
                before["events"] = int(str(before["events"])) + line.events
                before["bytes"] = int(str(before["bytes"])) + line.bytes
        return [*summed.values()]

    @property
    def _policy(self) -> PolicySet:
        """The policies in force now."""
        policy = self._services.state.policy
        assert isinstance(policy, PolicySet)
        return policy

    async def policies(self) -> Mapping[str, object]:
        found = self._policy
        return {
            "sections": [
                {
                    "title": title,
                    "rules": [
                        {
                            "text": text,
                            "name": name,
                            **_place(self._short(where)),
                            "is_own": not where.startswith(_PACKAGED) and (bool(where) or not name),
                        }
                        for text, name, where in lines
                    ],
                }
                for title, lines in sections_of(found)
                if lines
            ],
            "files": [*map(self._short, found.files)],
            "notes": [*map(str, warnings_of(found)), *left_open(found)],
        }

    def _short(self, file: str) -> str:
        """The file's name without the folder that all own policy files are in."""
        return file.removeprefix(f"{self._services.policy_folder}/")

    def _file(self, name: str) -> str | None:
        """Path of a file in force with this short name; None: there is none."""
        return next((each for each in self._policy.files if self._short(each) == name), None)

    async def check_policy(self, name: str, text: str, owner: str) -> Mapping[str, object]:
        edit = await self._edited(name, text, owner, lambda edit, _: edit)
        return edit._asdict()

    async def save_policy(self, name: str, text: str, before: str, owner: str) -> None:
        def save_checked(edit: Edit, path: Path) -> None:
            save(edit, path, before)

        await self._edited(name, text, owner, save_checked)

    async def _edited(
        self, name: str, text: str, owner: str, use: Callable[[Edit, Path], Done]
    ) -> Done:
        """Checks an edit and calls `use`, with no other edit in between."""
        folder = self._services.policy_folder
        if not self.may_edit_policies:
            raise Invalid(
                "name: the relay reads its policies from the database: use `rookery policy push`"
            )
        file = self._file(name)
        if file is not None and file.startswith(_PACKAGED):
            raise Invalid("name: is a packaged file: create one of your own")
        path = new_file(folder, name) if file is None else Path(file)
        if self._editing.locked():
            raise Refused(Prefix.RATE_LIMITED, "another edit is being checked, try again")

        def work() -> Done:
            return use(checked(path, text, folder, self._policy, owner), path)

        async with self._editing:
            return await asyncio.to_thread(work)

    async def policy_file(self, name: str) -> str | None:
        folder = self._services.policy_folder
        file = self._file(name)
        if file is None:  # one that was just saved, or has faults
            try:
                file = str(new_file(folder, name))
            except Invalid:
                return None
        packaged = file.removeprefix(_PACKAGED)
        path = Path(file) if packaged == file else DEFAULTS / packaged
        try:
            return (await asyncio.to_thread(content_of, path)).decode(errors="replace")
        except OSError:
            return None

    async def explain_write(self, fields: object, logins: frozenset[str]) -> Mapping[str, object]:
        services = self._services
        try:
            asked = asked_in(fields, services.clock())
        except UsageError as wrong:
            raise Invalid(wrong.format_message()) from wrong
        keys = logins or frozenset({asked.event.pubkey})
        state, now = services.state, services.clock()
        explained = await explained_here(
            self._policy, asked, keys, self._folder, state.groups, state.actors, now
        )
        steps = explained["steps"]
        assert isinstance(steps, list)
        for each in (explained, *steps):
            each["file"] = self._short(str(each["file"] or ""))
        return explained

    async def explain_read(self, event: Event) -> Mapping[str, object]:
        state = self._services.state
        found = self._policy.with_actors(state.actors)
        row = Stored(1, event, found.row_group(event))
        beside = await self._beside(found, row)

        def seen_by(viewer: Viewer) -> Sequence[ReadStep]:
            return found.explain_read(row, viewer, state.groups, beside)

        group = None if row.group is None else state.groups.get(row.group)
        people: dict[str, str] = {event.pubkey: "author"}
        people = dict.fromkeys(sorted(state.actors.owners), "owner") | people
        people = dict.fromkeys(sorted(state.actors.agents), "agent") | people
        if group is not None:
            for key in [*group.members][:_MAX_READERS]:
                people.setdefault(key, "member of the group")
        viewers = [("anybody", "", Viewer())]
        viewers += [(who, key, Viewer(frozenset({key}))) for key, who in people.items()]
        readers = []
        for who, key, viewer in viewers:
            hidden = next((step for step in seen_by(viewer) if not step.allowed), None)
            banned = bool({key, event.pubkey} & state.actors.banned)
            readers.append(
                {
                    "who": who,
                    "pubkey": key,
                    "allowed": hidden is None and not banned,
                    "rule": "bans" if banned else "" if hidden is None else hidden.place.name,
                }
            )
        rules = [
            {
                "rule": step.place.name,
                "file": self._short(step.place.file),
                "line": step.place.line,
                "readers": step.readers,
            }
            for step in seen_by(Viewer())
        ]
        return {"rules": rules, "readers": readers}

    async def _beside(self, found: PolicySet, row: Stored) -> Sequence[Stored]:
        """Rows that the row's read rules refer to."""
        services = self._services
        state, store = services.state, services.store
        everything = everything_visible(state.actors, state.groups)
        beside: list[Stored] = []
        for target, value in targets_of(found.read_rules, row, state.groups):
            query = PageQuery(
                target.filter_for(value),
                everything,
                _MAX_BESIDE,
                store.committed(),
                services.clock(),
                size=_MAX_BESIDE,
            )
            page = await store.page(query)
            others = [event_from_raw(raw) for raw in page.raws]
            beside += [Stored(1, other, found.row_group(other)) for other in others]
        return beside

    def connections(self) -> Sequence[Mapping[str, object]]:
        return [
            {
                "number": each.connection,
                "address": "" if each.address is None else str(each.address),
                "keys": sorted(each.authenticated),
                "subscriptions": each.subscriptions,
                "unsent_bytes": each.outbox.buffered_bytes,
            }
            for each in self._open()
        ]

    async def _read_disk(self) -> Mapping[str, object]:
        disk = await asyncio.to_thread(disk_of, self._services.folder, self._services.clock())
        return asdict(disk)

    async def _read_findings(self) -> Sequence[Mapping[str, str]]:
        # In a separate event loop, because the checks read files and connect to this relay.
        found = await asyncio.to_thread(lambda: asyncio.run(findings_of(self._services.folder)))
        return [asdict(each) for each in found]


class _Cached(Generic[Made]):
    """A value that is slow to make, made at most every `fresh_s` and by one task at a time.

    Cancelling a waiting caller does not cancel the task: its thread would go on, and the result
    would be lost.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        make: Callable[[], Awaitable[Made]],
        fresh_s: int = _FRESH_S,
    ) -> None:
        self._clock = clock
        self._fresh_s = fresh_s
        self._make = make
        self._making: asyncio.Task[Made] | None = None
        self._made: tuple[int, Made] | None = None

    async def value(self) -> Made:
        if self._made is not None and 0 <= self._clock() - self._made[0] < self._fresh_s:
            return self._made[1]
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
            self._making.add_done_callback(self._keep)
        return await asyncio.shield(self._making)

    def _keep(self, made: asyncio.Task[Made]) -> None:
        self._making = None
        if not made.cancelled() and made.exception() is None:
            self._made = (self._clock(), made.result())


def _place(where: str) -> Mapping[str, object]:
    """File and line of `file:line`."""
    file, _, line = where.rpartition(":")
    return {"file": file, "line": int(line)} if line.isdecimal() else {"file": "", "line": 0}

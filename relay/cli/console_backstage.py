"""What owners of the relay see in the console beside events: what commands find, in process."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from relay.cli.doctor import findings_of
from relay.cli.status import disk_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from relay.cli.data_folder import LocalFolder
    from relay.cli.services import Services
    from relay.observe import LogLine, Refusal, Status

Made = TypeVar("Made")

_FRESH_S: Final = 20
"""What is read from files is asked for again after so many seconds."""


class OwnersView:
    """Satisfies `relay.console.parts.Backstage`."""

    def __init__(self, services: Services, folder: LocalFolder) -> None:
        self._services = services
        self._folder = folder
        self._disk = _Cached(services.clock, self._read_disk)
        self._findings = _Cached(services.clock, self._read_findings)

    async def status(self) -> Status:
        return await self._folder.status()

    async def disk(self) -> Mapping[str, object]:
        return await self._disk.value()

    async def refusals(self) -> Sequence[Refusal]:
        return await self._folder.refusals(0)

    async def log_lines(self) -> Sequence[LogLine]:
        return await self._folder.log_lines(0)

    async def findings(self) -> Sequence[Mapping[str, str]]:
        return await self._findings.value()

    async def _read_disk(self) -> Mapping[str, object]:
        disk = await asyncio.to_thread(disk_of, self._services.folder, self._services.clock())
        return asdict(disk)

    async def _read_findings(self) -> Sequence[Mapping[str, str]]:
        # In a loop of its own: the checks read files and connect to this relay.
        found = await asyncio.to_thread(lambda: asyncio.run(findings_of(self._services.folder)))
        return [asdict(each) for each in found]


class _Cached(Generic[Made]):
    """A value that is slow to make, made at most every `_FRESH_S` and by one task at a time."""

    def __init__(self, clock: Callable[[], int], make: Callable[[], Awaitable[Made]]) -> None:
        self._clock = clock
        self._make = make
        self._making = asyncio.Lock()
        self._made: tuple[int, Made] | None = None

    async def value(self) -> Made:
        async with self._making:
            now = self._clock()
            if self._made is None or now - self._made[0] >= _FRESH_S:
                self._made = (now, await self._make())
            return self._made[1]

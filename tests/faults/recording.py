"""A relay whose every commit and every answer is noted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relay.errors import WriteOutcome
from relay.facts import Origin
from relay.storage.sqlite.store import SqliteStore
from tests.faults.contents import Contents, contents, raws_in
from tests.faults.vfs import Call, Disk, Step
from tests.harness.relay_in_process import Home, Letter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from relay.errors import Result
    from relay.groups.group import Groups
    from relay.lifecycle.rows import Found, Lookups, WritePlan
    from relay.nostr.event import Event


@dataclass
class Run:
    """A recorded run: what SQLite did, and what was promised when."""

    disk: Disk
    steps: list[Step] = field(default_factory=list)
    states: list[Contents] = field(default_factory=lambda: [{}])
    """After each commit; the first is that of an empty store."""
    groups: dict[int, Groups] = field(default_factory=dict)
    """Number of a commit → the groups in memory after it."""
    answered: list[Event] = field(default_factory=list)
    """Events that were stored, and got OK."""

    def tell(self, what: str) -> None:
        self.disk.note(Call.ACK, what)

    @property
    def first_with(self) -> dict[str, int]:
        """Id of a stored event → the first commit after which it is there."""
        found: dict[str, int] = {}
        for number, state in enumerate(self.states):
            for id_ in raws_in(state):
                found.setdefault(id_, number)
        return found


class Recorded(SqliteStore):
    """Notes what is in the file after each commit."""

    run: Run
    path: Path

    async def append(self, lookups: Lookups, decide: Callable[[Found], WritePlan]) -> int:
        head = await super().append(lookups, decide)
        self._noted()
        return head

    def _noted(self) -> None:
        with self.run.disk.calm():
            state = contents(self.path)
        if state != self.run.states[-1]:
            self.run.states.append(state)


class Witnessed(Letter):
    """Tells the run what was stored: who may not read a deletion gets the same OK, untold."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def answered(self, event: Event, weight: int, result: Result) -> None:
        super().answered(event, weight, result)
        if result is WriteOutcome.STORED:
            self._run.tell(event.id)
            self._run.answered.append(event)


class Witness(Home):
    run: Run

    def post(
        self,
        event: Event,
        origin: Origin = Origin.WIRE,
        logins: Iterable[str] = (),
        connection: int | None = None,
    ) -> Letter:
        letter = Witnessed(self.run)
        letter.connection = connection
        letter.authenticated = frozenset(logins)
        self.ingest.submit(event, letter, origin)
        return letter

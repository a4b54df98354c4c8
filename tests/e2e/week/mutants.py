"""Mistakes in the product, by name: a week must find each."""

from __future__ import annotations

import asyncio
import sys
from copy import copy
from typing import TYPE_CHECKING, Any, Final

import relay.client.memory
import relay.lifecycle.versions
import relay.memory.aman.fold
from relay.access.visibility import Reading
from relay.client import Aman, Transcripts
from relay.client.local_file import LocalFile
from relay.client.rebase import Rebase
from relay.client.snowclaw_records import SnowclawRecords
from relay.client.writer import Writer
from relay.lifecycle.rows import Keep
from relay.memory.anamnesis.archive import Archive
from relay.memory.snowclaw.chat import Chat
from relay.memory.snowclaw.working_copy import WorkingCopy
from relay.memory.transcripts.plan import Paths
from relay.nostr import kinds
from relay.read.fanout import Fanout
from relay.state import RelayState
from tests.e2e.week import world

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.harness.mutation import Patch


def _no_clear_on_one_machine() -> Sequence[Patch]:
    fold_of = Aman._fold_of

    def without(self: Aman, events: Any) -> Any:
        if self._folder is not None and "B" in self._folder.parts:
            events = [event for event in events if event.kind != kinds.CLEAR_CONTEXT]
        return fold_of(self, events)

    return [(Aman, "_fold_of", without)]


def _a_row_of_a_clears_second_is_hidden() -> Sequence[Patch]:
    return [(relay.memory.aman.fold, "_after", lambda _: frozenset())]


def _last_to_arrive_wins() -> Sequence[Patch]:
    """Of states by `ts`, as the relay keeps them."""
    is_older = relay.lifecycle.versions.is_older

    def by_arrival(event: Any, version: int, keep: Keep, *rest: Any) -> bool:
        return keep is not Keep.LATEST_TS and is_older(event, version, keep, *rest)

    return [(relay.lifecycle.versions, "is_older", by_arrival)]


def _read_rule(name: str) -> Callable[[], Sequence[Patch]]:
    """Without it."""
    return lambda: [(world, "POLICY", f'[[rule]]\nname = "{name}"\nenabled = false\n')]


def _sends_to_whoever_asks() -> Sequence[Patch]:
    return [(Fanout, "_reading", lambda *_: Reading.ALWAYS)]


def _rights_of_before() -> Sequence[Patch]:
    return [(RelayState, "_forget_views", lambda _: None)]


def _revoked_agents_stay() -> Sequence[Patch]:
    enforce = RelayState.enforce

    def keeping(self: RelayState, policy: Any) -> None:
        changed = copy(policy)
        object.__setattr__(changed, "actors", self.policy.actors)
        enforce(self, changed)

    return [(RelayState, "enforce", keeping)]


def _no_supersession() -> Sequence[Patch]:
    return [(Archive, "successor", lambda *_: None)]


def _authors_vouch_for_themselves() -> Sequence[Patch]:
    return [(Archive, "original", _once_none(Archive.original))]


def _once_none(original: Callable[..., Any]) -> Callable[..., Any]:
    """None to `vouchers`, which then takes the author's own."""

    def asked(self: Archive, hashed: str) -> Any:
        by = sys._getframe(1).f_code.co_name
        return None if by == "vouchers" else original(self, hashed)

    return asked


def _caches_only_grow() -> Sequence[Patch]:
    def add(cache: Any, wanted: Any, found: Any) -> None:
        cache.change(found, ())

    return [(relay.client.memory, "_update_cache", add)]


def _deleted_pages_stay() -> Sequence[Patch]:
    prepare = LocalFile._prepare

    def careless(self: LocalFile, *args: Any, **more: Any) -> None:
        prepare(self, *args, **more)
        self._connection.execute("PRAGMA secure_delete = OFF")

    return [(LocalFile, "erase_soon", lambda _: None), (LocalFile, "_prepare", careless)]


def _spool_is_dropped() -> Sequence[Patch]:
    async def drop(self: Writer, backlog: Any, spool: Any) -> bool:
        await asyncio.to_thread(spool.done, [each.event.id for each in backlog])
        return True

    return [(Writer, "_send_batch", drop)]


def _renames_are_ignored() -> Sequence[Patch]:
    see = Chat._see_profile

    def first(self: Chat, event: Any) -> bool:
        return self._profile(event.pubkey).name is None and see(self, event)

    return [(Chat, "_see_profile", first)]


def _members_never_leave() -> Sequence[Patch]:
    see = Chat._see_group

    def first(self: Chat, event: Any) -> bool:
        is_list = event.kind == kinds.GROUP_MEMBERS
        return not (is_list and event.d in self._lists) and see(self, event)

    return [(Chat, "_see_group", first)]


def _edits_are_of_the_version_at_start() -> Sequence[Patch]:
    """What another machine wrote is not taken up."""
    apply = WorkingCopy.apply

    def own_only(self: WorkingCopy, event: Any) -> bool:
        d = event.d if event.kind == kinds.APP_DATA else ""
        if d.startswith("snowclaw:memory:") and self.own(d) is not None:
            return False
        return apply(self, event)

    return [(WorkingCopy, "apply", own_only)]


def _config_of_the_start() -> Sequence[Patch]:
    load = SnowclawRecords.load

    async def once(self: SnowclawRecords, *args: Any) -> None:
        if not self._is_loaded:
            await load(self, *args)

    return [(SnowclawRecords, "load", once)]


def _notes_name_the_folder() -> Sequence[Patch]:
    import_file = Transcripts.import_file

    async def raw(self: Transcripts, path: Any, **more: Any) -> Any:
        return await import_file(self, path, paths=Paths.RAW.value, **more)

    return [(Transcripts, "import_file", raw)]


def _versions_are_sent_as_they_waited() -> Sequence[Patch]:
    async def as_it_was(_: Rebase, event: Any, base: Any) -> Any:
        return event

    return [(Rebase, "rebased", as_it_was)]


MUTANTS: Final[dict[str, Callable[[], Sequence[Patch]]]] = {
    "aman: a clear is ignored on one machine": _no_clear_on_one_machine,
    "aman: a row of a clear's second is hidden": _a_row_of_a_clears_second_is_hidden,
    "relay: of states the last to arrive wins": _last_to_arrive_wins,
    "relay: no read rule for app data": _read_rule("scoped memory and app data"),
    "relay: no read rule for aman": _read_rule("aman memory"),
    "relay: no read rule for transcripts": _read_rule("transcripts"),
    "relay: sends live rows to whoever asks": _sends_to_whoever_asks,
    "relay: reads by rights of before": _rights_of_before,
    "relay: a revoked agent stays one": _revoked_agents_stay,
    "anamnesis: no supersession is followed": _no_supersession,
    "anamnesis: authors vouch for themselves": _authors_vouch_for_themselves,
    "cache: only grows": _caches_only_grow,
    "cache: deleted pages stay": _deleted_pages_stay,
    "spool: is dropped": _spool_is_dropped,
    "snowclaw: renames are ignored": _renames_are_ignored,
    "snowclaw: members never leave": _members_never_leave,
    "snowclaw: versions of others are not taken up": _edits_are_of_the_version_at_start,
    "snowclaw: versions are sent as they waited": _versions_are_sent_as_they_waited,
    "snowclaw: configuration of the start": _config_of_the_start,
    "transcripts: notes name the folder": _notes_name_the_folder,
}

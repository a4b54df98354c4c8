"""A relay without store and clock: the log is a list, events are judged by `relay.write.judge`.

Effects (automatic events, notices, pins) are applied here a second time, in a few lines, apart from
the batch. `World.send` answers as the wire does; `World.rebuilt` is the state after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from relay.access.actors import Actors
from relay.errors import WriteOutcome, ok_reply
from relay.facts import Origin, Who
from relay.groups.actions import Flag, group_of, previous_in
from relay.groups.context import GroupSettings
from relay.groups.group import Groups, pins_of, replayed
from relay.groups.membership import groups_without_rows
from relay.groups.notices import Draft, notices_for
from relay.lifecycle.rows import Found, Stored, keep_by_kind, slot_of
from relay.lifecycle.versions import KeepRules
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr import kinds
from relay.nostr.event import Event, signed
from relay.nostr.kinds import KindClass, class_of
from relay.write import world as judging
from relay.write.candidate import Sender, candidate_of
from relay.write.judge import judge
from tests import cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.access.quotas import UsageLimit
    from relay.access.read_rules import ReadRule
    from relay.facts import Facts
    from relay.groups.group import Group, Pin
    from relay.memory.registry import MemorySystems
    from relay.nostr.keys import SecretKey
    from relay.write.candidate import Candidate

RELAY = cast.person("relay").pubkey
NOON = 1_700_000_000
STORED = (True, "")
NOT_A_MEMBER = (False, "restricted: not a member")

OPEN = GroupSettings(always=frozenset(), new=frozenset(), create=frozenset({Who.ANYONE}))
"""Preset `open`."""
GUARDED = GroupSettings()
"""Preset `group`."""

_numbers = count()


def event(
    who: SecretKey | str, kind: int, *tags: Sequence[str], at: int = NOON, content: str = ""
) -> Event:
    """An event with an invalid signature: none is verified here."""
    pubkey = who if isinstance(who, str) else who.pubkey
    return signed(pubkey, at, kind, [list(tag) for tag in tags], content, lambda _: "0" * 128)


@dataclass
class _Policy:
    """Policies whose rules refuse nothing: groups alone decide."""

    groups: GroupSettings
    keep: KeepRules = field(default_factory=lambda: KeepRules(()))
    systems: MemorySystems = MEMORY_SYSTEMS
    read_rules: tuple[ReadRule, ...] = ()
    restricted_writes: bool = False

    def refusal(self, _event: Event, _facts: Facts) -> None:
        return None

    def wants_login(self, _event: Event) -> bool:
        return False

    def usage_limits(self, _event: Event, _facts: Facts) -> Sequence[UsageLimit]:
        return ()


@dataclass
class World:
    settings: GroupSettings = OPEN
    now: int = NOON
    groups: Groups = field(default_factory=Groups)
    log: list[Event] = field(default_factory=list)
    """Rows in order of seq."""
    actors: Actors = field(
        default_factory=lambda: Actors(
            owners=frozenset({cast.owner.pubkey}), agents=frozenset({cast.robot.pubkey})
        )
    )
    origin: Origin = Origin.WIRE
    rows_in_group: dict[str, int] = field(default_factory=dict)
    """As of `Found.group_rows`."""
    rows_moving: int = 0

    # Events

    def make(self, who: SecretKey, group: str = "tea", *tags: Sequence[str]) -> tuple[bool, str]:
        return self.do(who, kinds.CREATE_GROUP, *tags, group=group)

    def put(
        self, who: SecretKey, whom: SecretKey, *roles: str, group: str = "tea"
    ) -> tuple[bool, str]:
        return self.do(who, kinds.PUT_USER, ["p", whom.pubkey, *roles], group=group)

    def remove(self, who: SecretKey, whom: SecretKey, group: str = "tea") -> tuple[bool, str]:
        return self.do(who, kinds.REMOVE_USER, ["p", whom.pubkey], group=group)

    def edit(self, who: SecretKey, *tags: Sequence[str], group: str = "tea") -> tuple[bool, str]:
        return self.do(who, kinds.EDIT_METADATA, *tags, group=group)

    def invite(
        self, who: SecretKey, code: str, *tags: Sequence[str], group: str = "tea"
    ) -> tuple[bool, str]:
        return self.do(who, kinds.CREATE_INVITE, ["code", code], *tags, group=group)

    def join(self, who: SecretKey, code: str | None = None, group: str = "tea") -> tuple[bool, str]:
        return self.do(
            who, kinds.JOIN_REQUEST, *([] if code is None else [["code", code]]), group=group
        )

    def leave(self, who: SecretKey, group: str = "tea") -> tuple[bool, str]:
        return self.do(who, kinds.LEAVE_REQUEST, group=group)

    def delete(self, who: SecretKey, *ids: str, group: str = "tea") -> tuple[bool, str]:
        return self.do(who, kinds.DELETE_EVENT, *(["e", id_] for id_ in ids), group=group)

    def pin(self, who: SecretKey, *tags: Sequence[str], group: str = "tea") -> tuple[bool, str]:
        return self.do(who, kinds.UPDATE_PINS, *tags, group=group)

    def end(self, who: SecretKey, group: str = "tea") -> tuple[bool, str]:
        return self.do(who, kinds.DELETE_GROUP, group=group)

    def say(self, who: SecretKey, text: str, group: str = "tea") -> tuple[bool, str]:
        return self.do(who, kinds.CHAT, group=group, content=text)

    def do(
        self,
        who: SecretKey | str,
        kind: int,
        *tags: Sequence[str],
        group: str = "tea",
        content: str = "",
        at: int | None = None,
    ) -> tuple[bool, str]:
        """A `nonce` tag makes each event different."""
        number = ["nonce", str(next(_numbers))]
        at = self.now if at is None else at
        return self.send(event(who, kind, ["h", group], *tags, number, at=at, content=content))

    # Judging and storing

    def send(self, sent: Event) -> tuple[bool, str]:
        keep = keep_by_kind(sent.kind)
        candidate = candidate_of(
            sent, keep, MEMORY_SYSTEMS, Sender(self.origin), lambda _url: False
        )
        judged = judge(candidate, self._judged_in(candidate))
        if judged.outcome is not WriteOutcome.STORED:
            return ok_reply(judged.outcome)
        group_id, ruling = candidate.group, judged.ruling
        if ruling is None:
            self._store(sent)
            self._unpin()
            return STORED
        before = self.groups
        gone = {*ruling.removes, *ruling.superseded}
        self.log = [row for row in self.log if row.id not in gone]
        self._store(sent)
        for draft in ruling.automatic:
            self._store(self._signed(draft))
        self.groups = ruling.groups
        for changed in (group_id, *ruling.relatives):
            after = self.groups.get(changed)
            if after is not None:
                self._notify(before.get(changed), after)
        if ruling.ended is not None:
            records = (kinds.CREATE_GROUP, kinds.DELETE_GROUP)
            self.log = [
                row for row in self.log if group_of(row) != ruling.ended or row.kind in records
            ]
        self._unpin()
        return STORED if ruling.reply is None else ok_reply(ruling.reply)

    def rebuilt(self) -> Groups:
        return self.with_last_members(replayed(Groups(), self.log, RELAY))

    def with_last_members(self, groups: Groups) -> Groups:
        """What a store keeps beside its log."""
        return groups.with_last_members(self.groups.ended)

    def mend(self, drafts: Sequence[Draft]) -> None:
        """Store drafts signed by the relay, apply them, and publish notices."""
        before = self.groups
        for draft in drafts:
            mended = self._signed(draft)
            self._store(mended)
            self.groups = replayed(self.groups, [mended], RELAY)
        for group_id, group in self.groups.by_id.items():
            if group is not before.get(group_id):
                self._notify(before.get(group_id), group)

    def forget(self, *rows: Event) -> None:
        """Rows expire or are swept."""
        before = self.groups
        self.log = [row for row in self.log if row not in rows]
        self.groups = groups_without_rows(self.groups, rows)
        for group_id, group in self.groups.by_id.items():
            if group is not before.get(group_id):
                self._notify(before.get(group_id), group)

    def _notify(self, before: Group | None, after: Group) -> None:
        stamped, drafts = notices_for(before, after, self.now)
        self.groups = self.groups.with_group(stamped)
        for draft in drafts:
            self._store(self._signed(draft))

    def _unpin(self) -> None:
        if self.origin is not Origin.WIRE:
            return
        for group in self.groups.by_id.values():
            left = tuple(tag for tag in group.pins if self._is_here((tag[0], tag[1]), group.id))
            if left != group.pins:
                self._notify(group, replace(group, pins=left))

    def _is_here(self, pin: Pin, group: str) -> bool:
        return any(pin in pins_of(row) and _group(row) == group for row in self.log)

    def _signed(self, draft: Draft) -> Event:
        return event(RELAY, draft.kind, *draft.tags, at=draft.created_at, content=draft.content)

    def _store(self, row: Event) -> None:
        assert all(row.id != other.id for other in self.log), "stored twice"
        if class_of(row.kind) in (KindClass.ADDRESSABLE, KindClass.REPLACEABLE):
            slot = _slot(row)
            self.log = [other for other in self.log if _slot(other) != slot]
        self.log.append(row)

    def _judged_in(self, candidate: Candidate) -> judging.World:
        """All of the log as what a store would find; the version that comes last wins."""
        found = Found(len(self.log), group_rows=self.rows_in_group, rows_moving=self.rows_moving)
        for seq, row in enumerate(self.log):
            group, slot = _group(row), slot_of(row, keep_by_kind(row.kind))
            stored = Stored(seq, row, group, slot=slot, version=-1)
            found.rows[row.id] = stored
            if slot is not None:
                found.slots[slot] = stored
            if group is not None:
                for prefix in previous_in(candidate.event):
                    if row.id.startswith(prefix):
                        found.id_prefixes.setdefault((group, prefix), []).append(stored)
                if row.kind not in kinds.GROUP_RECORDS and row.kind not in kinds.GROUP_STATE:
                    found.groups_with_content.add(group)
        policy: Any = _Policy(self.settings)
        return judging.World(policy, self.groups, self.actors, found, RELAY, self.now)

    # For assertions

    @property
    def tea(self) -> Group:
        return self.groups.by_id["tea"]

    def last(self, kind: int, group: str = "tea") -> Event:
        return [row for row in self.log if row.kind == kind and _group(row) == group][-1]

    def kinds_since(self, length: int) -> list[int]:
        """Kinds of the rows stored since the log was this long."""
        return [row.kind for row in self.log[length:]]

    def is_in(self, who: SecretKey, group: str = "tea") -> bool:
        return who.pubkey in self.groups.by_id[group].members


def tea_party(settings: GroupSettings = OPEN, *flags: Flag) -> World:
    """A group "tea" by admin; alice is a member, bob a moderator, owner an owner of the relay."""
    world = World(settings)
    maker = cast.admin if Who.ANYONE in settings.create else cast.owner
    assert world.make(maker, "tea", *([flag.value] for flag in flags)) == STORED
    if maker is cast.owner:
        assert world.put(cast.owner, cast.admin, "admin") == STORED
    assert world.put(cast.admin, cast.alice) == STORED
    assert world.put(cast.admin, cast.bob, "moderator") == STORED
    return world


def _group(row: Event) -> str | None:
    return row.d if row.kind in kinds.GROUP_STATE else row.tag("h")


def _slot(row: Event) -> tuple[str, int, str]:
    return row.pubkey, row.kind, row.d

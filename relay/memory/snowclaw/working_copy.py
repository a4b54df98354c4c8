"""WorkingCopy: an agent's records about users and groups, with its unpublished edits.

A fold of records, for any order of arrival. A change is kept as an edit until it is published: if a
newer version of the record arrives from another program with the same key, the edits are applied to
that version, so that none is lost (S-02, S-10, S-21, S-22, S-31).

A deletion drops the edits made up to its date. An edit is dated after each deletion of its record
that was known when it was made, whatever the clock says.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from relay.errors import Invalid
from relay.memory.bounded import BoundedDict
from relay.memory.draft import Draft
from relay.memory.snowclaw.agent_memory import AgentMemory
from relay.memory.snowclaw.config import DynamicConfig, GroupConfig
from relay.memory.snowclaw.edit_dates import edit_dates, noted_since, noted_until
from relay.memory.snowclaw.edits import EditReaders, Edits
from relay.memory.snowclaw.encryption import is_encrypted
from relay.memory.snowclaw.groups import GroupMemory
from relay.memory.snowclaw.isolation import enters, not_for
from relay.memory.snowclaw.keys import (
    AGENT,
    CONFIG,
    MEMORY,
    KeyStyle,
    OfGroup,
    OfUser,
    group_d,
    hex_of,
    is_private,
    key_of,
    memory_scope,
    private_d,
    user_ds,
)
from relay.memory.snowclaw.rebasing import memory_of
from relay.memory.snowclaw.record_index import RecordIndex, user_key
from relay.memory.snowclaw.records import (
    GroupRecord,
    UserRecord,
    annotated_group,
    annotated_user,
    newest,
    record_draft,
)
from relay.memory.snowclaw.users import UserMemory
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds
from relay.nostr.event import Address, address_of, base_of
from relay.nostr.nip09 import address_hash, named_by, target_name, targets_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from relay.memory.snowclaw.edits import GroupEdit, Names, UserEdit
    from relay.memory.snowclaw.encryption import OwnKey
    from relay.nostr.event import Event

M = TypeVar("M", UserMemory, GroupMemory)
Subject = OfUser | OfGroup
"""The user or group of a record. A user's key is its first 32 hex characters, or 16 if no more is
known."""

_SHORT: Final = 32
_SHORTEST: Final = 16
_MAX_USERS: Final = 50_000
"""Users whose full keys are remembered."""
MAX_SEEN: Final = 10_000
"""Users with a record. Of more, only those are kept of whom something is noted: whoever has a key
can be seen, and keys cost nothing."""
_MAX_DELETIONS: Final = 10_000


class Shown(NamedTuple, Generic[M]):
    """Memory as shown in a context, and its authors."""

    memory: M | None
    author: str | None
    """Public key of another agent, whose record is used because the agent has none; None: the
    agent's."""
    signed: Mapping[str, str]
    """Note of an owner → public key, where the owner signed it."""


class WorkingCopy:
    """The records of one agent; or of an owner, whose records are notes for agents (S-22)."""

    def __init__(
        self,
        agent: str,
        owners: Iterable[str],
        agents: Iterable[str] = (),
        *,
        key: OwnKey | None = None,
        style: KeyStyle = KeyStyle.HEX,
        file: GroupConfig | None = None,
    ) -> None:
        """`agent`: its public key. `agents`: other agents whose records are read too.
        `key`: of `agent`."""
        self.agent = agent
        self.owners = frozenset(owners)
        self._others = frozenset(agents) - {agent} - self.owners
        self._style = style
        self._file = GroupConfig() if file is None else file
        self.config = DynamicConfig(self.owners, self._file)
        self.index = RecordIndex(key)
        """What the relay has, and what waits for it, without edits."""
        self._pubkeys: BoundedDict[str, str] = BoundedDict(_MAX_USERS)
        """First 32 hex characters → public key, where the full key was seen."""
        self._unsaved: dict[Subject, Edits] = {}
        self._to_encrypt: set[Subject] = set()
        self._deleted: BoundedDict[str, int] = BoundedDict(_MAX_DELETIONS)
        """`target_name` of a record → date of its last known deletion."""

    @property
    def authors(self) -> frozenset[str]:
        """The authors whose records are used."""
        return self.owners | self._others | {self.agent}

    # -- events ------------------------------------------------------------------------------------

    def apply(self, event: Event) -> bool:
        """Apply a record or deletion. Whether anything changed."""
        if event.pubkey not in self.authors:
            return False
        if event.kind == kinds.DELETION:
            return self._apply_deletion(event)
        is_record = event.kind == kinds.APP_DATA and event.d.startswith(AGENT)
        if is_record and event.pubkey == self.agent:
            self.drop_sent(event)
        if not is_record or self._is_surplus(event) or not self.index.add(event):
            return False
        self.config = self.config.after(event)
        self.remember_key(user_key(event.d) or "")
        return True

    def _is_surplus(self, event: Event) -> bool:
        """Whether it is the first record of one user too many, and tells only that they were seen.
        While there are edits it is needed: they are made on it."""
        key = user_key(event.d)
        if key is None or not self._is_full or self.index.has_user(key):
            return False
        found = self.read(event)
        is_noted = not isinstance(found, UserRecord) or found.memory.is_noted
        return not is_noted and self._subject_at(event.d) not in self._unsaved

    @property
    def _is_full(self) -> bool:
        return self.index.users + len(self._unsaved) >= MAX_SEEN

    def _apply_deletion(self, event: Event) -> bool:
        removed = self.index.delete(event)
        is_changed = self._removed(removed)
        if event.pubkey == self.agent:
            is_changed |= self._drop_edits(event, removed)
            self._note_deletion(event, removed)
        return is_changed

    def note_deletion(self, event: Event) -> None:
        """One's own, or of a clock that is ahead: it drops no edit, and the next ones are dated
        after it, whatever the clock says."""
        self._note_deletion(event, named_by(event, self.index.events()))

    def _note_deletion(self, deletion: Event, named: Iterable[Event]) -> None:
        names = {target.name for target in targets_of(deletion)}
        self.note_deleted(
            (name, deletion.created_at) for name in names.union(map(address_hash, named))
        )
        for subject in self._subjects_of(deletion, named):
            if subject in self._unsaved:
                self._unsaved[subject].date_after(noted_until(deletion))

    def note_deleted(self, records: Iterable[tuple[str, int]]) -> None:
        """`target_name` and date of deletions that are known from before."""
        for name, until in records:
            self._deleted[name] = max(until, self._deleted.get(name, 0))

    def _drop_edits(self, deletion: Event, removed: Iterable[Event]) -> bool:
        """Drop the edits, up to `noted_until`, of the records that another machine deleted. Whether
        there were any."""
        is_changed = False
        for subject in self._subjects_of(deletion, removed):
            edits = self._unsaved.get(subject)
            if edits is not None:
                is_changed |= edits.drop_until(noted_until(deletion))
                if len(edits) == 0:
                    del self._unsaved[subject]
                    self._to_encrypt.discard(subject)
        return is_changed

    def _subjects_of(self, deletion: Event, named: Iterable[Event]) -> set[Subject]:
        addresses = filter(None, map(address_of, deletion.tag_values("a")))
        ds = {e.d for e in addresses if (e.pubkey, e.kind) == (self.agent, kinds.APP_DATA)}
        found = {self._subject_at(d) for d in ds.union(each.d for each in named)}
        return {subject for subject in found if subject is not None}

    def _made_at(self, subject: Subject, at: int) -> int:
        """The date of an edit, or a version, that is made now: after each known deletion."""
        return max(at, self.deleted_until(self.d_of(subject)) + 1)

    def deleted_until(self, d: str) -> int:
        """Date of the last known deletion of a record, under any form of the key; -1: none."""
        addresses = (Address(self.agent, kinds.APP_DATA, each) for each in self.addresses(d))
        return max(self._deleted.get(target_name(each), -1) for each in addresses)

    def drop(self, events: Iterable[Event]) -> bool:
        """Forget these versions, which the relay no longer gives. Whether anything changed."""
        known = [each for each in events if self.index.at(each.pubkey, each.d) is each]
        for event in known:
            self.index.remove(event)
        return self._removed(known)

    def _removed(self, removed: list[Event]) -> bool:
        if any(deleted.d.startswith(CONFIG) for deleted in removed):
            self.config = DynamicConfig(self.owners, self._file)
            for stored in self.index.events():
                self.config = self.config.after(stored)
        return bool(removed)

    def asked_to_forget(self, request: Event) -> list[Draft]:
        """The kinds 5 that an owner asks the agent for, by one that names its records: a relay lets
        only their author delete them. Empty: it asks for nothing.

        Dated as the request, they are for no later note. Of a request for several records each
        names one: who reads a record would learn of the others. They are the same on each machine
        and at each start, whatever is known there.
        """
        is_request = request.kind == kinds.DELETION and request.pubkey in self.owners
        if not is_request or request.pubkey == self.agent:
            return []
        addresses = [
            ["a", value]
            for value in request.tag_values("a")
            if (named := address_of(value)) is not None
            and (named.pubkey, named.kind) == (self.agent, kinds.APP_DATA)
            and named.d.startswith(AGENT)
        ]
        # By id alone it may be of somebody else's events too.
        known = {each.id for each in self.index.events() if each.pubkey == self.agent}
        ids = [["e", each] for each in request.tag_values("e") if addresses or each in known]
        one = len(addresses) == 1
        names = [[*ids, *addresses]] if one else [[each] for each in (*addresses, *ids)]
        kind = ["k", str(kinds.APP_DATA)]
        return [Draft(kinds.DELETION, [*each, kind], "", request.created_at) for each in names]

    def remember_key(self, key: str) -> None:
        """Remember a full public key. `key`: see `hex_of`."""
        if len(key) == 64:
            self._pubkeys[key[:_SHORT]] = key

    # -- reading -----------------------------------------------------------------------------------

    def subject_of(self, key: str) -> OfUser:
        """`key`: any form of S-01. Raises Invalid."""
        hexed = hex_of(key)
        self.remember_key(hexed)
        if len(hexed) < _SHORT:
            edited = {each.key for each in self._unsaved if isinstance(each, OfUser)}
            known = edited.union(key[:_SHORT] for key in self.index.keys_beginning(hexed))
            longer = {key for key in known if len(key) == _SHORT and key.startswith(hexed)}
            if len(longer) == 1:
                return OfUser(longer.pop())
        return OfUser(hexed[:_SHORT])

    def about(self, d: str) -> Subject | None:
        """The user or group of a record or of private notes; None: neither."""
        return self._subject_at(f"{MEMORY}{d.split(':', 2)[2]}" if is_private(d) else d)

    def has_user(self, pubkey: str) -> bool:
        """Whether there is a memory of a user; unlike `subject_of` this remembers no key."""
        return self.own_user(OfUser(pubkey[:_SHORT])) is not None

    def user(self, key: str, group: str | None = None) -> UserMemory | None:
        """The memory of a user, with the owner's notes. `group`: only what may be used in its
        context (S-33). Raises Invalid for an invalid key."""
        return self.shown_user(key, group).memory

    def shown_user(self, key: str, group: str | None = None) -> Shown[UserMemory]:
        """As `user`, with the authors."""
        return self._shown_user(self.subject_of(key), group)

    def _shown_user(self, subject: OfUser, group: str | None = None) -> Shown[UserMemory]:
        own = self._own(subject)
        memory, author = None, None
        if not isinstance(own, UnreadableRecord) and self._enters(own, group):
            if group is None or self._edits(subject).may_enter(group):
                memory = self._edited_user(subject, own)
            elif isinstance(own, UserRecord):
                memory = own.memory
        if memory is None and own is None:
            found = self._user_records(subject, self._others)
            record = _latest([each for each in found if group is None or enters(each, group)])
            if record is not None:
                memory, author = record.memory, record.event.pubkey
        notes = [
            record
            for owner in sorted(self.owners - {self.agent})
            if (record := _latest(self._user_records(subject, {owner})))
            and self._enters(record, group)
        ]
        private = self.private_notes(subject)
        if not notes and not private:
            return Shown(memory, author, {})
        signed = {text: each.event.pubkey for each in notes for text in each.memory.notes}
        memory = UserMemory() if memory is None else memory
        memory = annotated_user(memory, [each.memory for each in notes]).annotated(*private)
        return Shown(memory, author, signed)

    def group_reading(self, subject: OfUser) -> str | None:
        """The group whose members read the stored record of a user; None: author and owner only."""
        own = self._own(subject)
        return own.event.tag("h") if isinstance(own, UserRecord) else None

    def private_notes(self, subject: OfUser) -> tuple[str, ...]:
        """The owner's notes about a user that are a record apart, which no group reads."""
        event = self.own(private_d(subject))
        found = None if event is None else self.read(event)
        return found.lines if isinstance(found, AgentMemory) else ()

    def group(self, group: str) -> GroupMemory | None:
        """The memory of a group, with the owner's notes."""
        return self.shown_group(group).memory

    def shown_group(self, group: str) -> Shown[GroupMemory]:
        """As `group`, with the authors."""
        subject = OfGroup(group)
        own = self._own(subject)
        memory, author = None, None
        if not isinstance(own, UnreadableRecord):
            memory = self._edited_group(subject, own)
        if memory is None and own is None:
            found = (self._group_record(subject, other) for other in self._others)
            records = [each for each in found if each is not None]
            latest = newest(each.event for each in records)
            for each in records:
                if each.event is latest:
                    memory, author = each.memory, each.event.pubkey
        notes = [
            record
            for owner in sorted(self.owners - {self.agent})
            if (record := self._group_record(subject, owner))
        ]
        if not notes:
            return Shown(memory, author, {})
        signed = {text: each.event.pubkey for each in notes for text in each.memory.notes}
        memory = GroupMemory() if memory is None else memory
        return Shown(annotated_group(memory, [each.memory for each in notes]), author, signed)

    def users(self) -> dict[str, UserMemory]:
        """By the known part of the key: the first 32 or 16 hex characters."""
        known = {key: self._shown_user(OfUser(key)).memory for key in sorted(self._known_keys())}
        return {key: memory for key, memory in known.items() if memory is not None}

    def groups(self) -> dict[str, GroupMemory]:
        """By id."""
        ids = {subject.id for subject in self._unsaved if isinstance(subject, OfGroup)}
        ids |= {
            event.d.removeprefix(group_d(""))
            for event in self.index.events()
            if event.d.startswith(group_d(""))
        }
        known = {id_: self.group(id_) for id_ in sorted(ids)}
        return {id_: memory for id_, memory in known.items() if memory is not None}

    def memories(self, prefix: str = "") -> list[tuple[Event, AgentMemory]]:
        """The agent's own memory whose `<category>:<key>` or key has this prefix, newest first."""
        found = [
            (event, memory)
            for event, memory in self._agent_memories()
            if f"{memory.category}:{memory.key}".startswith(prefix) or memory.key.startswith(prefix)
        ]
        return sorted(found, key=lambda pair: (-pair[0].created_at, pair[0].id))

    def events(self) -> list[Event]:
        """The newest version of each record of all authors."""
        return self.index.events()

    def own(self, d: str) -> Event | None:
        """The agent's own record at an address."""
        return self.index.at(self.agent, d)

    def read(self, event: Event) -> UserRecord | GroupRecord | AgentMemory | UnreadableRecord:
        """Decode (and decrypt) one record."""
        return self.index.read(event)

    def unread(self) -> list[UnreadableRecord]:
        """Records that cannot be read: encrypted or malformed."""
        events = [e for e in self.index.events() if not e.d.startswith(CONFIG)]
        return [
            found for event in events if isinstance(found := self.read(event), UnreadableRecord)
        ]

    # -- edits -------------------------------------------------------------------------------------

    @property
    def unsaved(self) -> int:
        """Number of unpublished changes."""
        return sum(edits.changes for edits in self._unsaved.values())

    def unwritable(self, subject: Subject) -> UnreadableRecord | None:
        """The unreadable stored record that a new version would overwrite, or None."""
        own = self._own(subject)
        return own if isinstance(own, UnreadableRecord) else None

    def edit_user(
        self, subject: OfUser, edit: UserEdit, group: str | None = None, *, at: int
    ) -> None:
        """`group`: whose members may read the record if this is its first version (G-31).
        `at`: Unix seconds."""
        readers = EditReaders(group, self.group_reading(subject), self.is_encrypted(subject))
        at = self._made_at(subject, at)
        self._unsaved.setdefault(subject, Edits()).add_user_edit(edit, at, readers)

    def encrypt(self, subject: OfUser, *, at: int) -> None:
        """From the next version on, which is due even without an edit."""
        self._to_encrypt.add(subject)
        at = self._made_at(subject, at)
        self._unsaved.setdefault(subject, Edits()).add_user_edit(lambda memory: memory, at)

    def edit_group(self, subject: OfGroup, edit: GroupEdit, *, at: int) -> None:
        at = self._made_at(subject, at)
        self._unsaved.setdefault(subject, Edits()).add_group_edit(edit, at)

    def see_user(self, subject: OfUser, at: int, names: Names, group: str | None) -> None:
        """Note a message of a user (S-30), unless there are MAX_SEEN others. `group`: None for a
        direct message."""
        if self._is_full and not (subject in self._unsaved or self.index.has_user(subject.key)):
            return
        self._unsaved.setdefault(subject, Edits()).user_seen(at, names, group)

    def own_user(self, subject: OfUser) -> UserMemory | None:
        """The agent's own memory of a user, without owners' notes; None: none, or unreadable."""
        own = self._own(subject)
        return None if isinstance(own, UnreadableRecord) else self._edited_user(subject, own)

    def own_group(self, subject: OfGroup) -> GroupMemory | None:
        """As `own_user`."""
        own = self._own(subject)
        return None if isinstance(own, UnreadableRecord) else self._edited_group(subject, own)

    def set_members(self, subject: OfGroup, members: tuple[tuple[str, str], ...]) -> None:
        """(npub, name or empty) of each (S-18)."""
        self._unsaved.setdefault(subject, Edits()).group_members(members)

    def see_group(self, subject: OfGroup, at: int) -> None:
        self._unsaved.setdefault(subject, Edits()).group_seen(at)

    def has_edits(self, subject: Subject) -> bool:
        return subject in self._unsaved

    def changed(self) -> list[Subject]:
        """The subjects to publish. Edits without effect are dropped; edits of an unreadable record
        are kept, and those that the readers of the record may not read.
        """
        for subject in list(self._unsaved):
            own = self._own(subject)
            if (
                isinstance(own, (UserRecord, GroupRecord))
                and self._published(subject, own) == own.memory
                and self.is_encrypted(subject) == is_encrypted(own.event)
                and not self._kept_from_readers(subject)
            ):
                del self._unsaved[subject]
        return [subject for subject in self._unsaved if self.unwritable(subject) is None]

    def d_of(self, subject: Subject) -> str:
        """The `d` of the next version (S-02)."""
        if isinstance(subject, OfGroup):
            return group_d(subject.id)
        pubkey = self._pubkeys.get(subject.key)
        key = subject.key if pubkey is None else key_of(pubkey, self._style)
        return f"{MEMORY}npub:{key}"

    def is_encrypted(self, subject: Subject) -> bool:
        """Whether the next version must be: the stored one is, or was when it was edited, or
        `encrypt` was called."""
        own = self._own(subject)
        if subject in self._to_encrypt or self._edits(subject).is_encrypted:
            return True
        return isinstance(own, (UserRecord, GroupRecord)) and is_encrypted(own.event)

    def next_version(self, subject: Subject, at: int) -> Draft:
        """The unencrypted draft with the edits, newer than the version and deletions under another
        form of the key.

        Readers of a first version: a group's members; of a user the owner alone, unless all edits
        named one group. Edits that were not made for the readers stay unsaved; raises Invalid if
        there are no others.
        """
        own = self._own(subject)
        assert not isinstance(own, UnreadableRecord)
        edits = self._unsaved[subject]
        at = self._made_at(subject, at)
        memory = self._published(subject, own)
        d, h = self.d_of(subject), None
        if own is not None:
            h = own.event.tag("h")
            is_same = self.is_encrypted(subject) == is_encrypted(own.event)
            if memory == own.memory and is_same and edits.kept_from(h):
                raise not_for(own.event.d, h)
            if own.event.d != d:
                at = max(at, own.event.created_at + 1)
        else:
            h = subject.id if isinstance(subject, OfGroup) else edits.group
        assert memory is not None
        edits.mark_in_flight(h)
        if isinstance(memory, UserMemory) and memory.first_seen is None:
            since = at if own is None else own.event.created_at
            memory = replace(memory, first_seen=memory.known_since(since))
        draft = record_draft(memory, d, at, h)
        dated = noted_since(None if own is None else own.event, edits.noted_since(at))
        return draft._replace(tags=[*draft.tags, *dated])

    def note_sent(self, version: Event) -> None:
        """The version with the edits in flight is being sent: if the answer does not come, the
        relay may have stored it."""
        subject = self._subject_at(version.d)
        if subject is not None and subject in self._unsaved:
            self._unsaved[subject].note_sent(version.id)

    def drop_sent(self, stored: Event) -> None:
        """Drop the edits in a version that the relay has stored, or that this one was made from."""
        subject = self._subject_at(stored.d) if self._unsaved else None
        edits = None if subject is None else self._unsaved.get(subject)
        if subject is None or edits is None:
            return
        with suppress(Invalid):
            base = base_of(stored)
            edits.drop_sent("" if base is None else base.id)
        edits.drop_sent(stored.id)
        if len(edits) == 0:
            del self._unsaved[subject]

    def saved(self, subject: Subject, event: Event) -> None:
        """The last version was published, or waits together with the version that it is based
        on."""
        self.apply(event)
        edits = self._unsaved.get(subject)
        if edits is not None:
            edits.drop_in_flight()
            if len(edits) == 0:
                del self._unsaved[subject]

    def check_readers(self, subject: Subject) -> None:
        """Raises Invalid if edits are left that the readers of the stored version must not see."""
        own = self._own(subject)
        if own is not None and self._kept_from_readers(subject):
            raise not_for(own.event.d, own.event.tag("h"))

    def kept_back(self) -> Iterator[tuple[Draft, bool, Invalid]]:
        """The edits that the readers of a stored version must not see: each as a first version, for
        a deletion is only for what was noted before it; whether that must be encrypted; and why it
        is not published."""
        for subject in self._unsaved:
            own = self._own(subject)
            if own is None or isinstance(subject, OfGroup):
                continue
            why = not_for(own.event.d, own.event.tag("h"))
            for edit, at, group in self._kept_from_readers(subject):
                draft = record_draft(edit(self._new_user(subject)), own.event.d, at, group)
                yield draft, self.is_encrypted(subject), why

    def forget(self, d: str) -> None:
        """Discard the edits of the record with this `d`, and who may read it: it is deleted."""
        for subject in {*self._unsaved, *self._to_encrypt}:
            own = self._own(subject)
            if d in (self.d_of(subject), None if own is None else own.event.d):
                self._unsaved.pop(subject, None)
                self._to_encrypt.discard(subject)

    # -- versions that waited ----------------------------------------------------------------------

    def current(self, d: str) -> Event | None:
        """The agent's version of a user's or group's record, under any form of the key, or of
        private notes."""
        if is_private(d):
            return self.own(d)
        subject = self._subject_at(d)
        own = None if subject is None else self._own(subject)
        return None if own is None else own.event

    def addresses(self, d: str) -> list[str]:
        """Every known `d` of the record of a user or group (S-02)."""
        key = user_key(d)
        if key is None:
            return [d]
        key = self._pubkeys.get(key[:_SHORT], key)
        forms = user_ds(key) if len(key) == 64 else [f"{MEMORY}npub:{key[:n]}" for n in (32, 16)]
        return sorted({d, *forms})

    def knows_addresses(self, d: str) -> bool:
        """Whether `addresses` has every form: those of 64 digits need the whole key of a user."""
        key = user_key(d)
        return key is None or len(self._pubkeys.get(key[:_SHORT], key)) == 64

    def edit_dates(self, version: Event, base: Event | None) -> dict[str, int]:
        """When each text of the version that is being published was noted. Raises Invalid if one
        of the two cannot be read."""
        at, index, key = version.created_at, self.index, self.index.hash_key
        if is_private(version.d):
            return edit_dates(index.notes(base), (), index.notes(version), at, key)
        mine, before = index.record(version), index.record(base)
        subject = self._subject_at(version.d)
        assert mine is not None
        assert subject is not None
        edits = self._edits(subject)
        if isinstance(mine, UserRecord):
            user = self._new_user(subject) if isinstance(subject, OfUser) else UserMemory()
            return edit_dates(memory_of(before, user), edits.users_in_flight, mine.memory, at, key)
        group = memory_of(before, GroupMemory())
        return edit_dates(group, edits.groups_in_flight, mine.memory, at, key)

    def withdraw(self, version: Event) -> None:
        """Forget a version that is not sent."""
        self.index.remove(version)

    # -- internals ---------------------------------------------------------------------------------

    def _subject_at(self, d: str) -> Subject | None:
        """Whom a record is about, under any form of the key; None: no user or group."""
        try:
            scope = memory_scope(d)
        except Invalid:
            return None
        return self.subject_of(scope.key) if isinstance(scope, OfUser) else scope

    def _own(self, subject: Subject) -> UserRecord | GroupRecord | UnreadableRecord | None:
        if isinstance(subject, OfGroup):
            event = self.own(group_d(subject.id))
        else:
            event = newest(self._of_user(subject, {self.agent}))
        if event is None:
            return None
        found = self.read(event)
        assert not isinstance(found, AgentMemory)
        return found

    def _published(
        self, subject: Subject, own: UserRecord | GroupRecord | None
    ) -> UserMemory | GroupMemory | None:
        """The memory of the next version: with the edits that its readers may read."""
        if isinstance(subject, OfGroup):
            return self._edited_group(subject, own)
        edits = self._edits(subject)
        group = edits.group if own is None else own.event.tag("h")
        return self._with_edits(subject, own, edits.of_user_for(group))

    def _edited_user(
        self, subject: OfUser, own: UserRecord | GroupRecord | None
    ) -> UserMemory | None:
        return self._with_edits(subject, own, self._edits(subject).of_user)

    def _with_edits(
        self,
        subject: OfUser,
        own: UserRecord | GroupRecord | None,
        edits: Iterable[UserEdit],
    ) -> UserMemory | None:
        memory = own.memory if isinstance(own, UserRecord) else None
        for edit in edits:
            memory = edit(self._new_user(subject) if memory is None else memory)
        return memory

    def _edited_group(
        self, subject: OfGroup, own: UserRecord | GroupRecord | None
    ) -> GroupMemory | None:
        memory = own.memory if isinstance(own, GroupRecord) else None
        for edit in self._edits(subject).of_group:
            memory = edit(GroupMemory() if memory is None else memory)
        return memory

    def _kept_from_readers(self, subject: Subject) -> list[tuple[UserEdit, int, str | None]]:
        """The edits that the readers of the stored version must not see."""
        own = self._own(subject)
        return self._edits(subject).kept_from(None if own is None else own.event.tag("h"))

    def _edits(self, subject: Subject) -> Edits:
        return self._unsaved.get(subject, _NO_EDITS)

    def _new_user(self, subject: OfUser) -> UserMemory:
        return UserMemory(is_owner=self._pubkeys.get(subject.key) in self.owners)

    def _of_user(self, subject: OfUser, authors: Collection[str]) -> Iterator[Event]:
        return self.index.of_user(self._pubkeys.get(subject.key, subject.key), authors)

    def _user_records(self, subject: OfUser, authors: Collection[str]) -> list[UserRecord]:
        found = (self.read(event) for event in self._of_user(subject, authors))
        return [record for record in found if isinstance(record, UserRecord)]

    def _group_record(self, subject: OfGroup, author: str) -> GroupRecord | None:
        event = self.index.at(author, group_d(subject.id))
        record = None if event is None else self.read(event)
        is_its = isinstance(record, GroupRecord) and enters(record, subject.id)
        return record if is_its and isinstance(record, GroupRecord) else None

    def _enters(self, record: UserRecord | GroupRecord | None, group: str | None) -> bool:
        return record is None or group is None or enters(record, group)

    def _known_keys(self) -> set[str]:
        keys = {subject.key for subject in self._unsaved if isinstance(subject, OfUser)}
        keys |= {key[:_SHORT] for key in self.index.user_keys()}
        beginnings = {key[:_SHORTEST] for key in keys if len(key) > _SHORTEST}
        return {key for key in keys if key not in beginnings}

    def _agent_memories(self) -> Iterator[tuple[Event, AgentMemory]]:
        for event in self.index.events():
            if event.pubkey == self.agent and not event.d.startswith((MEMORY, CONFIG)):
                found = self.read(event)
                if isinstance(found, AgentMemory):
                    yield event, found


_NO_EDITS: Final = Edits()


def _latest(records: list[UserRecord]) -> UserRecord | None:
    latest = newest(record.event for record in records)
    return next((record for record in records if record.event is latest), None)

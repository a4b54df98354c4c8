"""SnowclawRecords: an agent's records: loaded once, changed in memory, published later.

The part of `Snowclaw` that needs no chat.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from relay.client.clocks import is_ahead
from relay.client.debounce import Debounce
from relay.client.errors import PublishRefused, Unanswered
from relay.client.information import keeps_memory
from relay.client.memory import LeftInCache, MemoryClient
from relay.client.rebase import Rebase
from relay.client.withdrawn import withdrawn
from relay.client.writer import Outcome, Written
from relay.errors import Invalid, RookeryError, UserError
from relay.memory.bounded import BoundedDict
from relay.memory.snowclaw.agent_memory import AgentMemory, agent_memory_draft
from relay.memory.snowclaw.config import HISTORY, MODE, GroupConfig, config_draft, config_of
from relay.memory.snowclaw.edit_dates import noted_since
from relay.memory.snowclaw.encryption import OwnKey, is_encrypted
from relay.memory.snowclaw.encryption import encrypted as encrypted_draft
from relay.memory.snowclaw.keys import (
    AGENT,
    PRIVATE,
    Everywhere,
    KeyStyle,
    OfGroup,
    OfUser,
    agent_d,
    config_d,
    hex_of,
    key_of,
    private_d,
    scope_in,
)
from relay.memory.snowclaw.users import MAX_NOTE
from relay.memory.snowclaw.working_copy import WorkingCopy
from relay.nostr import kinds
from relay.nostr.keys import public_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AsyncExitStack
    from pathlib import Path
    from typing import Self

    from relay.client.client import Client
    from relay.client.debounce import Later
    from relay.memory.draft import Draft
    from relay.memory.snowclaw.config import ConfigRecord, EffectiveConfig, RespondMode
    from relay.memory.snowclaw.groups import GroupMemory
    from relay.memory.snowclaw.keys import Scope
    from relay.memory.snowclaw.users import UserMemory
    from relay.memory.snowclaw.working_copy import Subject
    from relay.memory.unreadable import UnreadableRecord
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

FLUSH_AFTER_S: Final = 300.0
FLUSH_AT: Final = 20
"""Unsaved changes."""

_IDS_AT_ONCE: Final = 100
"""Of a query for deletions."""
_MAX_SENT_AGAIN: Final = 10_000


class _Forgotten(Exception):
    """The record was deleted while it was being published, with the edits of it."""


class SnowclawRecords(MemoryClient):
    """Methods that are not async work on memory only (S-31)."""

    NAME: ClassVar[str] = "snowclaw"

    def __init__(
        self,
        relay: Client | str,
        signer: SecretKey,
        owner: str | Iterable[str],
        file_config: GroupConfig | Mapping[str, object] | None = None,
        *,
        folder: Path | None = None,
        agents: Iterable[str] = (),
        key_style: KeyStyle = KeyStyle.HEX,
        later: Later | None = None,
    ) -> None:
        """`owner`: public key of an owner (npub or 64 hex), or several. `file_config`: defaults for
        what no owner configured (S-17). `agents`: other agents, whose records are read where there
        is none of one's own. `later`: replaces the loop's `call_later`. Raises Invalid."""
        super().__init__(relay, signer, folder=folder)
        owners = [owner] if isinstance(owner, str) else owner
        file = file_config if isinstance(file_config, GroupConfig) else config_of(file_config or {})
        self._own_key = OwnKey.of(signer)
        self._working_copy = WorkingCopy(
            signer.pubkey,
            map(public_key, owners),
            map(public_key, agents),
            key=self._own_key,
            style=key_style,
            file=file,
        )
        self._rebase = Rebase(
            self._client, self._working_copy, self._take, self._sign_record, self._undeleted
        )
        self._is_loaded = False
        self._flush_lock = asyncio.Lock()
        self._obeying = asyncio.Lock()
        self._sent_again: BoundedDict[str, None] = BoundedDict(_MAX_SENT_AGAIN)
        """Ids: what a relay sweeps is not sent to it for ever."""
        self._debounce = Debounce(self._save_quietly, FLUSH_AFTER_S, later)
        self.flush_failure: Exception | None = None
        """Error of the last automatic flush; it is retried."""
        self._refusals: dict[Subject, PublishRefused | Invalid] = {}
        """Of the last flush."""
        self.shortfall = ""
        """Missing relay features that are worked around; empty: none (G-30)."""

    async def _open(self, opening: AsyncExitStack) -> None:
        await super()._open(opening)
        if self._cache is not None:
            known = await asyncio.to_thread(self._cache.deletions, self.pubkey)
            self._working_copy.note_deleted(known)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._debounce.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        """Flushes first: raises what `flush` raises, unless the block ended with an error. Changes
        that the relay refuses, or that the readers of a record must not read, are then in
        `refused`, with a folder."""
        try:
            async with self._flush_lock:  # a flush that runs ends, and knows what is stored
                await self._debounce.stop()
            try:
                if self.unsaved > 0:
                    await self.flush()
            finally:
                await self._keep_back()
        except (RookeryError, OSError):
            if error is None:
                raise
        finally:
            await super().__aexit__(kind, error, trace)

    async def _keep_back(self) -> None:
        """Keep on disk, and send to nobody, what the relay refused, and what the readers of a
        record must not read. Raises SpoolDamaged, OSError."""
        if self._spool is None:
            return
        for subject, refusal in self._refusals.items():
            if isinstance(refusal, PublishRefused) and self._working_copy.has_edits(subject):
                await asyncio.to_thread(self._spool.put_refused, refusal.event, str(refusal))
        for draft, encrypts, why in list(self._working_copy.kept_back()):
            event = self._sign_record(draft, encrypts)
            await asyncio.to_thread(self._spool.put_refused, event, str(why))

    async def load(self, at: Iterable[str] = ()) -> None:
        """Load the records; `at`: only these `d` tags. Raises as `read`."""
        wanted = await self._wanted()
        if addresses := list(at):
            wanted["#d"] = addresses
        async for events in self.read_pages(wanted):
            for event in events:
                self._take(event)
        self._is_loaded = True

    async def _drop_absent(self) -> bool:
        """Drop records of others that the relay no longer gives: a deletion by an admin, or a ban
        of their author, leaves no kind 5. One's own are dropped if a kind 5 names them, or if the
        relay says so: one that lost them gets them again. Whether there were any. Raises
        QueryClosed, Unanswered, OSError."""
        known = list(self._working_copy.events())
        document = await self._client.information_or_empty()
        if not known or not self._client.is_known_as(self.pubkey, document):
            return False
        ids = [event.id for event in known]
        gone = {*await withdrawn(self._client, self.pubkey, document, ids)}
        absent = [event for event in known if event.id in gone]
        own = [event for event in absent if event.pubkey == self.pubkey]
        deletions: list[Event] = []
        for start in range(0, len(own), _IDS_AT_ONCE):
            some = own[start : start + _IDS_AT_ONCE]
            by_oneself = {"kinds": [kinds.DELETION], "authors": [self.pubkey]}
            named = by_oneself | {"#e": [e.id for e in some]}
            addressed = by_oneself | {"#a": [f"{kinds.APP_DATA}:{self.pubkey}:{e.d}" for e in some]}
            async for page in self.all_of(named, addressed):
                deletions += page
        if not self._client.is_known_as(self.pubkey, document):
            return False
        is_changed = self._working_copy.drop(e for e in absent if e.pubkey != self.pubkey)
        if self._cache is not None:
            others = [event for event in absent if event.pubkey != self.pubkey]
            await asyncio.to_thread(self._cache.change, (), others)
        for deletion in deletions:
            is_changed |= await self._take_deletion(deletion)
        if keeps_memory(document):  # another relay may store again what it has deleted
            is_changed |= await self._send_again(own)
        return is_changed

    async def _send_again(self, lost: Iterable[Event]) -> bool:
        """Send one's own that the relay does not give, once each, and drop those that an admin or
        owner has removed: no event tells of a `banevent`. Whether there were any. Raises
        Unanswered, OSError."""
        waiting = [] if self._spool is None else await asyncio.to_thread(self._spool.waiting)
        unsent = {event.id for event in waiting}
        removed: list[Event] = []
        for event in lost:
            is_known = self._working_copy.own(event.d) is event
            if not is_known or event.id in unsent or event.id in self._sent_again:
                continue
            try:
                await self._writer.overtake(event)
            except PublishRefused as refusal:
                if refusal.is_removed:
                    removed.append(event)
                    continue
            self._sent_again[event.id] = None
        if self._cache is not None:
            await asyncio.to_thread(self._cache.change, (), removed)
        return self._working_copy.drop(removed)

    async def _take_deletion(self, deletion: Event) -> bool:
        """`_take` a kind 5; what it deletes leaves the cache too. Raises OSError."""
        known = self._working_copy.events()
        is_changed = self._take(deletion)
        left = {event.id for event in self._working_copy.events()}
        await self._drop_deleted(deletion, [event for event in known if event.id not in left])
        return is_changed

    def _requests(self) -> dict[str, object]:
        """Filter for what owners ask to have deleted."""
        owners = sorted(self._working_copy.owners)
        return {"kinds": [kinds.DELETION], "authors": owners, "#p": [self.pubkey]}

    async def _before_edits(self) -> None:
        """What is noted is not made of what an owner asked to have deleted meanwhile."""
        async for page in self.all_of(self._requests()):
            await self._obey(page)

    async def _obey(self, events: Iterable[Event]) -> None:
        """Delete what owners ask to have deleted. Raises ClientError."""
        drafts = [d for event in events for d in self._working_copy.asked_to_forget(event)]
        # Signed without a note of it: it is for the unsaved changes of before, too.
        asked = [self._signer.sign(*draft) for draft in drafts]
        if not asked:
            return
        async with self._obeying:
            done: set[str] = set()
            for start in range(0, len(asked), _IDS_AT_ONCE):
                some = [deletion.id for deletion in asked[start : start + _IDS_AT_ONCE]]
                done.update(found.id for found in await self._client.query({"ids": some}))
            for deletion in asked:
                if deletion.id in done:
                    continue
                with suppress(OSError):  # the cache tries again
                    await self._take_deletion(deletion)
                with suppress(PublishRefused):  # as often as it is asked
                    await self._writer.overtake(deletion)

    async def _wanted(self) -> dict[str, object]:
        """Filter for all relevant records (S-28)."""
        wanted: dict[str, object] = {
            "kinds": [kinds.APP_DATA],
            "authors": sorted(self._working_copy.authors),
        }
        if await self.offers("prefix_d_kinds", kinds.APP_DATA):
            self.shortfall = ""
            return wanted | {"#d": [AGENT]}
        if self.is_online:
            self.shortfall = (
                f"{self.url} does not support prefix queries: all records of kind 30078 are read"
                " at the start"
            )
        return wanted

    def _take(self, event: Event) -> bool:
        """Whether the event changed anything."""
        self._writer.note_stored(event)  # what is written next is newer, whoever's clock is ahead
        if event.kind == kinds.DELETION and is_ahead(event.created_at, self._client.now()):
            self._working_copy.note_deletion(event)
        return self._working_copy.apply(event)

    # -- reading ----------------------------------------------------------------------------------

    def user(self, key: str) -> UserMemory | None:
        """Memory of a user, with the owner's notes. `key`: npub, or 64, 32 or 16 hex.

        Raises Invalid for an invalid key.
        """
        return self._working_copy.user(key)

    def users(self) -> dict[str, UserMemory]:
        """By the first 32 hex of the key."""
        return self._working_copy.users()

    def group(self, group: str) -> GroupMemory | None:
        """By id, with the owner's notes."""
        return self._working_copy.group(group)

    def groups(self) -> dict[str, GroupMemory]:
        """By id."""
        return self._working_copy.groups()

    def unread(self) -> tuple[UnreadableRecord, ...]:
        """Unreadable records: encrypted with another key, or invalid."""
        return tuple(self._working_copy.unread())

    @property
    def unsaved(self) -> int:
        """Number of unpublished changes."""
        return self._working_copy.unsaved

    # -- changes ----------------------------------------------------------------------------------
    # All raise Invalid for an invalid key or a text of over MAX_NOTE characters, and UserError if
    # the stored record is unreadable, since the next version would lose it, or if another group
    # than the one given reads it.

    def note_user(self, key: str, text: str, *, group: str | None = None) -> None:
        """`group`: its members may read it; None: only the owner, and who reads the stored record.
        Records of one group do not enter the context of others (S-33)."""
        known = self.user(key)
        subject = self._working_copy.subject_of(key)
        left = self._sifted(text, () if known is None else known.notes, subject)
        if left is not None:
            self._edit_user(key, lambda memory: memory.noted(left), group)

    def annotate_user(self, key: str, text: str, *, group: str | None = None) -> None:
        """A note on behalf of the owner: agents mark it as such, an owner writes a record of their
        own (S-22), which agents read as members of `group`."""
        if self.pubkey in self._working_copy.owners:
            self.note_user(key, text, group=group)
        elif (left := self._sifted(text, (), self._working_copy.subject_of(key))) is not None:
            self._edit_user(key, lambda memory: memory.annotated(left), group)

    def encrypt_user(self, key: str) -> None:
        """Encrypt the record of a user from its next version on: only this key reads it (S-12).

        Raises UserError if a group reads the record, as it could no longer; as the other changes.
        """
        if (group := self.group_reading(key)) is not None:
            raise UserError(
                f"the memory of {key} is read by group:{group}, which could not if encrypted"
            )
        subject = self._working_copy.subject_of(key)
        self._refuse_unreadable(subject)
        self._working_copy.encrypt(subject, at=self._client.now())
        self._schedule_save()

    async def annotate_privately(
        self, key: str, text: str, *, encrypted: bool = False
    ) -> Written | None:
        """A note on behalf of the owner that no group reads, in a record apart. Published at once.

        None: the user's record is read by no group, so `annotate_user` does. Raises Invalid; as
        `write`.
        """
        subject = self._working_copy.subject_of(key)
        if self._working_copy.group_reading(subject) is None:
            return None
        d, note = private_d(subject), self._sifted(" ".join(text.split()), (), subject)

        def version(at: int) -> Draft:
            lines = dict.fromkeys((*self._working_copy.private_notes(subject), note or ""))
            draft = agent_memory_draft(
                AgentMemory(f"npub:{subject.key}", "\n".join(filter(None, lines)), PRIVATE), at
            )
            stored = self._working_copy.own(d)
            draft = draft._replace(tags=[*draft.tags, *noted_since(stored, at)])
            encrypts = encrypted or (stored is not None and is_encrypted(stored))
            return self._encrypted(draft) if encrypts else draft

        if note is None:
            return Written(self.signed(version(self._client.now())), Outcome.KEPT_OUT)
        written = await self.write(kinds.APP_DATA, d, version, lambda: self._working_copy.own(d))
        self._take(written.event)
        return written

    def group_reading(self, key: str) -> str | None:
        """The group whose members read this key's own record of a user; None: it has none, or no
        group reads it. Raises Invalid."""
        return self._working_copy.group_reading(self._working_copy.subject_of(key))

    def set_preference(self, key: str, name: str, value: str, *, group: str | None = None) -> None:
        _check_length(name)
        left = self._sifted(value, (), self._working_copy.subject_of(key))
        if left is not None:
            self._edit_user(key, lambda memory: memory.preferring(name, left), group)

    def note_group(self, group: str, text: str) -> None:
        left = self._sifted_of(group, text)
        if left is not None:
            self._edit_group(group, lambda memory: memory.noted(left))

    def annotate_group(self, group: str, text: str) -> None:
        """As `annotate_user`."""
        if self.pubkey in self._working_copy.owners:
            self.note_group(group, text)
        elif (left := self._sifted(text, (), OfGroup(group))) is not None:
            self._edit_group(group, lambda memory: memory.annotated(left))

    def set_purpose(self, group: str, text: str) -> None:
        left = self._sifted(text, (), OfGroup(group))
        if left is not None:
            self._edit_group(group, lambda memory: replace(memory, purpose=left))

    def add_theme(self, group: str, text: str) -> None:
        left = self._sifted_of(group, text)
        if left is not None:
            self._edit_group(group, lambda memory: memory.with_theme(left))

    def add_decision(self, group: str, text: str, at: int | None = None) -> None:
        """`at`: Unix seconds; None: now."""
        when = self._client.now() if at is None else at
        left = self._sifted_of(group, text)
        if left is not None:
            self._edit_group(group, lambda memory: memory.with_decision(left, when))

    def _sifted_of(self, group: str, text: str) -> str | None:
        """As `sift`, beside what is noted of the group."""
        known = self.group(group)
        decided = () if known is None else [decision for decision, _ in known.decisions]
        noted = () if known is None else (*known.notes, *known.themes)
        return self._sifted(text, (*noted, *decided), OfGroup(group))

    def _sifted(self, text: str, known: Iterable[str], about: Subject) -> str | None:
        """As `sift`. Raises Invalid for a text that is too long."""
        _check_length(text)
        return self.sift(text, known, about)

    def _edit_user(
        self, key: str, edit: Callable[[UserMemory], UserMemory], readers: str | None
    ) -> None:
        subject = self._working_copy.subject_of(key)
        self._refuse_unreadable(subject)
        reading = self._working_copy.group_reading(subject)
        if readers is not None and reading not in (None, readers):
            raise UserError(
                f"the memory of {key} is read by group:{reading}, not by group:{readers}"
            )
        self._working_copy.edit_user(subject, edit, readers, at=self._client.now())
        self._schedule_save()

    def _edit_group(self, group: str, edit: Callable[[GroupMemory], GroupMemory]) -> None:
        if group == "":
            raise Invalid("a group must have an id")
        self._refuse_unreadable(OfGroup(group))
        self._working_copy.edit_group(OfGroup(group), edit, at=self._client.now())
        self._schedule_save()

    def _refuse_unreadable(self, subject: Subject) -> None:
        unread = self._working_copy.unwritable(subject)
        if unread is not None:
            raise UserError(
                f"event {unread.event.id[:12]}… at {unread.event.d} would be overwritten:"
                f" {unread.why}"
            )

    # -- publishing -------------------------------------------------------------------------------

    def _schedule_save(self) -> None:
        if self.unsaved >= FLUSH_AT and self.flush_failure is None:
            self._debounce.now()
        elif self.unsaved > 0:
            self._debounce.soon()

    async def _save_quietly(self) -> None:
        try:
            await self.flush()
        except (RookeryError, OSError) as failure:
            self.flush_failure = failure
            self._debounce.soon()

    async def flush(self) -> tuple[Written, ...]:
        """Publish one event per changed record; returns what was published.

        Refused records stay unsaved; others are published. Raises PublishRefused; Invalid if a
        group has begun to read a record and must not read a change of it, which stays unsaved: both
        for any record, see `refusal_of`; Unanswered (without a folder); SpoolFull, SpoolDamaged,
        OSError.
        """
        async with self._flush_lock:
            self._debounce.clear()
            self._refusals.clear()
            if self._spool is None and not self.is_online:
                raise Unanswered(f"{self.url} is unreachable; {self.unsaved} changes are not saved")
            if not self._is_loaded:
                await self.load()  # stored versions would be lost otherwise
            written: list[Written] = []
            refusal: PublishRefused | Invalid | None = None
            for subject in self._working_copy.changed():
                try:
                    written.append(await self._save(subject))
                    self._working_copy.check_readers(subject)
                except _Forgotten:
                    continue
                except (PublishRefused, Invalid) as refused:
                    refusal = self._refusals[subject] = refused
            if self._cache is not None and self.is_online and written:
                await self.read(await self._wanted())  # updates the cache
            if refusal is not None:
                raise refusal
            self.flush_failure = None
            return tuple(written)

    def refusal_of(self, key: str) -> PublishRefused | Invalid | None:
        """Why the last `flush` left changes of a record unsaved; None: it did not. `key`: of a
        user, or `group:<id>`. Raises Invalid."""
        group = key.removeprefix("group:")
        return self._refusals.get(
            self._working_copy.subject_of(key) if group == key else OfGroup(group)
        )

    async def _save(self, subject: Subject) -> Written:
        """Raises _Forgotten; as `write`."""
        # Also if the relay says that the encrypted version is deleted: the edits are of before.
        was_encrypted = self._working_copy.is_encrypted(subject)

        def version(at: int) -> Draft:
            if not self._working_copy.has_edits(subject):
                raise _Forgotten
            draft = self._working_copy.next_version(subject, at)
            encrypts = was_encrypted or self._working_copy.is_encrypted(subject)
            return self._encrypted(draft) if encrypts else draft

        d = self._working_copy.d_of(subject)

        def base() -> Event | None:
            # It may have been made of the version under another form of the user's key.
            return self._working_copy.own(d) or self._working_copy.current(d)

        written = await self.write(kinds.APP_DATA, d, version, base)
        self._working_copy.saved(subject, written.event)
        return written

    def _encrypted(self, draft: Draft) -> Draft:
        return encrypted_draft(draft, self._own_key, secrets.token_bytes(32))

    def _sign_record(self, draft: Draft, encrypted: bool) -> Event:  # noqa: FBT001  a callback
        return self.signed(self._encrypted(draft) if encrypted else draft)

    async def forget(self, d: str) -> Written | None:
        """Delete one's own record at an address, and unsaved changes of it (S-25). A first version
        that is being flushed is deleted after that.

        None: there was none. Raises as `delete`.
        """
        if not self._is_loaded:
            await self.load()
        self._working_copy.forget(d)
        event = self._working_copy.own(d)
        if event is None:
            async with self._flush_lock:  # or a first version that is on its way would stay
                event = self._working_copy.own(d)
        if event is None:
            return None
        try:
            written = await self.delete([event])
        except LeftInCache as left:
            self._take(left.written.event)
            raise
        self._take(written.event)
        return written

    # -- configuration ----------------------------------------------------------------------------

    def config(self, group: str | None = None, npub: str | None = None) -> EffectiveConfig:
        """Effective configuration of a group and user, and its sources (S-17). Raises Invalid."""
        return self._working_copy.config.effective(group, None if npub is None else hex_of(npub))

    def respond_mode(self, group: str | None = None, npub: str | None = None) -> RespondMode:
        return self.config(group, npub).respond_mode

    async def set_config(
        self,
        scope: str | Scope,
        *,
        respond_mode: str | None = None,
        context_history: int | str | None = None,
    ) -> Written:
        """`scope`: `global`, `group:<id>` or `npub:<key>`. Values not named are kept.

        Raises UserError before sending if this is no owner's key (S-20); Invalid; as `write`.
        """
        changes = config_of({MODE: respond_mode, HISTORY: context_history})
        at_scope, _ = await self._stored_config(scope)
        return await self._write_config(at_scope, changes)

    async def unset_config(
        self, scope: str | Scope, names: Collection[str] = (MODE, HISTORY)
    ) -> Written | None:
        """Remove values, so that those of the next scope apply. None: the scope sets none of them.

        Raises as `set_config`.
        """
        at_scope, stored = await self._stored_config(scope)
        if stored is None or all(getattr(stored.config, name) is None for name in names):
            return None
        return await self._write_config(at_scope, GroupConfig(), names)

    def configs(self) -> list[ConfigRecord]:
        """The owners' configuration of every scope that sets a value, by precedence (S-17)."""
        of_kind = (OfUser, OfGroup, Everywhere)
        config = self._working_copy.config
        found = [
            record
            for record in config.records.values()
            if record.config != GroupConfig()
            and (
                not isinstance(record.scope, OfUser)
                or config.of_user(hex_of(record.scope.key)) is record
            )
        ]
        return sorted(found, key=lambda each: (of_kind.index(type(each.scope)), each.event.d))

    async def _stored_config(self, scope: str | Scope) -> tuple[Scope, ConfigRecord | None]:
        """The scope as it is written, and its configuration. Raises UserError; as `read`."""
        if self.pubkey not in self._working_copy.owners:
            raise UserError(
                f"restricted: only an owner may write config; {self._signer.npub} is not the"
                " owner's key"
            )
        at_scope = scope_in(scope) if isinstance(scope, str) else scope
        await self.load()  # the values that are kept may have been changed elsewhere since
        stored = self._config_at(at_scope)
        if isinstance(at_scope, OfUser):
            key = hex_of(at_scope.key)
            return OfUser(key_of(key) if len(key) == 64 else key), stored
        return at_scope, stored

    def _config_at(self, scope: Scope) -> ConfigRecord | None:
        """The configuration of a scope; of a user under any form of the key."""
        config = self._working_copy.config
        if isinstance(scope, OfUser):
            return config.of_user(hex_of(scope.key))
        return config.at(scope)

    async def _write_config(
        self, scope: Scope, changes: GroupConfig, unset: Collection[str] = ()
    ) -> Written:
        d = config_d(scope)

        def version(at: int) -> Draft:
            stored = self._config_at(scope)
            newer = at if stored is None else max(at, stored.event.created_at + 1)
            return config_draft(scope, changes, stored, newer, unset)

        written = await self.write(kinds.APP_DATA, d, version, lambda: self._working_copy.own(d))
        self._take(written.event)
        return written

    # -- one's own memory -------------------------------------------------------------------------

    async def store(
        self,
        key: str,
        text: str,
        category: str = "core",
        session: str | None = None,
        encrypted: bool = False,  # noqa: FBT001, FBT002  the order of the statement
    ) -> Written:
        """Published at once. Raises Invalid for an unknown category; as `write`."""
        sifted = self.sift(text)
        memory = AgentMemory(key, text if sifted is None else sifted, category, session)

        def version(at: int) -> Draft:
            draft = agent_memory_draft(memory, at)
            return self._encrypted(draft) if encrypted else draft

        if sifted is None:
            return Written(self.signed(version(self._client.now())), Outcome.KEPT_OUT)
        written = await self.write(kinds.APP_DATA, agent_d(category, key), version)
        self._take(written.event)
        return written

    def get(self, key: str, category: str = "core") -> AgentMemory | None:
        """None if missing or unreadable: see `unread`. Raises Invalid."""
        event = self._working_copy.own(agent_d(category, key))
        found = None if event is None else self._working_copy.read(event)
        return found if isinstance(found, AgentMemory) else None

    def list(self, prefix: str = "") -> tuple[AgentMemory, ...]:
        """The texts whose key, or `<category>:<key>`, has this prefix, newest first."""
        return tuple(memory for _, memory in self._working_copy.memories(prefix))


def _check_length(text: str) -> None:
    """Raises Invalid."""
    if len(text) > MAX_NOTE:
        raise Invalid(f"a text of {len(text)} characters, at most {MAX_NOTE} allowed")

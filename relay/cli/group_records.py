"""Counts what the group records (kinds 9000 to 9022) of an import or sync would change, before it
begins."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final

import orjson

from relay.cli.humanize import counted
from relay.cli.import_lines import MAX_LINE
from relay.client.sync import groups_in
from relay.errors import Invalid, UserError
from relay.nostr import kinds
from relay.nostr.event import event_from, is_hex64
from relay.nostr.nip29 import uuid_from

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAY_BE_ONE: Final = re.compile(rb'"kind"\s*:\s*90[012]|\\u').search
"""On every line of a file: parsing each would take longer. In a name of JSON an escaped letter is
`\\u` and four digits."""
_MAX_NAMED: Final = 10
"""Ids of groups listed in the text."""
_MAX_KEPT: Final = 10_000
"""Ids kept of created groups, and of deleted ones: the file may come from somebody else."""
_MAX_ID: Final = 64
"""Characters. As `MAX_ID_CHARS` of the relay, which refuses longer ones."""


@dataclass(slots=True)
class GroupRecords:
    """Counts of group records by their effects. The rules of groups may refuse some of them."""

    of_kind: Counter[int] = field(default_factory=Counter)
    created: set[str] = field(default_factory=set)
    """At most 10,000 ids, as in `deleted`."""
    deleted: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    """Of `created`: those of which another record came before the first 9007."""
    beyond: set[int] = field(default_factory=set)
    """Kinds that name more groups than are kept."""
    added: int = 0
    removed: int = 0
    events: int = 0
    """Number of events to be deleted."""
    made: dict[str, set[str]] = field(default_factory=dict)
    """Of the 9007 of a file, as `groups_in` gives it; at most 10,000 groups and ids."""
    _seen: set[str] = field(default_factory=set)
    """Groups with other records than a 9007; at most 10,000."""
    _makings: int = 0
    """Number of 9007 in `made`."""

    def add(self, kind: int, tags: Sequence[list[str]], event_id: str) -> None:
        if kind not in kinds.GROUP_RECORDS:
            return
        self.of_kind[kind] += 1
        named = [(tag[0], tag[1]) for tag in tags if len(tag) > 1]
        values = Counter(name for name, _ in named)
        group = _group_of(tags)
        if kind == kinds.CREATE_GROUP and not group and "h" not in values and is_hex64(event_id):
            group = uuid_from(event_id)
        if kind == kinds.CREATE_GROUP:
            if group in self._seen and group not in self.created:
                self.late.add(group)
        elif len(self._seen) < _MAX_KEPT:
            self._seen.add(group)
        match kind:
            case kinds.CREATE_GROUP:
                self._keep(kind, self.created, group)
            case kinds.DELETE_GROUP:
                self._keep(kind, self.deleted, group)
            case kinds.PUT_USER:
                self.added += values["p"]
            case kinds.REMOVE_USER:
                self.removed += values["p"]
            case kinds.DELETE_EVENT:
                self.events += values["e"]
            case _:
                pass

    def _keep(self, kind: int, groups: set[str], group: str) -> None:
        if not group or group in groups:
            return
        if len(groups) < _MAX_KEPT:
            groups.add(group)
        else:
            self.beyond.add(kind)

    def add_lines(self, source: IO[bytes]) -> int:
        """Count the group records in the rest of a file; returns the number of lines that are not
        blank."""
        lines = 0
        starts_line = True
        while text := source.readline(MAX_LINE + 1):
            if starts_line and text.strip():
                lines += 1
                if text.endswith(b"\n") or len(text) <= MAX_LINE:
                    self._add_line(text)
            starts_line = text.endswith(b"\n")
        return lines

    def _add_line(self, text: bytes) -> None:
        if _MAY_BE_ONE(text) is None:
            return
        try:
            fields = orjson.loads(text.removeprefix(b"\xef\xbb\xbf"))
        except orjson.JSONDecodeError:
            return
        if isinstance(fields, dict) and isinstance(fields.get("kind"), int):
            tags = fields.get("tags")
            listed = tags if isinstance(tags, list) else []
            id_ = fields.get("id")
            named = id_ if isinstance(id_, str) else ""
            self.add(fields["kind"], [tag for tag in listed if _is_tag(tag)], named)
            if fields["kind"] == kinds.CREATE_GROUP and self._makings < _MAX_KEPT:
                self._note_making(fields)

    def _note_making(self, fields: object) -> None:
        try:
            found = groups_in([event_from(fields)])
        except Invalid:
            return
        for group, ids in found.items():
            if len(group) <= _MAX_ID:
                self._makings += 1
                self.made.setdefault(group, set()).update(ids)

    def check_order(self, name: str) -> None:
        """Raises UserError if a group would be without its flags until a later line."""
        if self.late:
            raise UserError(
                f"{name} has newer events before older ones: {counted(len(self.late), 'group')}"
                f" ({_listed(self.late)}) would be public until a later line makes it private;"
                " put the oldest first, as `tac` does"
            )

    def __bool__(self) -> bool:
        return bool(self.of_kind)

    def __str__(self) -> str:
        """`1 × 9000, 1 × 9008; they delete 1 group (tea), add 1 member`"""
        counts = ", ".join(f"{count} × {kind}" for kind, count in sorted(self.of_kind.items()))
        effects = [
            f"{verb} {'over ' * (kind in self.beyond)}{counted(len(groups), 'group')}"
            f" ({_listed(groups)})"
            for verb, kind, groups in (
                ("create", kinds.CREATE_GROUP, self.created),
                ("delete", kinds.DELETE_GROUP, self.deleted),
            )
            if groups
        ]
        effects += [
            f"{verb} {counted(number, what)}"
            for verb, number, what in (
                ("add", self.added, "member"),
                ("remove", self.removed, "member"),
                ("delete", self.events, "event"),
            )
            if number
        ]
        return f"{counts}; they {', '.join(effects)}" if effects else counts


def _group_of(tags: Sequence[list[str]]) -> str:
    """The first `h`; empty: it has none that the relay would take."""
    first = next((tag for tag in tags if tag and tag[0] == "h"), [])
    group = first[1] if len(first) > 1 else ""
    return group if len(group) <= _MAX_ID else ""


def _is_tag(tag: object) -> bool:
    return isinstance(tag, list) and all(isinstance(value, str) for value in tag)


def _listed(groups: set[str]) -> str:
    named = sorted(groups)[:_MAX_NAMED]
    return ", ".join([*named, "…"] if len(groups) > _MAX_NAMED else named)

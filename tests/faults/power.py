"""What a power failure may leave of files, made from a record of what was written and synced.

A write that no sync of its file followed is on the disk whole, in part, or not at all, whatever
came after it: each sector of 512 bytes holds any of the contents it had since the last sync, the
file has any of the sizes it had. `SQLITE_IOCAP_POWERSAFE_OVERWRITE`, which SQLite assumes on Unix,
is assumed here too: a write does not damage the bytes beside it. Files survive a power failure
independently of each other; a deletion is undone until something in its folder is synced.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from tests.faults.vfs import Call, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

SECTOR: Final = 512


class Loss(Enum):
    """What becomes of writes that were not synced."""

    ALL = "lost"
    NONE = "kept"
    SOME = "some lost"
    OLDEST = "the oldest lost"
    TORN = "torn"


class _File:
    def __init__(self, synced: bytes | None = None, pending: Sequence[Step] = ()) -> None:
        self.synced = synced
        """None: not there."""
        self.pending = list(pending)

    @property
    def is_deleted(self) -> bool:
        return bool(self.pending) and self.pending[-1].call is Call.DELETE

    def take(self, step: Step) -> None:
        if step.call is Call.SYNC:
            self.synced = None if self.is_deleted else _after(self.synced, self.pending) or b""
            self.pending = []
        else:
            self.pending.append(step)

    def left(self, loss: Loss, chance: Random) -> bytes | None:
        if loss is Loss.ALL:
            return self.synced
        emptied = [at for at, step in enumerate(self.pending) if _empties(step)]
        if not emptied:
            return _File(self.synced, self.pending)._written(loss, chance)
        # What was there, or what was made after that: never some of both. A file system gives back
        # the blocks of a file that is deleted, or truncated to nothing, in one step.
        if loss is not Loss.NONE and chance.random() < 0.5:
            return _File(self.synced, self.pending[: emptied[0]])._written(loss, chance)
        last = emptied[-1]
        base = None if self.pending[last].call is Call.DELETE else b""
        return _File(base, self.pending[last + 1 :])._written(loss, chance)

    def _written(self, loss: Loss, chance: Random) -> bytes | None:
        match loss:
            case Loss.ALL | Loss.NONE:
                return _after(self.synced, self.pending)
            case Loss.SOME:
                return _after(self.synced, [step for step in self.pending if chance.random() < 0.5])
            case Loss.OLDEST:
                return _after(self.synced, self.pending[chance.randint(0, len(self.pending)) :])
            case Loss.TORN:
                return self._torn(chance)

    def _torn(self, chance: Random) -> bytes | None:
        if not self.pending:
            return self.synced
        first = self.synced or b""
        now, sizes = bytearray(first), [len(first)]
        contents: dict[int, list[bytes]] = {}
        for step in self.pending:
            before = len(now)
            _apply(now, step)
            begin, end = step.offset, step.offset + len(step.data)
            if step.call is not Call.WRITE:
                begin, end = min(len(now), before), max(len(now), before)
            begin = min(begin, before)
            for at in range(begin - begin % SECTOR, end, SECTOR):
                versions = contents.setdefault(at, [_sector(first, at)])
                versions.append(_sector(now, at))
            sizes.append(len(now))
        left = bytearray(first.ljust(max(sizes), b"\0"))
        for at, versions in contents.items():
            left[at : at + SECTOR] = chance.choice(versions)
        return bytes(left[: chance.choice([sizes[-1], chance.choice(sizes)])])


class Platter:
    """Takes the steps of a record one by one; `left` at any moment."""

    def __init__(self, files: Mapping[str, bytes] | None = None) -> None:
        """With what is on the disk before the first step."""
        self._files = {path: _File(content) for path, content in (files or {}).items()}

    def take(self, step: Step) -> None:
        if step.call in (Call.ACK, Call.READ):
            return
        file = self._files.setdefault(step.path, _File())
        if step.call is Call.SYNC and (file.synced is None or file.is_deleted):
            for other in self._files.values():
                if other.is_deleted:
                    other.take(Step(Call.SYNC, ""))
        file.take(step)

    def left(self, loss: Loss, chance: Random) -> Mapping[str, bytes]:
        """Path → content, of the files that are there."""
        found = ((path, file.left(loss, chance)) for path, file in self._files.items())
        return {path: content for path, content in found if content is not None}


def _empties(step: Step) -> bool:
    return step.call is Call.DELETE or (step.call is Call.TRUNCATE and step.offset == 0)


def _after(content: bytes | None, steps: list[Step]) -> bytes | None:
    now = None if content is None else bytearray(content)
    for step in steps:
        if step.call is Call.DELETE:
            now = None
        else:
            now = bytearray() if now is None else now
            _apply(now, step)
    return None if now is None else bytes(now)


def _apply(content: bytearray, step: Step) -> None:
    match step.call:
        case Call.WRITE:
            if len(content) < step.offset:
                content.extend(bytes(step.offset - len(content)))
            content[step.offset : step.offset + len(step.data)] = step.data
        case Call.TRUNCATE:
            del content[step.offset :]
            content.extend(bytes(step.offset - len(content)))
        case Call.DELETE:
            content.clear()
        case _:
            raise AssertionError(step.call)


def _sector(content: bytes | bytearray, at: int) -> bytes:
    return bytes(content[at : at + SECTOR]).ljust(SECTOR, b"\0")

"""An edit of a policy file in the console: what is wrong with it, what it changes, the saving.

Invariants: a file is saved whole, after a check without faults of all files with it. No edit adds
or changes a plug-in, which runs programs on the machine. Everything here blocks.
"""

from __future__ import annotations

import os
import re
from difflib import unified_diff
from hashlib import sha256
from itertools import islice
from stat import S_IMODE
from typing import TYPE_CHECKING, Final, NamedTuple

from policies.lint import warnings_of
from policies.load import load
from relay.cli.policy.access_changes import access_changes
from relay.cli.policy.check import left_open
from relay.errors import ConfigFaults, Invalid
from relay.files import content_of, replace_own_file, sync

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from policies import PolicySet
    from relay.errors import Fault

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}\.toml").fullmatch
_MAX_CHARS: Final = 100_000
_MAX_DIFF: Final = 1_000
"""Lines."""


class Edit(NamedTuple):
    """A checked one."""

    text: str
    """As it would be saved."""
    before: str
    """Hash of the file as it is; of nothing for a new one."""
    faults: Sequence[str]
    """Faults that prevent saving."""
    warnings: Sequence[str]
    access: Sequence[str]
    """Who may do what since that could not before, and the reverse."""
    diff: Sequence[str]


def new_file(folder: Path, name: str) -> Path:
    """Raises Invalid for a name that no file made here has."""
    if _NAME(name) is None:
        raise Invalid("name: must be such as 50-own.toml: a-z, 0-9, - and _, then .toml")
    return folder / name


def checked(path: Path, text: str, folder: Path, policy: PolicySet, owner: str) -> Edit:
    """`folder`: of the policies; `policy`: in force. `owner`: who edits.

    Raises Invalid for a file that cannot be edited here.
    """
    stored = _stored(path, folder)
    text = text.replace("\r\n", "\n").rstrip("\n") + "\n"
    if len(text) > _MAX_CHARS:
        raise Invalid(f"text: has more than {_MAX_CHARS} characters")
    faults: list[str] = []
    warnings: list[str] = []
    access: list[str] = []
    try:
        found = load(folder, policy.systems, policy.actors.relay, {path: _bytes(text)})
    except ConfigFaults as wrong:
        faults += [_line(each, folder) for each in wrong.faults]
    else:
        if found.plugins != policy.plugins:
            faults.append("a plug-in runs programs: change it on the machine of the relay")
        warnings += [*(_line(each, folder) for each in warnings_of(found)), *left_open(found)]
        access += access_changes(policy, found)
        if owner not in found.actors.owners:
            access.append("your key is no owner of the relay any more")
    lines = unified_diff(
        stored.decode("utf-8", "replace").splitlines(), text.splitlines(), lineterm=""
    )
    diff = [*islice(lines, 2, _MAX_DIFF)]
    return Edit(text, sha256(stored).hexdigest(), faults, warnings, access, diff)


def save(edit: Edit, path: Path, before: str) -> None:
    """Raises Invalid for an edit with faults, or when the file is not what it was `before`."""
    if edit.faults:
        raise Invalid(edit.faults[0])
    try:
        now = sha256(content_of(path) if path.exists() else b"").hexdigest()
        if not before == edit.before == now:
            raise Invalid("the file was changed meanwhile: load it again")
        mode = S_IMODE(path.stat().st_mode) if path.exists() else 0o600
        replace_own_file(path, _bytes(edit.text), mode)
        sync(path.parent)
    except OSError as error:
        raise Invalid(f"the file cannot be written: {error.strerror or error}") from None


def _stored(path: Path, folder: Path) -> bytes:
    """Raises Invalid."""
    try:
        if path.is_symlink() or not path.resolve().is_relative_to(folder.resolve()):
            raise Invalid("name: is a link, or outside of the folder of the policies")
        if not os.access(path.parent, os.W_OK):
            raise Invalid("name: the relay may not write into the folder of the policies")
        return content_of(path) if path.exists() else b""
    except OSError as error:
        raise Invalid(f"name: cannot be read: {error.strerror or error}") from None


def _line(fault: Fault, folder: Path) -> str:
    return str(fault).removeprefix(f"{folder}/")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")

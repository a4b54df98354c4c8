"""The files of a policy folder as one set: reading, writing and replacing a folder.

Invariant: a folder is written whole beside its place and then renamed. Everything here blocks.
"""

from __future__ import annotations

import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from relay.errors import Fault, Invalid, UserError
from relay.files import content_of, make_private, replace_own_file, sync
from relay.storage.policy_versions import MAX_BYTES, MAX_FILES, packed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from policies import PolicySet
    from relay.storage.policy_versions import PolicyVersion

_NOTE: Final = ".version.json"
_ENDINGS: Final = (".toml", ".txt", ".keys")
_READ_BY_TOOLS: Final = ("requirements", "constraints", "cmakelists")
"""In names of text files: pip would install packages with the names of keys."""


class Note(msgspec.Struct, frozen=True):
    """A file in the folder: the version that its files come from, or were pushed as."""

    version: int
    sha256: str
    files: list[str]


def files_of(folder: Path, policy: PolicySet) -> dict[str, bytes]:
    """All files that `policy` was read from, except packaged ones. Raises UserError."""
    own = [Path(each) for each in (*policy.files, *policy.key_files)]
    return _read(folder, [path for path in own if path.is_relative_to(folder)])


def _read(folder: Path, paths: Iterable[Path]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = MAX_BYTES
    for path in dict.fromkeys(paths):
        try:
            with path.open("rb") as file:
                content = file.read(left + 1)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
        left -= len(content)
        if left < 0 or len(found) == MAX_FILES:
            raise UserError(
                f"{folder} has more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB: too much for a"
                " version"
            )
        found[path.relative_to(folder).as_posix()] = content
    return found


def plugin_faults(policy: PolicySet) -> list[Fault]:
    """Policies of the database may have none."""
    return [
        Fault(
            each.place.file,
            each.place.line,
            f'plug-in "{each.name}": whoever may write to the database would run programs on every'
            " relay; keep policies with plug-ins in the folder of each relay",
        )
        for each in policy.plugins
    ]


def name_faults(names: Iterable[str], folder: str) -> list[Fault]:
    """Names that no push or pull takes: no program that works in a folder of policies (git, Python,
    CI) may take a file from the database for one of its own. `folder`: its name in the faults."""
    found = []
    for name in names:
        last = name.rpartition("/")[2].lower()
        if any(part.startswith(".") for part in name.split("/")):
            why = "no part of it may begin with a dot"
        elif not last.endswith(_ENDINGS):
            why = "a file of keys must end with .txt or .keys"
        elif not last.endswith(".toml") and any(word in last for word in _READ_BY_TOOLS):
            why = "other programs read files of this name"
        else:
            continue
        text = f"rename it, and where policies name it: of files in the database, {why}"
        found.append(Fault(f"{folder}/{name}", 0, text))
    return found


def digest_of(files: Mapping[str, bytes]) -> str:
    """As `PolicyVersion.sha256`. Raises UserError."""
    try:
        return sha256(packed(files)).hexdigest()
    except Invalid as wrong:
        raise UserError(wrong.text) from None


def note_of(folder: Path) -> Note | None:
    """None: the files belong to no version. Raises UserError."""
    try:
        noted = msgspec.json.decode(content_of(folder / _NOTE), type=Note)
        packed(dict.fromkeys(noted.files, b""))  # whoever made the folder may have written it
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, Invalid) as error:
        raise UserError(f"{folder / _NOTE} cannot be read, delete it: {error}") from None
    return noted


def note(folder: Path, version: PolicyVersion, files: Iterable[str]) -> None:
    """Raises OSError."""
    text = msgspec.json.encode(Note(version.number, version.sha256, sorted(files)))
    replace_own_file(folder / _NOTE, text + b"\n")


def has_changes(folder: Path) -> bool:
    """Whether its policy files differ from those of the version in its note."""
    files = set(_policy_files(folder))
    noted = note_of(folder)
    if noted is None:
        return bool(files)
    there = {path for path in (folder / name for name in noted.files) if path.is_file()}
    return digest_of(_read(folder, files | there)) != noted.sha256


class Changes(NamedTuple):
    """What `replace_folder` does to the files of a folder."""

    new: list[str]
    replaced: list[str]
    """With other content."""
    removed: list[str]
    foreign: list[str]
    """Those of `replaced` that are no policy files, and that no push or pull has noted."""


def changes_of(folder: Path, files: Mapping[str, bytes]) -> Changes:
    """Raises UserError."""
    noted = note_of(folder)
    own = {path.name for path in _policy_files(folder)}
    own.update(noted.files if noted is not None else ())
    there = {name for name in own | files.keys() if os.path.lexists(folder / name)}
    replaced = [name for name in files if name in there and not _holds(folder / name, files[name])]
    return Changes(
        new=sorted(files.keys() - there),
        replaced=sorted(replaced),
        removed=sorted(there - files.keys()),
        foreign=sorted(set(replaced) - own),
    )


def _holds(path: Path, content: bytes) -> bool:
    try:
        if path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(content) + 1) == content
    except OSError:
        return False


def _policy_files(folder: Path) -> list[Path]:
    """Files that a relay reads even if no other file names them."""
    return [path for path in folder.glob("*.toml") if not path.name.startswith(".")]


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """A new folder with these files, and nothing more. Raises OSError."""
    made = _beside(folder, "new")
    make_private(made)
    _fill(made, files)
    made.rename(folder)
    sync(folder.parent)


def replace_folder(folder: Path, files: Mapping[str, bytes], version: PolicyVersion) -> None:
    """Replace the policy files of a folder, which may be missing, by these. Other files stay.
    Raises OSError, UserError; then the folder is unchanged."""
    folder = folder.resolve()
    made, before = _beside(folder, "new"), folder.with_name(f".{folder.name}.before")
    if before.exists() and not folder.exists():  # it was interrupted between the two
        before.rename(folder)
    try:
        if folder.exists():
            _copy_rest(folder, made)
        else:
            make_private(made)
        _fill(made, files)
        note(made, version, files)
        sync(made)
        _put_in_place(made, folder, before)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    sync(folder.parent)


def _copy_rest(folder: Path, made: Path) -> None:
    """Copy everything except its policy files."""
    gone = [path.name for path in _policy_files(folder)]
    noted = note_of(folder)
    if noted is not None:
        gone += noted.files
    shutil.copytree(folder, made, symlinks=True)
    for name in gone:
        _own(made, name).unlink(missing_ok=True)


def _put_in_place(made: Path, folder: Path, before: Path) -> None:
    if not folder.exists():
        made.rename(folder)
        return
    shutil.rmtree(before, ignore_errors=True)
    folder.rename(before)
    try:
        made.rename(folder)
    except OSError:
        before.rename(folder)
        raise
    shutil.rmtree(before, ignore_errors=True)


def _own(folder: Path, name: str) -> Path:
    """A path without links, which may lead out of the folder."""
    path = folder / name
    for parent in reversed(path.parents):
        if folder in parent.parents and parent.is_symlink():
            parent.unlink()
    return path


def _beside(folder: Path, what: str) -> Path:
    """A temporary name beside it; removes what an earlier run left there."""
    path = folder.with_name(f".{folder.name}.{what}")
    shutil.rmtree(path, ignore_errors=True)
    return path


def _fill(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = _own(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # perhaps a link
        with path.open("xb") as file:
            file.write(content)
        sync(path)
    for where, _, _ in os.walk(folder, topdown=False):
        sync(Path(where))

"""`rookery` and `python -m relay`: check that the import names are ours, then run the command line.

Another distribution may ship a package `relay` or `policies`: earlier on the path, or in the same
folder with its files mixed with ours. This file finds out with nothing but the standard library.
A `relay` that shadows ours completely is reported by `relay.launcher`.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_NAMES: Final = ("relay", "policies")


def main() -> None:
    """Runs the command line and exits with its code.

    SIGTERM does what Ctrl-C does, so that no unfinished file is left, and then ends the process as
    it would by default.
    """
    is_terminated = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal is_terminated
        is_terminated = True
        signal.signal(number, signal.SIG_DFL)  # the second one ends it at once
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):  # asyncio's cancels the main task
            interrupt(number, frame)
        else:  # SIGINT is ignored: it runs in the background
            raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGTERM, terminate)
        code = _run()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the relay may have set its own since
    except KeyboardInterrupt:  # before the command began; then `run` knows
        code = 130
    if is_terminated:
        os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(code)


def _run() -> int:
    root = Path(__file__).resolve().parent.parent
    if fault := name_conflict(root):
        sys.stderr.write(f"rookery: {fault}\n")
        return 1
    from relay.cli import run

    return run(sys.argv[1:])


def name_conflict(root: Path) -> str:
    """The import name that another distribution owns too, in one line; empty without a conflict.

    `root`: the parent folder of this package.
    """
    for name in _NAMES:
        found = _location(name)
        if found is None:
            source = root if (root / "pyproject.toml").is_file() else "rookery"
            return (
                f"the package {name!r} is incomplete; install again:"
                f" python -m pip install --force-reinstall {shlex.quote(str(source))}"
            )
        if found != root / name:
            owner = next(_owners(found.parent, name), "an unknown distribution")
            return _conflict(name, owner, found)
        for owner in _owners(root, name):
            return _conflict(name, owner, found)
        if _is_changed(root, name):
            return _conflict(name, "an unknown distribution", found)
    return ""


def _conflict(name: str, owner: str, found: Path) -> str:
    return (
        f"the import name {name!r} also belongs to {owner} ({found}): uninstall it, or give"
        " Rookery a virtual environment of its own (python3 -m venv)"
    )


def _location(name: str) -> Path | None:
    """The folder that `import name` loads; the file of a plain module; None when not importable."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin).resolve()
    return origin.parent if origin.name == "__init__.py" else origin


def _owners(folder: Path, name: str) -> Iterator[str]:
    """Other distributions in this folder whose RECORD has this import name.

    Not by importlib.metadata: `packages_distributions()` parses every RECORD and takes ten times as
    long, at each start of the command.
    """
    package, module = f"{name}/".encode(), f"{name}.py,".encode()
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        if record.parent.name.startswith("rookery-"):
            continue
        files = b"\n" + record.read_bytes()
        if b"\n" + package in files or b"\n" + module in files:
            yield _title(record.parent.name.removesuffix(".dist-info"))
    for listed in sorted(folder.glob("*.egg-info/top_level.txt")):
        title = listed.parent.name.removesuffix(".egg-info")
        if name in listed.read_text("utf-8", "replace").split() and title != "rookery":
            yield _title(title)


def _title(folder_name: str) -> str:
    distribution, _, version = folder_name.partition("-")
    return f"the distribution {distribution!r} {version}".rstrip()


def _is_changed(root: Path, name: str) -> bool:
    """Whether `__init__.py` of the package differs from our RECORD."""
    path = root / name / "__init__.py"
    for record in root.glob("rookery-*.dist-info/RECORD"):
        for line in record.read_text("utf-8").splitlines():
            if line.startswith(f"{name}/__init__.py,sha256="):
                digest = urlsafe_b64encode(sha256(path.read_bytes()).digest())
                return line.split(",")[1] != f"sha256={digest.decode().rstrip('=')}"
    return False


if __name__ == "__main__":
    main()

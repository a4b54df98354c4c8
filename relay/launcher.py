"""What the command `rookery` starts, installed beside the packages as `rookery_launcher`.

A foreign package `relay` may lie before ours as a whole: then nothing of ours can be imported by
its name, and only a module with a name of its own is left to say so.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def main() -> None:
    """Hands over to `relay.__main__`, if that is ours."""
    if sys.argv[1:2] == ["hook"] and _tell_keeper():
        return
    from importlib.util import find_spec
    from pathlib import Path

    try:
        spec = find_spec("relay")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not _is_ours(Path(spec.origin).parent):
        where = "nowhere" if spec is None or spec.origin is None else spec.origin
        sys.stderr.write(
            f"rookery: the import name 'relay' belongs to {_owner()} ({where}): uninstall that, or"
            " give Rookery a virtual environment of its own (python3 -m venv)\n"
        )
        sys.exit(1)
    from relay.__main__ import main as run

    run()


def _tell_keeper() -> bool:
    """Whether a hook of a coding agent is done, before anything is imported that takes time."""
    try:
        from relay.hook import tell_keeper
    except ImportError:
        return False  # a foreign `relay`: it is named below
    return tell_keeper(sys.argv[2:])


def _is_ours(folder: Path) -> bool:
    return (folder / "lifecycle" / "retention.py").is_file() and (
        folder / "cli" / "serve.py"
    ).is_file()


def _owner() -> str:
    from importlib.metadata import packages_distributions

    names = [name for name in packages_distributions().get("relay", ()) if name != "rookery"]
    return f"the distribution {names[0]!r}" if names else "an unknown distribution"

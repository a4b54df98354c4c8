"""Entry point of the command `rookery`, installed as top-level module `rookery_launcher`.

When another distribution's package `relay` shadows ours, nothing of ours can be imported by that
name: only a module with another name can report it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def main() -> None:
    """Runs `relay.__main__.main` if that package is Rookery's."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    if sys.argv[1:2] == ["hook"] and _ask_keeper():
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
            f"rookery: the import name 'relay' belongs to {_owner()} ({where}): uninstall it, or"
            " give Rookery a virtual environment of its own (python3 -m venv)\n"
        )
        sys.exit(1)
    from relay.__main__ import main as run

    run()


def _ask_keeper() -> bool:
    """Fast path of `rookery hook`, before slow imports. True: the hook is done."""
    try:
        from relay.hook import ask_keeper
    except ImportError:
        return False  # not our `relay`: reported below
    return ask_keeper(sys.argv[2:])


def _is_ours(folder: Path) -> bool:
    return (folder / "lifecycle" / "retention.py").is_file() and (
        folder / "cli" / "serve.py"
    ).is_file()


def _owner() -> str:
    from importlib.metadata import packages_distributions

    names = [name for name in packages_distributions().get("relay", ()) if name != "rookery"]
    return f"the distribution {names[0]!r}" if names else "an unknown distribution"

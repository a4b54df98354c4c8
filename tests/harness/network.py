"""Cables that can be pulled out: a database and relays in network namespaces of their own.

Nothing says that a cable is out, as the end of a process or a proxy does: packets are lost, and
connections stay half open until somebody gives up. Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Final

from tests.harness.patience import PROGRAM_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

_PROGRAMS: Final = ("ip", "unshare", "nsenter")
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def why_not() -> str | None:
    """Why there are no namespaces here; None: there are."""
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]:
        return f"not installed: {', '.join(missing)}"
    tried = _run("unshare", "--net", "ip", "link", "add", "one", "type", "veth", "peer", "other")
    return tried.stderr.strip() or None


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        env={**os.environ, "PATH": _PATH},
        check=False,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )


class Place:
    """A network namespace. It is gone when it is closed, and when the tests end."""

    def __init__(self) -> None:
        words = "unshare", "--net", "cat"
        env = {**os.environ, "PATH": _PATH}
        self._holder = subprocess.Popen(words, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=env)
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.write(b"\n")
        self._holder.stdin.flush()
        self._holder.stdout.read(1)  # it is there
        self.pid = self._holder.pid
        self.ip("link", "set", "lo", "up")

    @property
    def words(self) -> Sequence[str]:
        """Before those of a command that is to run there."""
        return ("nsenter", f"--net=/proc/{self.pid}/ns/net", "--")

    def ip(self, *words: str) -> None:
        done = _run(*self.words, "ip", *words)
        assert done.returncode == 0, done.stderr

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.communicate()


class Cable:
    """From the database's place to one of its own. Use as a context."""

    def __init__(self, database: Place, number: int) -> None:
        self.database = database
        self._stack = ExitStack()
        self._name = f"cable{number}"
        self.address = f"10.0.{number}.1"
        """Of the database, seen from there."""
        self.far_address = f"10.0.{number}.2"

    def __enter__(self) -> Self:
        self.place = self._stack.enter_context(Place())
        there, end = self.database, ("peer", "name", "cable", "netns", f"{self.place.pid}")
        there.ip("link", "add", self._name, "type", "veth", *end)
        there.ip("address", "add", f"{self.address}/24", "dev", self._name)
        self.place.ip("address", "add", f"{self.far_address}/24", "dev", "cable")
        self.place.ip("link", "set", "cable", "up")
        self.plug()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def plug(self) -> None:
        self.database.ip("link", "set", self._name, "up")

    def unplug(self) -> None:
        self.database.ip("link", "set", self._name, "down")

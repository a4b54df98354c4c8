"""Starts and stops the relays that are measured, each in its own folder, on a port of 127.0.0.1.

Only processes started here are ended here, by the process group each was given.

The reference, `nostr-relay` 1.14 from PyPI, gets a venv in the cache folder and one pin: its server
`serve --use-purple`, the faster one in most rows, reads an attribute that `websockets` 14 dropped.
It runs as its own configuration suggests (one worker, SQLite in WAL, `synchronous=normal`, no
compression), without rate limits, logging warnings only, with the signature check as its only
validator. It promises less than Rookery, whose OK means on disk.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from tests.bench import corpus, wire

START_S = 60.0
STOP_S = 15.0
COMMAND_S = 600.0
INSTALL_S = 600.0
ROOT = Path(__file__).parents[2]
LISTENING = re.compile(rb"listening on ws://[^\s:]+:(\d+)")


class RelayFault(Exception):
    """The relay did not start; the text ends with the last lines it wrote."""


class Preset(Enum):
    GROUP = "group"
    OPEN = "open"


@dataclass(slots=True)
class Running:
    """A relay that accepts connections."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path

    def memory(self, field: str = "VmRSS") -> int | None:
        """KiB of the process and those it started, VmHWM: at most; None where there is no /proc."""
        total = 0
        for pid in family(self.process.pid):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                return None
            if found := re.search(rf"{field}:\s+(\d+) kB", status):
                total += int(found[1])
        return total

    def processor(self) -> float | None:
        """Seconds on a core of the process and those it started; None where there is no /proc."""
        ticks = 0
        for pid in family(self.process.pid):
            try:
                stat = Path(f"/proc/{pid}/stat").read_text()
            except OSError:
                return None
            user, system = stat.rpartition(")")[2].split()[11:13]
            ticks += int(user) + int(system)
        return ticks / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        with suppress(OSError):
            children = Path(f"/proc/{member}/task/{member}/children").read_text()
            members += map(int, children.split())
    return members


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((wire.HOST, 0))
        return int(sock.getsockname()[1])


def tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-3:]) or "it wrote nothing"


@contextmanager
def running(
    command: list[str],
    folder: Path,
    ready: Callable[[bytes], int | None],
    env: dict[str, str] | None = None,
) -> Iterator[Running]:
    """The command's process from the moment that `ready`, given what it wrote, gives a port."""
    log = folder / "output.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.perf_counter() + START_S
        while (port := ready(log.read_bytes())) is None:
            if process.poll() is not None:
                raise RelayFault(f"ended with {process.returncode}: {tail(log)}")
            if time.perf_counter() > deadline:
                raise RelayFault(f"not ready within {START_S:.0f} s: {tail(log)}")
            time.sleep(0.02)
        yield Running(process, port, folder)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):  # workers that outlived it
            os.killpg(process.pid, signal.SIGKILL)


def answers(port: int) -> Callable[[bytes], int | None]:
    def ready(_: bytes) -> int | None:
        with suppress(OSError, wire.WireFault):
            wire.Connection(port).close()
            return port
        return None

    return ready


@dataclass(slots=True)
class Rookery:
    """This checkout."""

    name: str = "rookery"

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT)}

    @contextmanager
    def start(self, folder: Path, preset: Preset) -> Iterator[Running]:
        data = folder / "data"
        command = [sys.executable, "-m", "relay"]
        if not data.exists():
            self.made(folder, preset)
        serve = [*command, "serve", "--data", str(data), "--host", wire.HOST, "--port", "0"]

        def ready(written: bytes) -> int | None:
            found = LISTENING.search(written)
            return int(found[1]) if found else None

        with running(serve, folder, ready, self.environment()) as relay:
            yield relay

    def made(self, folder: Path, preset: Preset) -> None:
        """A folder whose agents are the authors of NOTES and LINES: both presets take these."""
        words = [sys.executable, "-m", "relay", "init", str(folder / "data")]
        words += ["--preset", preset.value]
        words += ["--owner", corpus.public(10_000)]
        for number in range(corpus.NOTES.authors):
            words += ["--agent", corpus.public(number)]
        self.finish(words, folder, START_S)

    def run(self, folder: Path, *words: str) -> str:
        """What one finished `rookery …` prints."""
        return self.finish([sys.executable, "-m", "relay", *words], folder, COMMAND_S)

    def finish(self, words: list[str], folder: Path, timeout: float) -> str:
        made = subprocess.run(
            words,
            cwd=folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if made.returncode:
            last = made.stderr.strip().splitlines()[-1:] or ["nothing"]
            raise RelayFault(f"{words[3]} ended with {made.returncode}: {last[0]}")
        return made.stdout

    def keep(self, folder: Path, digest: str) -> None:
        """Its store is young and changes: it is filled anew in every run."""

    def kept(self, folder: Path, digest: str) -> bool:
        return False


@dataclass(slots=True)
class NostrRelay:
    """`nostr-relay` from PyPI. Its store of the archive is kept: filling it takes minutes."""

    cache: Path
    name: str = "nostr-relay"
    requirements: tuple[str, ...] = ("nostr-relay==1.14", "websockets==13.1")
    server: str = "--use-purple"
    installed: Path | None = field(default=None)

    def install(self) -> Path:
        home = self.cache / "nostr-relay"
        stamp = home / "installed"
        if not stamp.exists() or stamp.read_text() != repr(self.requirements):
            venv.create(home, clear=True, with_pip=True)
            made = subprocess.run(
                [home / "bin" / "pip", "install", "--quiet", *self.requirements],
                capture_output=True,
                text=True,
                timeout=INSTALL_S,
                check=False,
            )
            if made.returncode:
                last = made.stderr.strip().splitlines()[-1:] or ["nothing"]
                raise RelayFault(f"pip install {self.name} failed: {last[0]}")
            stamp.write_text(repr(self.requirements))
        return home / "bin" / "nostr-relay"

    @contextmanager
    def start(self, folder: Path, preset: Preset) -> Iterator[Running]:
        if self.installed is None:
            self.installed = self.install()
        port = free_port()
        settings = folder / "nostr-relay.yaml"
        settings.write_text(SETTINGS.format(port=port, store=folder / "store.sqlite3"))
        command = [str(self.installed), "-c", str(settings), "serve"]
        if self.server:
            command.append(self.server)
        with running(command, folder, answers(port)) as relay:
            yield relay

    def keep(self, folder: Path, digest: str) -> None:
        """Keeps the filled store, its relay being stopped, for the next runs."""
        with closing(sqlite3.connect(folder / "store.sqlite3")) as store:
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for old in self.cache.glob(f"{self.name}-*.sqlite3"):
            if time.time() - old.stat().st_mtime > corpus.RENEW_S:  # its corpus is gone
                old.unlink()
        shutil.copyfile(folder / "store.sqlite3", self.cache / f"{self.name}-{digest}.sqlite3")

    def kept(self, folder: Path, digest: str) -> bool:
        """Whether the filled store of an earlier run now lies in `folder`."""
        store = self.cache / f"{self.name}-{digest}.sqlite3"
        if store.exists():
            shutil.copyfile(store, folder / "store.sqlite3")
        return store.exists()


SETTINGS = """\
relay_name: reference
storage:
  sqlalchemy.url: sqlite+aiosqlite:///{store}
  num_concurrent_reqs: 10
  num_concurrent_adds: 2
  validators: [nostr_relay.validators.is_signed]
verification: {{nip05_verification: disabled}}
authentication: {{enabled: false}}
gunicorn: {{bind: "127.0.0.1:{port}", workers: 1, loglevel: warning}}
purple: {{host: 127.0.0.1, port: {port}, workers: 1, disable_compression: true}}
message_timeout: 1800
subscription_limit: 1000
max_limit: 6000
max_event_size: 1000000
logging: {{version: 1, disable_existing_loggers: false, root: {{level: WARNING}}}}
"""


@dataclass(slots=True)
class Command:
    """Any relay, by a command with `{port}` and `{dir}` in it, which answers on that port."""

    template: str
    name: str = ""

    def __post_init__(self) -> None:
        self.name = Path(shlex.split(self.template)[0]).name

    @contextmanager
    def start(self, folder: Path, preset: Preset) -> Iterator[Running]:
        port = free_port()
        words = [
            word.replace("{port}", str(port)).replace("{dir}", str(folder))
            for word in shlex.split(self.template)
        ]
        with running(words, folder, answers(port)) as relay:
            yield relay

    def keep(self, folder: Path, digest: str) -> None:
        """Nothing is known of its store."""

    def kept(self, folder: Path, digest: str) -> bool:
        return False


Target = Rookery | NostrRelay | Command

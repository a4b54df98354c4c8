"""Starts `rookery …` as a process of its own, forked from a server that has imported the program.

A start of Python with all imports takes 0.4 s of CPU, a fork 10 ms, and the suite starts thousands
of programs. Only Linux forks safely whatever a library does: elsewhere each is started afresh.
Tests of the start itself (imports, packages on the path, sockets that are handed over) start
`python -m relay`; so does a relay that was forked, when it restarts.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.reduction import DupFd
from subprocess import DEVNULL, PIPE, STDOUT
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.context import ForkServerContext, ForkServerProcess
    from pathlib import Path

FORKS: Final = sys.platform == "linux"


async def start_rookery(
    *args: str,
    stdin: int = DEVNULL,
    stdout: int = PIPE,
    stderr: int = STDOUT,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Process:
    """`rookery ARGS`, running; stdin, stdout and stderr as `asyncio.create_subprocess_exec`."""
    if not FORKS:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "relay",
            *args,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env=env,
        )
    sys.audit("subprocess.Popen", "rookery", args, cwd, env)
    pipes = _Pipes()
    try:
        child_in = pipes.of_child(stdin, os.O_RDONLY)
        child_out = pipes.of_child(stdout, os.O_WRONLY)
        child_err = child_out if stderr == STDOUT else pipes.of_child(stderr, os.O_WRONLY)
        standard = (_Inherited(child_in), _Inherited(child_out), _Inherited(child_err))
        where = os.fspath(cwd) if cwd is not None else os.getcwd()
        given = (args, standard, where, dict(os.environ if env is None else env))
        # As a daemon: it ends with the tests' process, if a test has left it running.
        process = _context().Process(target=_run, args=given, daemon=True)
        process.start()
    except BaseException:
        pipes.close_parent()
        raise
    finally:
        pipes.close_child()

    async def connected() -> Program:
        return Program(
            process,
            await _writer(pipes.parent.get(child_in)),
            await _reader(pipes.parent.get(child_out)),
            None if stderr == STDOUT else await _reader(pipes.parent.get(child_err)),
        )

    connecting = asyncio.create_task(connected())
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:  # nobody has it: leave no process and no open pipe
        program = await connecting
        with suppress(ProcessLookupError):
            program.kill()
        await program.communicate()
        raise


class Program:
    """As much of `asyncio.subprocess.Process` as tests use."""

    def __init__(
        self,
        process: ForkServerProcess,
        stdin: asyncio.StreamWriter | None,
        stdout: asyncio.StreamReader | None,
        stderr: asyncio.StreamReader | None,
    ) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._process.sentinel, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._process.sentinel)
        self._process.join()
        code = self._process.exitcode
        assert code is not None
        return code

    async def communicate(self, data: bytes | None = None) -> tuple[bytes, bytes]:
        out, err, _ = await asyncio.gather(
            _all_of(self.stdout), _all_of(self.stderr), self._feed(data)
        )
        await self.wait()
        return out, err

    async def _feed(self, data: bytes | None) -> None:
        if self.stdin is None:
            return
        with suppress(BrokenPipeError, ConnectionResetError):
            self.stdin.write(data or b"")
            await self.stdin.drain()
        self.stdin.close()


async def _all_of(stream: asyncio.StreamReader | None) -> bytes:
    return b"" if stream is None else await stream.read()


Process = Program | asyncio.subprocess.Process


class _Pipes:
    """The descriptors of a new process, and the ends of its pipes that stay here."""

    def __init__(self) -> None:
        self.parent: dict[int, int] = {}
        """Descriptor of the child → the other end."""
        self._child: list[int] = []

    def of_child(self, wanted: int, flags: int) -> int:
        if wanted == PIPE:
            read, write = os.pipe()
            end, other = (read, write) if flags == os.O_RDONLY else (write, read)
            self.parent[end] = other
        elif wanted == DEVNULL:
            end = os.open(os.devnull, flags)
        else:
            end = os.dup(wanted)
        self._child.append(end)
        return end

    def close_child(self) -> None:
        for end in self._child:
            os.close(end)

    def close_parent(self) -> None:
        for end in self.parent.values():
            os.close(end)


async def _reader(end: int | None) -> asyncio.StreamReader | None:
    if end is None:
        return None
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(end, "rb", 0)
    )
    return reader


async def _writer(end: int | None) -> asyncio.StreamWriter | None:
    if end is None:
        return None
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(end, "wb", 0)
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


# -- the server and its children -------------------------------------------------------------------


def _context() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.harness.preload"])
    return context


class _Inherited:
    """A descriptor that goes along when the process is started."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Callable[[Any], _Inherited], tuple[Any]]:
        return _received, (DupFd(self.number),)


def _received(duplicate: Any) -> _Inherited:
    return _Inherited(duplicate.detach())


def _run(
    args: tuple[str, ...],
    standard: tuple[_Inherited, _Inherited, _Inherited],
    where: str,
    environ: dict[str, str],
) -> None:
    """In the child: what a new interpreter does before and after `relay.launcher`."""
    for number, inherited in enumerate(standard):
        os.dup2(inherited.number, number)
    for inherited in standard:
        os.close(inherited.number)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(1, "w", closefd=False)),
        "utf-8",
        line_buffering="PYTHONUNBUFFERED" in environ,
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)),
        "utf-8",
        "backslashreplace",
        line_buffering=True,
    )
    os.chdir(where)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["rookery", *args]
    sys.orig_argv = [sys.executable, "-m", "relay", *args]  # what a relay restarts by
    from relay.launcher import main

    main()

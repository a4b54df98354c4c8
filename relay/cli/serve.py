"""`rookery serve`: runs a relay until SIGTERM or SIGINT; SIGHUP reloads the policies.

`rookery restart` makes it start again in the same process: the listening sockets stay open, and the
kernel queues connections on them until the new start takes them. After `rookery move`, and when the
store's history has changed, it restarts in place.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Final

import click

from relay.cli.console_verify import VerifyRun
from relay.cli.data_folder import LocalFolder
from relay.cli.database import database_of, refuse_store_fault
from relay.cli.folder_lock import locked
from relay.cli.heap import keep_below, keep_small, limit_heap, memory_limit, restarted
from relay.cli.init import fresh_folder, is_fresh
from relay.cli.move_switch import import_for_switch, is_asked, switched, unended
from relay.cli.options import WholeNumber, new_folder_option, printable
from relay.cli.policy_reload import PolicyReload
from relay.cli.pushed_policies import has_pushed_policies
from relay.cli.services import check_start, run_services
from relay.config import Config, PolicySource, ServerConfig, Synchronous, load_config
from relay.errors import (
    FolderBusy,
    Prefix,
    Refused,
    RookeryError,
    StoreFault,
    UserError,
    how_to_install,
)
from relay.memory.fence import shell_word
from relay.nostr.keys import npub
from relay.observe import LOG_FILE, set_up_logging
from relay.server.app import Server
from relay.server.connection import Stop
from relay.server.control import ControlServer, RemoteFolder
from relay.server.listening import (
    add_ipv6_loopback,
    bound_sockets,
    inherited_sockets,
    start_again,
    tell_ready,
)
from relay.write.ingest import SWITCH_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from relay.observe import LogLines

_log = logging.getLogger("rookery")

_MAX_FILES: Final = 1 << 20
_CHECK_S: Final = 60.0
_RESTARTS: Final = "ROOKERY_RESTARTS"
"""In the environment of a `--check` by the relay that has the folder."""
_AGAIN_S: Final = 5.0
"""Delay until a required restart that failed is tried again."""
_COLLECT_S: Final = 10.0
"""Delay of garbage collection after a start in place, so that waiting clients are served first."""


@click.command("serve", epilog="Example: rookery serve --data ./data --port 7777")
@new_folder_option
@click.option(
    "--config",
    "config_file",
    metavar="F",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings to read instead of DIR/rookery.toml.",
)
@click.option("--host", metavar="H", help="Listen here instead of [server] host.")
@click.option("--port", metavar="N", type=WholeNumber(0, 65535), help="0 picks a free one.")
@click.option(
    "--check", "only_check", is_flag=True, help="Only check whether the relay would start here."
)
def serve_command(
    folder: Path, config_file: Path | None, host: str | None, port: int | None, *, only_check: bool
) -> None:
    """Run the relay. A missing or empty folder is created first.

    It listens on the sockets that systemd has opened for it, if any, else on HOST and PORT.
    """
    sockets = inherited_sockets()
    if is_fresh(folder):
        refuse_store_fault(folder)
        if not sockets:
            # Nothing is left behind when the relay cannot listen.
            default = ServerConfig()
            _check_port(
                default.host if host is None else host, default.port if port is None else port
            )
        if only_check:
            click.echo(f"ok: `serve` would create a new relay in {printable(str(folder))}")
            return
        _create(folder)
    settings = partial(_settings, folder, config_file, host, port)
    config = settings()
    if only_check:
        left = None if config_file is not None else unended(folder)
        _check(folder, config, ends_move=left is not None)
        if left is not None:
            click.echo(f"{printable(left.text)}: the start ends it")
        # A relay that is killed leaves the check for its restart, which must not keep the next one
        # from the lock.
        if not os.environ.get(_RESTARTS):
            _check_free(folder, config.server, sockets)
        return
    log_lines = set_up_logging(config.log)
    for text in config.ignored:
        _log.warning("rookery.toml: %s", text)
    if config.storage.synchronous is Synchronous.NORMAL:
        _log.warning("[storage] synchronous = NORMAL: a power loss may lose acknowledged events")
    _raise_file_limit()
    limit_heap()
    with locked(folder):
        log_lines.keep_in(folder / LOG_FILE)
        while True:
            config = switched(folder, config, own_file=config_file is None)
            end = _End(folder, settings)
            listening = _listened(folder, config, log_lines, sockets, end)
            if not (listening and end.in_place):
                break
            sockets, config = [socket(fileno=each) for each in listening], settings()
    if listening:
        start_again(listening)


def _settings(folder: Path, config_file: Path | None, host: str | None, port: int | None) -> Config:
    """Raises UserError, ConfigFaults."""
    own_file = folder / "rookery.toml"
    if config_file is None:
        _refuse_lost(own_file)
    config = load_config(config_file or own_file)
    if config_file is not None and not config_file.is_file():
        raise UserError(f"{config_file} does not exist", code=2)
    is_pushed = config.storage.policies is PolicySource.DATABASE
    if config.storage.url != database_of(folder) or is_pushed != has_pushed_policies(folder):
        raise UserError(
            f"[storage] url and policies must be in {own_file}: all other commands read them there",
            code=2,
        )
    server = config.server
    return replace(
        config,
        server=replace(
            server,
            host=server.host if host is None else host,
            port=server.port if port is None else port,
        ),
    )


def _refuse_lost(settings: Path) -> None:
    """With the defaults a relay would be served from another store, or with other limits than it
    had. Raises UserError."""
    beside = (settings.with_name(name) for name in ("relay.key", "rookery.db"))
    if not settings.exists() and any(os.path.lexists(path) for path in beside):
        raise UserError(
            f"{settings} is missing, but {settings.parent} has a relay: put it back, from a backup"
            " for example; if all settings were the defaults, make an empty file; for a new relay"
            " run `rookery init` with another folder"
        )


def _listened(
    folder: Path, config: Config, log_lines: LogLines, sockets: list[socket], end: _End
) -> list[int]:
    """Until the end; what `_serve` gives."""
    if sockets:
        host = sockets[0].getsockname()[0]
        add_ipv6_loopback(sockets)
    else:
        host = config.server.host
        sockets = bound_sockets(host, config.server.port)
    try:
        kept = _run(_serve(folder, config, log_lines, sockets, host, end))
        # SIGTERM may have come since, while the loop was closed.
        return kept if end.why is Stop.RESTART else []
    finally:
        for each in sockets:
            each.close()


def _check(folder: Path, config: Config, *, ends_move: bool) -> None:
    """Raises what a start would raise."""
    check_start(folder, config, ends_move=ends_move)
    import_for_switch(folder)


def _check_free(folder: Path, server: ServerConfig, sockets: list[socket]) -> None:
    """For `--check`: the lock and the port. A running relay has both, and a restart keeps its port.
    Raises UserError."""
    where = printable(str(folder))
    try:
        with locked(folder):
            if not sockets:
                _check_port(server.host, server.port)
    except FolderBusy as busy:
        try:
            with suppress(StoreFault):  # it does answer
                asyncio.run(RemoteFolder(folder / "control.sock").head())
        except UserError:
            raise busy from None  # by a command, or a relay that is not ready
        pid = "" if busy.pid is None else f" (process {busy.pid})"
        click.echo(f"ok: a relay runs on {where}{pid}; `rookery restart` would start it again")
    else:
        click.echo(f"ok: a relay would start on {where}, on {server.host} port {server.port}")


def _console_line(url: str) -> str:
    return (
        f"web console: {url.replace('ws', 'http', 1).rstrip('/')}/"
        f" (to sign in: rookery console --relay {shell_word(url)})"
    )


def _check_port(host: str, port: int) -> None:
    """Raises UserError."""
    for each in bound_sockets(host, port):
        each.close()


def _raise_file_limit() -> None:
    """A shell often permits 1024 open files, fewer than `max_connections`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _create(folder: Path) -> None:
    made = fresh_folder(folder)
    print(f"made {made.folder}: a relay with a new owner and one agent", flush=True)
    print(f"  owner {npub(made.owner)}  secret key in {made.owner_key_file}", flush=True)
    print(f"  agent {npub(made.agent)}  secret key in {made.agent_key_file}", flush=True)
    print(f"  keep the keys safe; the policies are in {made.folder}/policies", flush=True)


def _run(main: Coroutine[object, object, list[int]]) -> list[int]:
    sys.setswitchinterval(SWITCH_S)  # by default the store's thread would wait for 5 ms each time
    gc.set_threshold(50_000, 20, 50)
    with closing(main), asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not available on every platform; only faster
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _freeze() -> None:
    """Exclude the objects that exist now from later garbage collections."""
    if not gc.get_freeze_count():
        gc.freeze()
        return
    gc.unfreeze()
    asyncio.get_running_loop().call_later(_COLLECT_S, _collect)


def _collect() -> None:
    gc.collect()
    gc.freeze()


class _End:
    """Why and when the relay ends."""

    def __init__(self, folder: Path, settings: Callable[[], Config]) -> None:
        """`settings`: reads the current ones."""
        self._folder = folder
        self._settings = settings
        self.why = Stop.FOR_GOOD
        self.in_place = False
        """The restart keeps the process: starting Python and importing everything takes longer than
        the rest."""
        self.has_come = asyncio.Event()

    def stop(self) -> None:
        self.why = Stop.FOR_GOOD  # also while it stops for a restart
        self.has_come.set()

    async def restart(self, *, in_place: bool = False) -> None:
        """`in_place`: even without a move. Raises Refused when the relay would not start; then it
        keeps running."""
        in_place = in_place or is_asked(self._folder)
        fault = await (self._own_fault() if in_place else _start_fault())
        if fault is not None:
            text = f"not restarted, the relay would not start: {fault}"
            _log.error("%s", text)
            raise Refused(Prefix.ERROR, text)
        if not self.has_come.is_set():
            self.why, self.in_place = Stop.RESTART, in_place
            self.has_come.set()

    async def _own_fault(self) -> str | None:
        """Why a restart in place would fail, or None."""
        try:
            # A relay that runs has only one store, so a move that was asked for has not begun.
            await asyncio.to_thread(lambda: _check(self._folder, self._settings(), ends_move=False))
        except (RookeryError, OSError) as error:
            return str(error)
        return None

    async def restart_when(self, must: asyncio.Event) -> None:
        """Restart once `must` is set, as soon as a start would succeed."""
        await must.wait()
        _log.error("the store is not as it was: what was acknowledged last may be gone")
        while not self.has_come.is_set():
            with suppress(Refused):
                await self.restart(in_place=True)
                return
            await asyncio.sleep(_AGAIN_S)


async def _start_fault() -> str | None:
    """Why a start would fail, by a process with `--check`: another version may be installed now."""
    command = (sys.executable, *sys.orig_argv[1:], "--check")
    env = os.environ | {_RESTARTS: "1"}
    try:
        check = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=env
        )
    except OSError as error:
        return f"{sys.executable}: {error.strerror or error}"
    try:
        async with asyncio.timeout(_CHECK_S):
            out, _ = await check.communicate()
    except TimeoutError:
        return f"no answer of --check within {_CHECK_S:g} s"
    finally:
        if check.returncode is None:  # also when the relay stops meanwhile
            check.kill()
            await check.wait()
    return out.decode("utf-8", "replace").strip() if check.returncode else None


def _reload(loop: asyncio.AbstractEventLoop, reload: asyncio.Event, *_: object) -> None:
    """Handler of SIGHUP. Not one of the loop's, which ends with it: until the next start has its
    own, the signal would end the relay."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(reload.set)


async def _serve(
    folder: Path,
    config: Config,
    log_lines: LogLines,
    sockets: list[socket],
    host: str,
    end: _End,
) -> list[int]:
    """The listening sockets if the relay must restart, else nothing."""
    reload = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.stop)
    signal.signal(signal.SIGHUP, partial(_reload, loop, reload))
    async with run_services(folder, config) as services:
        services.metrics.watch(
            "log_lines_total",
            "Lines of the log by level, also those left out.",
            lambda: log_lines.counts,
            "level",
        )
        server = Server(services, sockets, host)
        if services.following is not None:
            services.following.rights_changed = server.rights_changed
        own_folder = LocalFolder(services, lambda: server.url, log_lines, end.restart)
        verify_run = VerifyRun(folder, services.clock)
        if config.console.enabled:
            # Half of all imports; not needed for help and for `--check`, which a restart waits for.
            from relay.cli.console_owner_view import OwnersView
            from relay.console import Console

            behind = OwnersView(services, own_folder, lambda: server.connections, verify_run)
            server.show(Console(services, server, behind))
        async with (
            services.metrics.with_traces(how_to_install("otel")),
            ControlServer(folder / "control.sock", own_folder),
            server,
            services.indexer,
            services.sweeper(),
            verify_run,
        ):
            services.addresses.listens_on(server.addresses_from_anywhere)
            async with PolicyReload(services, reload, server.rights_changed):
                services.plugins.start()
                _freeze()
                print(f"listening on {server.url}", flush=True)
                if config.console.enabled:
                    print(_console_line(config.relay.url or server.url), flush=True)
                tell_ready()
                tasks = [
                    asyncio.create_task(end.restart_when(services.set_back)),
                    asyncio.create_task(
                        restarted(lambda: keep_small(lambda: services.ingest.waiting_weight))
                    ),
                ]
                limit = memory_limit()
                if limit is not None:
                    below = partial(keep_below, limit, server.close_heaviest)
                    tasks.append(asyncio.create_task(restarted(below)))
                await end.has_come.wait()
                for task in tasks:
                    task.cancel()
                server.stop = end.why
                kept = [os.dup(each.fileno()) for each in sockets]
                _log.info("stopping" if end.why is Stop.FOR_GOOD else "restarting")
        await asyncio.to_thread(services.used_calls.close)
    return kept if end.why is Stop.RESTART else []

"""`rookery serve`: runs a relay until SIGTERM or SIGINT; SIGHUP reloads the policies."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from relay.cli.data_folder import LocalFolder
from relay.cli.folder_lock import locked
from relay.cli.init import fresh_folder, is_fresh
from relay.cli.options import folder_option
from relay.cli.policy_reload import PolicyReload
from relay.cli.services import run_services
from relay.config import Config, ServerConfig, Synchronous, load_config
from relay.errors import UserError
from relay.nostr.keys import npub
from relay.observe import set_up_logging
from relay.server.app import Server
from relay.server.control import ControlServer

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from relay.observe import LogLines

_log = logging.getLogger("rookery")

_MAX_FILES: Final = 1 << 20
_SWITCH_INTERVAL_S: Final = 0.0005
"""With the default of 5 ms the writer's thread waits that long for the GIL per statement."""


@click.command("serve", epilog="Example: rookery serve --data ./data --port 7777")
@folder_option
@click.option(
    "--config",
    "config_file",
    metavar="F",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings to read instead of DIR/rookery.toml.",
)
@click.option("--host", metavar="H", help="Listen here instead of [server] host.")
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), help="0 picks a free one.")
def serve_command(
    folder: Path, config_file: Path | None, host: str | None, port: int | None
) -> None:
    """Run the relay. A missing or empty folder is created first."""
    if is_fresh(folder):
        # Nothing is left behind when the relay cannot listen.
        _refuse_taken_port(host, port)
        _create(folder)
    config = load_config(config_file or folder / "rookery.toml")
    if config_file is not None and not config_file.is_file():
        raise UserError(f"{config_file} does not exist", code=2)
    server = config.server
    config = replace(
        config,
        server=replace(
            server,
            host=server.host if host is None else host,
            port=server.port if port is None else port,
        ),
    )
    log_lines = set_up_logging(config.log)
    for text in config.ignored:
        _log.warning("rookery.toml: %s", text)
    if config.storage.synchronous is Synchronous.NORMAL:
        _log.warning("[storage] synchronous = NORMAL: a power loss may lose acknowledged events")
    _raise_file_limit()
    with locked(folder):
        _run(_serve(folder, config, log_lines))


def _raise_file_limit() -> None:
    """A shell often permits 1024 open files, fewer than `max_connections`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refuse_taken_port(host: str | None, port: int | None) -> None:
    host = ServerConfig().host if host is None else host
    port = ServerConfig().port if port is None else port
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port}: {error.strerror or error};"
            " choose another with --host or --port"
        ) from error


def _create(folder: Path) -> None:
    made = fresh_folder(folder)
    print(f"made {made.folder}: a relay with a new owner and one agent", flush=True)
    print(f"  owner {npub(made.owner)}  secret key in {made.owner_key_file}", flush=True)
    print(f"  agent {npub(made.agent)}  secret key in {made.agent_key_file}", flush=True)
    print(f"  keep the keys safe; the policies are in {made.folder}/policies", flush=True)


def _run(main: Coroutine[object, object, None]) -> None:
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(50_000, 20, 50)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(main)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not available on every platform; only faster
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(folder: Path, config: Config, log_lines: LogLines) -> None:
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    async with run_services(folder, config) as services:
        server = Server(services, config.server.host, config.server.port)
        async with (
            ControlServer(
                folder / "control.sock", LocalFolder(services, lambda: server.url, log_lines)
            ),
            server,
            services.indexer,
            services.sweeper(),
        ):
            services.addresses.listens_on(server.addresses)
            async with PolicyReload(services, reload, server.rights_changed):
                services.plugins.start()
                gc.freeze()
                print(f"listening on {server.url}", flush=True)
                await stop.wait()
                _log.info("stopping")

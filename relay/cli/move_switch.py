"""The last step of `rookery move`: copies the rest while nothing is written, then changes
rookery.toml to the other store.

A running relay does this when it restarts. Until rookery.toml is replaced the relay keeps its
store, so a failure before that changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING, Final

import msgspec

from relay.cli.database import password_in, refuse_store_fault
from relay.cli.findings import warning
from relay.config import Config, config_from, load_config, with_storage
from relay.errors import ConfigFaults, RookeryError, StoreFault, UserError
from relay.files import atomic_file, content_of, replace_own_file, sync
from relay.nostr.filters import FilterTerms
from relay.storage.moving import Move
from relay.storage.sqlite.moving import SqliteSide
from relay.storage.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.cli.findings import Finding
    from relay.storage import Appender, Store
    from relay.storage.moving import Side

_log = logging.getLogger("rookery")

_FILE: Final = "move.json"
UNFINISHED: Final = "moving"
"""A folder beside the store: the file that is being filled."""
MOVED: Final = "rookery.db.moved"
_LIMIT_S: Final = 10.0
_SEALED: Final = "the events of this database were moved to the file of a relay: drop its tables"


class Switch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The request of `move` to the next start."""

    to: str | None
    """`postgresql://…`; None: the folder's file."""
    password_file: str | None = None
    fault: str = ""
    """Why the switch failed; empty: it is still to be done."""

    @property
    def password(self) -> str | None:
        return password_in(None if self.password_file is None else Path(self.password_file))


def noted(folder: Path) -> Switch | None:
    """Raises StoreFault for a damaged file."""
    file = folder / _FILE
    try:
        return msgspec.json.decode(content_of(file), type=Switch)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise StoreFault(
            f"{file} is damaged: remove it; the events are where [storage] url says, and a move"
            " that had begun is to be run again"
        ) from None


def is_asked(folder: Path) -> bool:
    """Whether the next start has a switch to do."""
    return unended(folder) is not None


def unended(folder: Path) -> Finding | None:
    """Set when the next start has a switch to do. Raises StoreFault for a damaged file."""
    asked = noted(folder)
    if asked is None or asked.fault:
        return None
    there = "the database" if asked.to else f"{folder}/rookery.db"
    return warning(
        f"a move of the events to {there} has not ended",
        "start the relay, or run the same `rookery move` again: both end it",
    )


def import_for_switch(folder: Path) -> None:
    """Import what the switch needs, before the relay stops answering."""
    asked = noted(folder)
    if asked is not None and asked.to is not None:
        import_module("relay.storage.postgres.moving")
        import_module("relay.storage.postgres.store")


def note(folder: Path, switch: Switch | None) -> None:
    if switch is None:
        (folder / _FILE).unlink(missing_ok=True)
    else:
        replace_own_file(folder / _FILE, msgspec.json.encode(switch))


def switched(folder: Path, config: Config, *, own_file: bool) -> Config:
    """At a start, under the folder's lock: do the switch that `move` asked for, if any; returns the
    settings to use from now on. `own_file`: they are in the folder's own file."""
    asked = noted(folder) if is_asked(folder) else None
    if asked is None:
        return config
    try:
        if not own_file:
            raise UserError("the relay was started with --config: start it without, then move")
        asyncio.run(switch(folder, config, asked))
    except (RookeryError, OSError, TimeoutError) as error:
        fault = str(error) or f"it was not done within {_LIMIT_S:g} s"
        _log.error("the events stay where they are: %s", fault)
        note(folder, Switch(asked.to, asked.password_file, fault))
        return config
    storage = load_config(folder / "rookery.toml").storage
    _log.info("the events were moved to %s", "the database" if asked.to else folder)
    return replace(config, storage=storage)


async def switch(folder: Path, config: Config, asked: Switch) -> None:
    """Under the folder's lock; when it was interrupted, call it again.

    Raises UserError, StoreFault, TimeoutError, OSError.
    """
    if config.storage.url != asked.to:
        settings = settings_with(folder, asked)
        source = await source_of(folder, config)
        try:
            async with asyncio.timeout(_LIMIT_S):
                await _copy_rest(folder, config, asked, source)
            try:
                _unpack(folder / UNFINISHED, folder)
                _write_settings(folder / "rookery.toml", settings)
            except OSError:
                if asked.to is None:  # the settings still name the database: no store may be here
                    _pack(folder, folder / UNFINISHED)
                raise
            await _retire(source)
        finally:
            await source.close()
    if asked.to is not None:
        _put_away(folder)
    sync(folder)
    note(folder, None)


async def _copy_rest(folder: Path, config: Config, asked: Switch, source: Side) -> None:
    if not await source.hold():
        raise UserError("another relay has the database open: stop it, then move again")
    async with target_of(folder, config, asked) as (target, store):
        move = await Move.begun(source, target, store)
        await move.end()


def _write_settings(file: Path, text: str) -> None:
    with atomic_file(file, S_IMODE(file.stat().st_mode)) as out:  # it may be a link
        out.write(text.encode())


async def _retire(source: Side) -> None:
    """Mark the rest of the source as outdated."""
    try:
        await source.seal(_SEALED)
        await source.end_log()
    except StoreFault as fault:
        _log.warning("the old store could not be marked as outdated: %s", fault)


def _unpack(made: Path, folder: Path) -> None:
    """Move the new file to its place, if the target is a file."""
    if made.is_dir():
        for file in sorted(made.iterdir(), reverse=True):  # the store last
            file.replace(folder / file.name)
        made.rmdir()


def _pack(folder: Path, made: Path) -> None:
    """The reverse of `_unpack`."""
    made.mkdir(mode=0o700, exist_ok=True)
    for file in sorted([*folder.glob("rookery.db*"), *folder.glob("search.db*")]):
        if not file.name.startswith(MOVED):
            file.replace(made / file.name)


def _put_away(folder: Path) -> None:
    """Rename the file that was copied; its index of texts can be rebuilt."""
    for file in folder.glob("search.db*"):
        file.unlink()
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            (folder / f"rookery.db{suffix}").replace(folder / f"{MOVED}{suffix}")


async def source_of(folder: Path, config: Config) -> Side:
    """The store that the events are in. Raises UserError, StoreFault."""
    if config.storage.url is None:
        refuse_store_fault(folder)
        return SqliteSide(folder / "rookery.db")
    from relay.storage.postgres.moving import PostgresSide

    side = await PostgresSide.open(config.storage.url, password_in(config.storage.password_file))
    try:
        fault = await side.schema_fault()
        if fault is not None:
            raise fault
    except BaseException:
        await side.close()
        raise
    return side


@asynccontextmanager
async def target_of(
    folder: Path, config: Config, asked: Switch
) -> AsyncIterator[tuple[Side, Appender]]:
    """The target, whose tables are created if it is empty, and the store that writes to it."""
    terms = FilterTerms(
        config.storage.index_tags, config.storage.prefix_d_kinds, SqliteStore.features.search
    )
    async with AsyncExitStack() as opened:
        side: Side
        if asked.to is not None:
            from relay.storage.postgres.moving import PostgresSide
            from relay.storage.postgres.store import PostgresStore

            store: Store = await PostgresStore.open(asked.to, terms, password=asked.password)
            opened.push_async_callback(store.close)
            side = await PostgresSide.open(asked.to, asked.password)
        else:
            path = folder / "rookery.db"  # the switch may have been interrupted
            if not path.exists():
                path = folder / UNFINISHED / path.name
                path.parent.mkdir(mode=0o700, exist_ok=True)
            store = await SqliteStore.open(path, terms)
            opened.push_async_callback(store.close)
            side = SqliteSide(path)
        opened.push_async_callback(side.close)
        yield side, store


# rookery.toml ------------------------------------------------------------------------------------


def settings_with(folder: Path, asked: Switch) -> str:
    """rookery.toml with another `[storage] url`. Raises UserError when that must be done by hand,
    or cannot be written."""
    file = folder / "rookery.toml"
    if not (os.access(file, os.W_OK) and os.access(folder, os.W_OK)):
        raise UserError(f"{file} cannot be written: `rookery move` changes [storage] url in it")
    text = file.read_text("utf-8-sig")
    wanted = {"url": asked.to, "password_file": asked.password_file}
    foreign = "shared" if asked.to is None else "synchronous"
    changed = with_storage(text, {key: value for key, value in wanted.items() if value}, foreign)
    password_file = None if asked.password_file is None else Path(asked.password_file)
    found = None
    with suppress(ConfigFaults):
        found = config_from(changed, file).storage
    if found is None or (found.url, found.password_file) != (asked.to, password_file):
        raise UserError(f"{file}: write [storage] and its keys on lines of their own, then move")
    return changed

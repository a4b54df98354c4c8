"""The local nmem cache, as opened by `rookery nmem` and `rookery mcp` (M-09)."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from relay.cli.options import printable
from relay.client.nmem.adoption import ADOPTED, Adoption
from relay.client.nmem.cipher import cache_key
from relay.client.nmem.database import Database
from relay.client.nmem.settings import find_nmem_settings
from relay.client.nmem.updates import about, set_about

if TYPE_CHECKING:
    from collections.abc import Iterator

    from relay.client.nmem.cipher import CacheKey

_WARNED: Final = "warned"


def key_here() -> CacheKey | None:
    _, settings = find_nmem_settings(Path.home())
    return cache_key(os.environ, settings.key_file, settings.data / "nmem.key")


@contextmanager
def opened_here() -> Iterator[Database]:
    _, settings = find_nmem_settings(Path.home())
    adoption = Adoption(settings.secret_filter(), settings.group)
    database = Database(settings.db, key_here(), adopt=adoption.adopt)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def reading_here() -> Iterator[Any]:
    """A read transaction on the cache; warns once if the file is not secure."""
    with opened_here() as database:
        warn(database)
        with database.reading() as db:
            yield db


def warn(database: Database) -> None:
    """Print on stderr what an adoption did, once, and the result of `take_warning`."""
    tell_adoption(database)
    if warning := take_warning(database):
        click.echo(f"warning: {warning}", err=True)


def tell_adoption(database: Database) -> None:
    """Print once, on stderr, that nmem's own database became the cache."""
    with database.reading() as db:
        adopted = about(db, ADOPTED)
    if adopted:
        click.echo(printable(adopted), err=True)
        with database.transaction() as db:
            set_about(db, {ADOPTED: ""})


def take_warning(database: Database) -> str:
    """The security warning of the file, marked as shown; empty if it was shown before or there is
    none.

    A file created by a hook has a warning that was never shown.
    """
    warning = database.warning
    if not warning:
        return ""
    with database.reading() as db:
        if about(db, _WARNED) == warning:
            return ""
    with database.transaction() as db:
        set_about(db, {_WARNED: warning})
    return f"{warning}; shown once, and by `rookery nmem status`"

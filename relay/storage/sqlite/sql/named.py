"""The statements of the `.sql` files here by their names, and the scripts beside them."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

from relay.errors import StoreVersion


def script(name: str) -> str:
    """The text of a `.sql` file of this package."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def migration(version: int) -> str:
    """The script that leads to this version of the schema. Raises StoreVersion."""
    for file in resources.files(__package__).joinpath("migrations").iterdir():
        if file.name.startswith(f"{version:04}_"):
            return file.read_text("utf-8")
    raise StoreVersion(f"no migration leads to schema {version}")


def _statements(text: str) -> dict[str, str]:
    """By the name in `-- :name  parameters -> columns`."""
    parts = re.split(r"^-- :(\w+)[^\n]*\n", text, flags=re.MULTILINE)[1:]
    return {
        name: body.strip().rstrip(";") for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


QUERIES: Final = _statements(script("queries.sql"))
SEARCH_QUERIES: Final = _statements(script("search.sql"))
VERIFY_QUERIES: Final = _statements(script("verify.sql"))

"""The statements of `.sql` files by their names, and scripts beside them."""

from __future__ import annotations

import re
from importlib import resources

from relay.errors import StoreVersion


class SqlFiles:
    """The `.sql` files of one package; migrations are in its folder `migrations`."""

    def __init__(self, package: str) -> None:
        self._files = resources.files(package)

    def script(self, name: str) -> str:
        """The text of a file."""
        return self._files.joinpath(name).read_text("utf-8")

    def migration(self, version: int) -> str:
        """The script that leads to this version of the schema. Raises StoreVersion."""
        for file in self._files.joinpath("migrations").iterdir():
            if file.name.startswith(f"{version:04}_"):
                return file.read_text("utf-8")
        raise StoreVersion(f"no migration leads to schema {version}")

    def statements(self, file: str) -> dict[str, str]:
        """By the name in `-- :name  parameters -> columns`. `{name}` in one stands for the text of
        one before it."""
        parts = re.split(r"^-- :(\w+)[^\n]*\n", self.script(file), flags=re.MULTILINE)[1:]
        found: dict[str, str] = {}
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            text = body.strip().rstrip(";")
            found[name] = re.sub(r"\{(\w+)\}", lambda each: found[each[1]], text)
        return found

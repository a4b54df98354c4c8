"""policies/README.md as data: its recipes, each with the files that it brings, and its tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import policies
from policies import PolicySet, load
from policies.cases import Cast
from policies.load import PRESETS
from relay.access.actors import Actors
from relay.memory.systems import MEMORY_SYSTEMS
from relay.nostr.keys import npub

TEXT = (Path(policies.__file__).parent / "README.md").read_text("utf-8")

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_RECIPE = re.compile(r"^### (.+)$", re.MULTILINE)
_TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```text\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SOMEBODY = re.compile(r"npub1([a-z]*)…")
_ROW = re.compile(r"^\| (?:`(\w+)` \| )?`([^`]+)` \|(?: (?:`([^`]+)`|none) \|)?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Recipe:
    title: str
    policy: str
    files: dict[str, str]
    """Key files by name."""

    @property
    def slug(self) -> str:
        """`A private team` → `a_private_team`."""
        return "_".join(re.findall(r"\w+", self.title.lower()))

    def laid_over(self, preset: str, folder: Path) -> PolicySet:
        """What is in force with this recipe in a folder that `init` made."""
        (folder / "10-preset.toml").write_bytes((PRESETS / f"{preset}.toml").read_bytes())
        (folder / "20-recipe.toml").write_text(self.policy)
        for name, text in self.files.items():
            (folder / name).write_text(text)
        return load(folder, MEMORY_SYSTEMS)


def section(title: str) -> str:
    parts = _SECTION.split(TEXT)
    return parts[parts.index(title) + 1]


def blocks() -> list[str]:
    """Every TOML block of the page; `npub1ada…` is the key that cases call `ada`.

    Those about plug-ins need programs: tests/unit/policies/plugins/test_readme.py.
    """
    page = TEXT.replace(section("Plug-ins"), "")
    return [_with_keys(block) for block in _TOML.findall(page)]


def recipes() -> list[Recipe]:
    _, *parts = _RECIPE.split(section("Recipes"))
    return [
        Recipe(
            title,
            _with_keys("\n".join(_TOML.findall(text))),
            {name: _with_keys(keys) for name, keys in _FILE.findall(text)},
        )
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def rows(title: str, heading: str = "") -> list[tuple[str, str, str | None]]:
    """(table, key, default) of each line of the tables of a section, or of one of its headings."""
    text = section(title)
    if heading:
        parts = _RECIPE.split(text)
        text = parts[parts.index(heading) + 1]
    return [(table, key, default or None) for table, key, default in _ROW.findall(text)]


def _with_keys(text: str) -> str:
    cast = Cast(Actors())
    return _SOMEBODY.sub(lambda found: npub(cast.key(found[1] or "somebody")), text)

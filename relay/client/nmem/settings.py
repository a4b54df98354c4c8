"""Table [nmem] of client.toml."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from relay.client.settings import FILE, read_client_file
from relay.errors import ConfigFaults, Fault, Invalid
from relay.memory.nmem.secrets import SecretFilter, Sensitivity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from relay.client.settings import ClientFile

_TEXTS: Final = ("db", "key_file", "group", "summary_url", "summary_model", "summary_key_file")
KEYS: Final = (*_TEXTS, "sensitivity", "patterns")


@dataclass(frozen=True, slots=True)
class NmemSettings:
    """Location and content of the cache."""

    data: Path
    """The client's data folder."""
    db: Path
    key_file: Path | None
    """Key file of the cache; None: a file in `data`."""
    group: str | None
    """Members may read the records; None: only author and owner."""
    sensitivity: Sensitivity
    patterns: tuple[str, ...]
    """Additional secret patterns, RE2 syntax."""
    summary_url: str | None
    """Base URL of an OpenAI-compatible endpoint, such as `http://127.0.0.1:11434/v1`."""
    summary_model: str | None
    summary_key_file: Path | None

    def secret_filter(self) -> SecretFilter:
        return SecretFilter(self.sensitivity, self.patterns)


def find_nmem_settings(home: Path) -> tuple[ClientFile, NmemSettings]:
    """client.toml and its table [nmem]. Raises ConfigFaults with all faults."""
    file = read_client_file(home)
    table = dict(file.tables).get("nmem", {})
    faults = [Fault(str(home / FILE), 0, f"[nmem] {fault}") for fault in _faults(table)]
    if faults:
        raise ConfigFaults(faults)
    data = file.data or home / ".local/share/rookery"
    given: Any = table

    def path_in(name: str) -> Path | None:
        return _path(str(given[name]), home) if name in given else None

    return file, NmemSettings(
        data,
        path_in("db") or data / "nmem.db",
        path_in("key_file"),
        given.get("group"),
        Sensitivity(given.get("sensitivity", "normal")),
        tuple(given.get("patterns", ())),
        given.get("summary_url"),
        given.get("summary_model"),
        path_in("summary_key_file"),
    )


def _path(text: str, home: Path) -> Path:
    """`~` is the home folder; relative paths start at the folder of client.toml."""
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return (home / FILE).parent / text


def _faults(table: Mapping[str, object]) -> Iterator[str]:
    for name, value in table.items():
        if name not in KEYS:
            near = get_close_matches(name, KEYS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KEYS)}"
            yield f"{name}: unknown key; {hint}"
        elif name == "patterns":
            yield from _pattern_faults(value)
        elif not isinstance(value, str):
            yield f"{name}: must be a string"
        elif name == "sensitivity" and value not in list(Sensitivity):
            yield f"sensitivity: must be {', '.join(Sensitivity)}"
        elif name == "summary_url" and urlsplit(value).scheme not in ("http", "https"):
            yield "summary_url: must begin with http:// or https://"
    if ("summary_url" in table) != ("summary_model" in table):
        yield "summary_url and summary_model must be set together"


def _pattern_faults(value: object) -> Iterator[str]:
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        yield "patterns: must be a list of strings"
        return
    for pattern in value:
        try:
            SecretFilter(Sensitivity.RELAXED, [pattern])
        except Invalid as invalid:
            yield f"patterns: {invalid.text}"

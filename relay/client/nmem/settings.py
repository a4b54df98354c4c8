"""Table [nmem] of client.toml."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from relay.client.nmem.sources import Sources
from relay.client.settings import FILE, path_in, read_client_file, suggestion
from relay.errors import ConfigFaults, Fault, Invalid
from relay.files import place_of_others
from relay.memory.secrets import SecretFilter, Sensitivity
from relay.nostr.keys import public_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from relay.client.settings import ClientFile

_TEXTS: Final = ("db", "key_file", "group", "summary_url", "summary_model", "summary_key_file")
KEYS: Final = (*_TEXTS, "agents", "sensitivity", "patterns")


_NO_MODEL: Final = (
    "no model is configured: sessions are not summarised, and nothing of a session without a"
    " summary is ever swept, here or at the relay; set summary_url and summary_model under [nmem]"
    f" in ~/{FILE}"
)


@dataclass(frozen=True, slots=True)
class NmemSettings:
    """Location and content of the cache."""

    data: Path
    """The client's data folder."""
    db: Path
    key_file: Path | None
    """Key file of the cache; None: a file in `data`."""
    group: str | None
    """Members may read the records, and theirs are fetched; None: only author and owner."""
    agents: frozenset[str]
    """Other agents whose records are fetched, 64 hex each."""
    sensitivity: Sensitivity
    patterns: tuple[str, ...]
    """Additional secret patterns, RE2 syntax."""
    summary_url: str | None
    """URL of a server with OpenAI's API, such as `http://127.0.0.1:11434`; `/v1` may be missing."""
    summary_model: str | None
    summary_key_file: Path | None

    def secret_filter(self) -> SecretFilter:
        return SecretFilter(self.sensitivity, self.patterns)

    @property
    def shortfall(self) -> str:
        """What does not happen without a model; empty: one is configured."""
        return _NO_MODEL if self.summary_url is None else ""

    @property
    def sources(self) -> Sources:
        return Sources(self.group, self.agents)


def find_nmem_settings(home: Path) -> tuple[ClientFile, NmemSettings]:
    """client.toml and its table [nmem]. Raises ConfigFaults with all faults, also if another user
    may have made the cache."""
    file = read_client_file(home)
    table = dict(file.tables).get("nmem", {})
    faults = [Fault(str(home / FILE), 0, f"[nmem] {fault}") for fault in _faults(table)]
    if faults:
        raise ConfigFaults(faults)
    data = file.data or home / ".local/share/rookery"
    db = path_in(table, "db", home) or data / "nmem.db"
    if others := place_of_others(db, home):
        raise ConfigFaults([Fault(str(db), 0, f"not used, {others}")])
    given: Any = table
    return file, NmemSettings(
        data,
        db,
        path_in(table, "key_file", home),
        given.get("group"),
        frozenset(map(public_key, given.get("agents", ()))),
        Sensitivity(given.get("sensitivity", "normal")),
        tuple(given.get("patterns", ())),
        given.get("summary_url"),
        given.get("summary_model"),
        path_in(table, "summary_key_file", home),
    )


def _faults(table: Mapping[str, object]) -> Iterator[str]:
    for name, value in table.items():
        if name not in KEYS:
            yield f"{name}: unknown key; {suggestion(name, KEYS)}"
        elif name == "patterns":
            yield from _pattern_faults(value)
        elif name == "agents":
            yield from _key_faults(value)
        elif not isinstance(value, str):
            yield f"{name}: must be a string"
        elif name == "sensitivity" and value not in list(Sensitivity):
            yield f"sensitivity: must be {', '.join(Sensitivity)}"
        elif name == "summary_url" and urlsplit(value).scheme not in ("http", "https"):
            yield "summary_url: must begin with http:// or https://"
    if ("summary_url" in table) != ("summary_model" in table):
        yield "summary_url and summary_model must be set together"


def _key_faults(value: object) -> Iterator[str]:
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        yield "agents: must be a list of public keys"
        return
    for text in value:
        try:
            public_key(text)
        except Invalid:
            yield "agents: must be a list of public keys, npub1… or 64 hex characters"


def _pattern_faults(value: object) -> Iterator[str]:
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        yield "patterns: must be a list of strings"
        return
    for pattern in value:
        try:
            SecretFilter(Sensitivity.RELAXED, [pattern])
        except Invalid as invalid:
            yield f"patterns: {invalid.text}"

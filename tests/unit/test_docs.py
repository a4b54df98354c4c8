"""The documentation is complete and leads nowhere wrong: settings, commands, metrics, links.

The words and keys of policy files: tests/unit/policies/test_readme_words.py.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import tomllib
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from relay import client
from relay.access.management import METHODS, SUPPORTED_METHODS
from relay.cli import rookery
from relay.client.anamnesis.settings import KEYS as ANAMNESIS_KEYS
from relay.client.nmem.settings import KEYS as NMEM_KEYS
from relay.client.settings import KEYS, SNOWCLAW_KEYS
from relay.config import SETTINGS, Config
from relay.mcp.tools import TOOLS
from relay.observe import Metrics
from relay.server.http import SUPPORTED_NIPS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "policies/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
    if not path.name.startswith("conformance")
)
"""Written by hand; `make conformance` compares the generated ones."""
SOURCES = sorted(
    path
    for folder in ("relay", "policies")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sql", ".toml")
)


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of any level."""
    _, _, rest = text.partition(f"\n{heading}\n")
    assert rest, heading
    return re.split(r"^#", rest, maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text: str) -> list[str]:
    """The `code` of the first cell of each table row."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


# settings ----------------------------------------------------------------------------------------


def test_every_setting_of_rookery_toml_has_a_row_with_its_default() -> None:
    text = section(OPERATIONS, "## Settings")
    rows = re.findall(r"^\| `\[(\w+)\] (\w+)` \| (?:`(.*?)`|none) \|", text, re.MULTILINE)
    documented = {
        (table, key): tomllib.loads(f"value = {default}")["value"] if default else None
        for table, key, default in rows
    }
    config = Config()
    assert documented == {
        (table, key): as_toml(getattr(getattr(config, table), key))
        for table, keys in SETTINGS.items()
        for key in keys
    }


def as_toml(value: object) -> object:
    """A default as tomllib would read it."""
    match value:
        case Enum():
            return value.value
        case frozenset():
            return sorted(value)
        case tuple():
            return [str(item) for item in value]
        case _:
            return value


def test_every_setting_of_client_toml_has_a_row() -> None:
    tables = {
        "": KEYS,
        "[snowclaw] ": SNOWCLAW_KEYS,
        "[nmem] ": NMEM_KEYS,
        "[anamnesis] ": ANAMNESIS_KEYS,
    }
    text = section(OPERATIONS, "### `~/.config/rookery/client.toml`")
    assert sorted(first_cells(text)) == sorted(
        f"{table}{key}" for table, keys in tables.items() for key in keys
    )


def test_every_environment_variable_has_a_row() -> None:
    named = {
        name
        for path in SOURCES
        for names in re.findall(
            r'environ(?:\.get\(|\[)"([A-Z_]+)"|^\w*VARIABLE: Final = "([A-Z_]+)"',
            path.read_text("utf-8"),
            re.MULTILINE,
        )
        for name in names
        if name
    }
    assert sorted(first_cells(section(OPERATIONS, "### Environment"))) == sorted(named)


# commands ----------------------------------------------------------------------------------------


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The full name of each command that is not hidden."""
    if command.hidden:
        return
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield " ".join(("rookery", *path))
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


def test_every_command_has_a_row() -> None:
    rows = first_cells(section(OPERATIONS, "## Commands"))
    documented = [" ".join(re.findall(r"^[a-z0-9 -]+", row)).strip() for row in rows]
    assert sorted(documented) == sorted(set(commands(rookery)) - HOOK_ITSELF)


HOOK_ITSELF = {"rookery hook"}
"""Called by a coding agent, not by people; docs/memory.md has it."""


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words after `rookery` of each command line in code blocks and code spans."""
    text = page.read_text("utf-8")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    spans = re.findall(r"`(rookery [^`]+)`", text)
    for line in [*lines, *spans]:
        for part in re.split(r" \| | && | # | -- ", line):
            words = part.split()
            if "rookery" in words[:2]:
                yield words[words.index("rookery") + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_command_line_names_commands_and_options_that_exist(page: Path) -> None:
    wrong = []
    for words in command_lines(page):
        command: click.Command = rookery
        rest = list(words)
        while isinstance(command, click.Group) and rest and re.fullmatch(r"[a-z-]+", rest[0]):
            found = command.get_command(click.Context(command), rest[0])
            if found is None:
                break
            command = found
            del rest[0]
        options = {"--help", "--version"}
        for parameter in command.params:
            options.update(parameter.opts, parameter.secondary_opts)
        named = {
            word.strip("[]").partition("=")[0] for word in rest if word.startswith(("-", "[-"))
        }
        if command is rookery or not named - {"-"} <= options:
            wrong.append(" ".join(words))
    assert wrong == []


# Python ------------------------------------------------------------------------------------------


def test_every_import_of_an_example_works() -> None:
    wrong = []
    for page in PAGES:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
        for node in (node for block in blocks for node in ast.walk(ast.parse(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                ("relay", "policies")
            ):
                module = import_module(node.module or "")
                wrong += [
                    f"{page.name}: {node.module}.{alias.name}"
                    for alias in node.names
                    if not hasattr(module, alias.name)
                ]
    assert wrong == []


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("Aman", "Aman"),
        ("Use", "Snowclaw"),
        ("AI conversations", "Transcripts"),
        ("nmem", "Nmem"),
        ("Anamnesis", "Anamnesis"),
    ],
)
def test_every_method_of_the_guide_to_memory_exists(heading: str, name: str) -> None:
    page = "snowclaw.md" if heading == "Use" else "memory.md"
    text = section((ROOT / "docs" / page).read_text("utf-8"), f"## {heading}")
    rows = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    sentences = re.findall(rf"`{name}\([^`]*\)` has ([^.]*)", text)
    methods = {
        method
        for part in [*rows, *sentences]
        for method in re.findall(r"`(\w+)(?:\([^`]*\))?`", part)
    }
    known = getattr(client, name)
    assert methods
    assert sorted(method for method in methods if not hasattr(known, method)) == []


def test_the_guide_to_memory_is_short() -> None:
    assert (ROOT / "docs" / "memory.md").stat().st_size < 25 << 10


# metrics, NIPs -----------------------------------------------------------------------------------


def test_every_metric_has_a_row() -> None:
    page = Metrics().page().decode()
    exposed = {
        name
        for name in re.findall(r"^# TYPE (rookery_\w+) \w+$", page, re.MULTILINE)
        if not name.endswith("_created")
    }
    watched = {
        f"rookery_{name}"
        for path in SOURCES
        for name in re.findall(r'metrics\.watch\(\s*"(\w+)"', path.read_text("utf-8"))
    }
    assert watched
    assert sorted(first_cells(section(OPERATIONS, "## Health and metrics"))) == sorted(
        exposed | watched
    )


def test_the_nips_of_nip11_are_those_of_the_documentation() -> None:
    nips = {*SUPPORTED_NIPS, 50}
    interop = (ROOT / "docs" / "interop.md").read_text("utf-8")
    rows = re.findall(r"^\| ([0-9, ]+) \|", interop, re.MULTILINE)
    assert nips <= {int(nip) for row in rows for nip in row.split(",")}
    readme = (ROOT / "README.md").read_text("utf-8")
    (listed,) = re.findall(r"Supported: NIP-([0-9,\s]+)\.", readme)
    assert {int(nip) for nip in listed.split(",")} == nips


def test_every_method_of_nip86_has_a_row() -> None:
    rows = re.findall(r"^\| (`[^|]+`) \|", section(OPERATIONS, "## Managing over NIP-86"), re.M)
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted([*METHODS, SUPPORTED_METHODS])


def test_every_tool_of_the_mcp_server_has_a_row() -> None:
    memory = (ROOT / "docs" / "memory.md").read_text("utf-8")
    rows = first_cells(section(memory, "### MCP"))
    assert sorted(rows) == sorted(tool.name for tool in TOOLS)


# links -------------------------------------------------------------------------------------------


@cache
def anchors(path: Path) -> frozenset[str]:
    """The fragments that a Markdown page offers, as repository hosts make them of headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w -]", "", plain.lower()).replace(" ", "-")
        number = found.get(anchor, 0)
        found[anchor] = number + 1
        if number:
            found[f"{anchor}-{number}"] = 1
    return frozenset(found)


def links(path: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [
        link
        for link in re.findall(r"\]\(([^)\s]+)\)", text)
        if not link.startswith(("http://", "https://", "mailto:"))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    dead = []
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_of_the_documentation_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        waiting += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    assert sorted(set((ROOT / "docs").glob("*.md")) - reached) == []


# -- security --------------------------------------------------------------------------------------

SECURITY = (ROOT / "docs" / "security.md").read_text("utf-8")


def test_every_line_of_the_threat_model_names_a_test_that_exists() -> None:
    rows = [line for line in SECURITY.splitlines() if line.startswith("| ")]
    rows = [
        line
        for line in rows
        if not re.search(r"\| (held by|test|test in `tests/leaks/`) \|$", line)
    ]
    assert len(rows) > 30
    in_lookups = (ROOT / "tests/unit/write/test_lookups.py").read_text("utf-8")
    missing = []
    for row in rows:
        if row.endswith("| the same |"):
            continue
        named = re.findall(r"`(tests/[^`]+)`", row)
        named += [f"tests/leaks/{file}" for file in re.findall(r"`(test_\w+\.py)`", row)]
        alone = re.findall(r"`(test_\w+)`", row)
        missing += [name for name in alone if f"def {name}(" not in in_lookups]
        if not named and not alone:
            missing.append(row)
        for name in named:
            file, _, test = name.partition("::")
            path = ROOT / file
            text = path.read_text("utf-8") if path.is_file() else ""
            is_there = f"def {test}(" in text if test else bool(text)
            if not is_there:
                missing.append(name)
    assert not missing


def named_in(text: str) -> set[str]:
    """Names of packages at the beginning of lines, as PEP 503 writes them."""
    names = re.findall(r"^([A-Za-z0-9][\w.-]*)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}


def test_the_lock_file_has_what_the_project_depends_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for file, wanted in (
        ("requirements.lock", project["project"]["dependencies"]),
        ("build.lock", project["build-system"]["requires"]),
    ):
        text = (ROOT / "deploy" / file).read_text("utf-8")
        assert named_in("\n".join(wanted)) <= named_in(text), f"{file}: run `make lock`"
        packages = re.findall(
            r"^\S+==\S+.*(?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+$", text, re.M
        )
        assert len(packages) == len(named_in(text)), f"{file}: without hash"
        assert "://" not in text, f"{file}: names an index"
        assert f"--require-hashes -r deploy/{file}" in (ROOT / "deploy" / "Dockerfile").read_text()


def test_a_known_vulnerability_fails_the_audit() -> None:
    report = runpy.run_path(str(ROOT / "deploy" / "audit.py"))["report"]
    fine = {"name": "a", "version": "1", "vulns": []}
    bad = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
    unknown = {"name": "c", "skip_reason": "not found"}
    for packages, code, said in (
        ([fine, unknown], 0, "no known vulnerability in 1 of 2 packages"),
        ([fine, bad], 1, "b 2: CVE-1, fixed in 3"),
        ([unknown], 0, "could not be reached"),
    ):
        found, (line,) = report(json.dumps({"dependencies": packages}))
        assert (found, said in line) == (code, True)
    for failed in ("", "Traceback"):
        assert report(failed)[0] == 0


def test_an_extra_is_installed_without_copying_the_code_as_make_run_does() -> None:
    """A copy would stay in force after `git pull`, and `make run` could not see that."""
    wrong = [
        f"{page.name}: {line}"
        for page in PAGES
        for line in re.findall(r'pip install [^`\n]*"\.\[.*', page.read_text("utf-8"))
        if "-e " not in line
    ]
    assert wrong == []


def test_the_documented_installs_bring_sqlcipher() -> None:
    assert re.search(r"^EXTRA_run +:= \[sqlcipher\]$", (ROOT / "Makefile").read_text(), re.M)
    nmem = section((ROOT / "docs/memory.md").read_text("utf-8"), "## nmem")
    assert nmem.index('pip install -e ".[sqlcipher]"') < nmem.index("rookery hook install")

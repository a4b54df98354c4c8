"""docs/architecture.md holds: its layers, files, tests and words are those of the code.

The other pages' files and tests too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for pattern in ("docs/*.md", "*.md", "policies/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md" and not path.name.startswith("conformance")
}
FILE = re.compile(r"\b((?:relay|policies|tests|docs|deploy)/[\w./-]*\w/?)(?:::(\w+))?")


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def drawing(heading: str) -> list[str]:
    """The lines of the code blocks of a section."""
    blocks = re.findall(r"^```\n(.*?)^```", section(heading), re.MULTILINE | re.DOTALL)
    return "".join(blocks).splitlines()


def test_the_layers_drawn_are_those_of_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = next(
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    drawn = [re.split(r" {2,}", line)[0] for line in drawing("Layers")]
    assert drawn == contract["layers"]
    assert len(drawn) <= 12


def test_the_layers_are_all_packages_and_modules_of_relay() -> None:
    names = {part.strip() for line in drawing("Layers") for part in line[:31].split("|")}
    found = {
        path.stem
        for path in (ROOT / "relay").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert names == found - {"__init__", "__main__", "launcher", "hook"}


@pytest.mark.process
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout of the repository")
def test_only_what_belongs_to_the_project_is_committed() -> None:
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-tree", "-rlz", "HEAD"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    sizes = {
        path: int(about.split()[3])
        for about, _, path in (each.partition("\t") for each in listed.split("\0") if each)
    }
    tops = {path.split("/")[0] for path in sizes if not path.startswith(".")}
    assert tops <= {
        *("relay", "policies", "tests", "deploy", "docs", "pyproject.toml", "Makefile"),
        *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"),
    }
    assert {path for path, size in sizes.items() if size > 1_000_000} == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle_in(imports_below(ROOT)) == []


@pytest.mark.parametrize(
    "back",
    [
        "from relay.tea.cup import MILK",
        "import relay.tea.cup",
        "def pour():\n    from relay.tea import cup",
        "if TYPE_CHECKING:\n    from relay.tea.cup import Milk",
    ],
)
def test_a_circle_is_found_wherever_the_import_stands(back: str, tmp_path: Path) -> None:
    sources = {"__init__": "", "cup": "from relay.tea.pot import TEA", "pot": "", "kettle": back}
    write_package(tmp_path, sources | {"pot": "import os\n"})
    assert circle_in(imports_below(tmp_path)) == []
    write_package(tmp_path, sources | {"pot": "from relay.tea import kettle"})
    assert set(circle_in(imports_below(tmp_path))) == {
        "relay.tea.cup",
        "relay.tea.pot",
        "relay.tea.kettle",
    }


def write_package(root: Path, sources: Mapping[str, str]) -> None:
    folder = root / "relay" / "tea"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in sources.items():
        (folder / f"{name}.py").write_text(text, "utf-8")


def imports_below(root: Path) -> dict[str, set[str]]:
    """Each module of `relay` and `policies` → those that it imports, also in functions and for
    types."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for package in ("relay", "policies")
        for path in (root / package).rglob("*.py")
    }
    return {
        name: set(imported_by(ast.parse(path.read_bytes()), files.keys())) - {name}
        for name, path in files.items()
    }


def imported_by(tree: ast.Module, modules: Set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                named = whole if whole in modules else node.module
                if named in modules:
                    yield named


def circle_in(imports: Mapping[str, Set[str]]) -> list[str]:
    """Modules of which each is imported by the next, the first again at the end; empty: none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


@pytest.mark.parametrize(
    "package",
    ["policies", *sorted(f"relay/{path.parent.name}" for path in ROOT.glob("relay/*/__init__.py"))],
)
def test_every_package_says_what_belongs_in_it(package: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text("utf-8")))
    assert text
    assert len([line for line in text.splitlines() if line.strip()]) >= 3


@pytest.mark.parametrize("package", ["write", "read"])
def test_every_module_of_a_pipeline_is_a_step_of_its_drawing(package: str) -> None:
    steps = {line.split()[0] for line in drawing(f"The {package} pipeline") if line[:1].strip()}
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "relay" / package).glob("*.py")
        if path.name != "__init__.py"
    }
    assert modules - steps == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_test_that_a_page_names_exists(page: str) -> None:
    text = re.sub(r"\]\([^)]*\)", "]", PAGES[page])
    text = text.replace("policies/*.toml", "").replace("DIR/policies/", "")
    missing = []
    for path, name in FILE.findall(text):
        if path.startswith("policies/") and path.endswith(".toml") and "defaults/" not in path:
            continue  # of a data folder
        file = ROOT / path
        if not file.exists() or (name and name not in functions(file)):
            missing.append(f"{path}::{name}" if name else path)
    assert missing == []


@cache
def functions(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_invariant_names_what_holds_it() -> None:
    rows = re.findall(r"^\| (.+) \|$", section("Invariants"), re.MULTILINE)[2:]
    assert len(rows) >= 10
    assert [row for row in rows if "tests/" not in row and "make " not in row] == []


def test_every_type_of_the_glossary_exists() -> None:
    code = "\n".join(
        path.read_text("utf-8")
        for folder in ("relay", "policies")
        for path in (ROOT / folder).rglob("*.py")
    )
    types = re.findall(r"\*\*([A-Z]\w+)\*\*", section("Glossary"))
    assert len(types) > 20
    unknown = [
        name for name in types if not re.search(rf"^(?:class {name}\b|{name}(?::| =))", code, re.M)
    ]
    assert unknown == []


def test_where_to_change_something_has_twenty_answers() -> None:
    rows = re.findall(r"^\| .+ \|$", section("Where would I change …?"), re.MULTILINE)[2:]
    assert len(rows) >= 20


WRITES_BY_NAME = {
    "relay/files.py",
    "relay/cli/__init__.py",  # /dev/null
    "policies/cases.py",  # into a temporary folder
}
"""Files that open a file for writing by its name."""


def test_files_are_written_by_what_follows_no_link_of_others() -> None:
    """`write_text`, and `open` for writing, follow a link that another user made, empty a file of
    any user and wait at a pipe: use `own_file`, `atomic_file` or `replace_own_file`."""
    found = {
        str(path.relative_to(ROOT))
        for folder in ("relay", "policies")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and opens_for_writing(node)
    }
    assert found == WRITES_BY_NAME


SAFE_IN_COMMANDS = {
    *("number", "newest.number", "version.number"),
    *("request", "signer", "was"),  # ids and keys
    *("where", "by.format(name)", "owner"),  # names of commands, and of users of this machine
    "printable(pair)",  # what was given, in no command
    "id_",  # `_check_resumable` has looked at it
}
COMMAND = re.compile(r"`[^`]*`|(?:--[\w-]+|chmod \S+|restore) \0[^\0]*\0")


def test_a_command_that_is_shown_to_be_copied_quotes_what_it_names() -> None:
    """Names of files, groups and sessions are chosen by others: `shell_word` quotes them."""
    found = {
        name
        for folder in ("relay", "policies")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.JoinedStr)
        for command in COMMAND.findall("".join(map(shown_part, node.values)))
        for name in re.findall("\0([^\0]*)\0", command)
        if not name.startswith(("shell_word(", "shlex.quote("))
    }
    assert found == SAFE_IN_COMMANDS


def shown_part(part: ast.expr) -> str:
    """A value as its expression between NULs."""
    if isinstance(part, ast.FormattedValue):
        return f"\0{ast.unparse(part.value)}\0"
    assert isinstance(part, ast.Constant)
    return str(part.value)


def opens_for_writing(call: ast.Call) -> bool:
    """Not with "x", which makes a new file; nor by a descriptor."""
    match call.func:
        case ast.Attribute(attr="write_text" | "write_bytes"):
            return True
        case ast.Name(id="open"):
            places = call.args[1:2]
        case ast.Attribute(value=ast.Name(id="os" | "webbrowser" | "tarfile"), attr="open"):
            return False
        case ast.Attribute(attr="open"):
            places = call.args[:1]
        case _:
            return False
    modes = [*places, *(each.value for each in call.keywords if each.arg == "mode")]
    return any(
        (
            isinstance(mode, ast.Constant)
            and isinstance(mode.value, str)
            and re.fullmatch(r"[rwab+]*[wa+][rwab+]*", mode.value)
        )
        or (isinstance(mode, ast.Name) and mode.id == "mode")
        for mode in modes
    )

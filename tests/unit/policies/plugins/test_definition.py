"""policies/plugins/definition.py: what an admin writes, and what they hear of it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from policies.engine import Stage
from policies.plugins.definition import Command, Entry
from policies.reload import fingerprint
from relay.facts import Origin
from tests.harness.folders import faults_of, loaded, written
from tests.unit.policies.facts import NOBODY
from tests.unit.policies.plugins.stage import note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from policies.plugins import Plugin

MODULE = """
def no_links(event, arrival):
    return None
NUMBER = 5
"""


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A distribution with rules, as pip leaves it on `sys.path`."""
    site = tmp_path_factory.mktemp("site")
    (site / "sifting_rules.py").write_text(MODULE)
    info = site / "sifting_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sifting-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rookery.rules]\n"
        "no-links = sifting_rules:no_links\n"
        "a-number = sifting_rules:NUMBER\n"
        "missing = sifting_rules:gone\n"
    )
    sys.path.insert(0, str(site))
    yield
    sys.path.remove(str(site))
    sys.modules.pop("sifting_rules", None)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "sift.py"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def plugin(folder: Path, text: str) -> Plugin:
    [found] = loaded(folder, a=f'[[plugin]]\nname = "x"\n{text}').plugins
    return found


@pytest.mark.parametrize(
    "run", ["\"sift.py --fast 'two words'\"", '["sift.py", "--fast", "two words"]']
)
def test_a_command_is_a_line_or_a_list_and_stands_beside_its_file(
    tmp_path: Path, script: Path, run: str
) -> None:
    found = plugin(tmp_path, f"run = {run}")
    assert isinstance(found.way, Command)
    assert found.way.words == (str(script), "--fast", "two words")
    assert found.way.folder == str(tmp_path)
    assert found.deadline_ms == 500


def test_a_command_is_looked_for_in_path_when_it_is_not_there(tmp_path: Path) -> None:
    found = plugin(tmp_path, 'run = ["sh", "-c", "exec cat"]\ndeadline_ms = 2000')
    assert isinstance(found.way, Command)
    assert os.path.isabs(found.way.words[0])
    assert found.deadline_ms == 2000


def test_plug_ins_keep_the_order_of_the_files_and_later_ones_replace_or_switch_off(
    tmp_path: Path,
) -> None:
    def one(name: str, *lines: str) -> str:
        return "\n".join(["[[plugin]]", f'name = "{name}"', *lines, ""])

    found = loaded(
        tmp_path,
        a=one("first", 'run = "sh"') + one("second", 'run = "sh"'),
        b=one("third", 'run = "sh"') + one("first", 'run = "cat"') + one("off", 'run = "sh"'),
        c=one("off", "enabled = false") + one("never", 'run = "sh"', "enabled = false"),
    ).plugins
    assert [each.name for each in found] == ["first", "second", "third"]
    assert isinstance(found[0].way, Command)
    assert found[0].way.words[0].endswith("cat")


@pytest.mark.usefixtures("installed")
def test_an_entry_is_a_function_of_an_installed_package(tmp_path: Path) -> None:
    found = plugin(tmp_path, 'entry = "no-links"')
    assert isinstance(found.way, Entry)
    assert found.way.words == "sifting_rules:no_links"
    assert found.way.rule.__name__ == "no_links"
    assert loaded(tmp_path).plugins == (found,)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("", "1: a plug-in needs run (a command) or entry (a function)"),
        ('run = "sh"\nentry = "no-links"', "4: a plug-in has run or entry, not both"),
        ('entry = "no-link"', '3: entry: there is no "no-link"; did you mean "no-links"?'),
        ('entry = "a-number"', '3: entry: "a-number" (sifting_rules:NUMBER) is not a function'),
        ("entry = 5", "3: entry must be a string"),
        ('run = "gone.py"', '3: run: there is no program "gone.py" beside this file or in PATH'),
        ('run = "./gone/x"', '3: run: there is no program "./gone/x" beside this file or in PATH'),
        ('run = "a.toml"', '3: run: "a.toml" is not executable: chmod +x a.toml'),
        ('run = "sh \'x"', "3: run: no closing quotation"),
        ("run = 5", "3: run must be a list of strings"),
        ("run = []", "3: run must begin with a program"),
        ('run = " "', "3: run must begin with a program"),
        ('run = ["sh", "a\\u0000b"]', "3: run must begin with a program"),
        ('run = "sh"\ndeadline_ms = 0', "4: deadline_ms must be an integer of at least 1"),
        ('run = "sh"\ndeadline_ms = 60001', "4: deadline_ms must be at most 60000"),
        ('run = "sh"\nenabled = "no"', "4: enabled must be true or false"),
        (
            'runs = "sh"\nrun = "sh"',
            '3: unknown key "runs" in [[plugin]]; did you mean "run"?',
        ),
    ],
)
def test_a_fault_names_the_line_and_what_would_be_right(
    tmp_path: Path, lines: str, fault: str
) -> None:
    assert faults_of(tmp_path, a=f'[[plugin]]\nname = "x"\n{lines}') == [f"a.toml:{fault}"]


@pytest.mark.usefixtures("installed")
def test_an_entry_that_cannot_be_imported_is_a_fault_and_no_crash(tmp_path: Path) -> None:
    [fault] = faults_of(tmp_path, a='[[plugin]]\nname = "x"\nentry = "missing"')
    assert fault.startswith('a.toml:3: entry: "missing" cannot be imported: AttributeError: ')


def test_without_packages_that_have_rules_the_fault_says_so(tmp_path: Path) -> None:
    [fault] = faults_of(tmp_path, a='[[plugin]]\nname = "x"\nentry = "any"')
    assert fault == (
        'a.toml:3: entry: there is no "any"; no installed package offers an entry point '
        "in rookery.rules"
    )


def test_names_are_there_and_stand_once(tmp_path: Path) -> None:
    one = '[[plugin]]\nname = "x"\nrun = "sh"\n'
    assert faults_of(tmp_path, a=one + one) == [
        'a.toml:5: "x" is used twice in this file, first in line 1'
    ]
    assert faults_of(tmp_path, a='[[plugin]]\nrun = "sh"') == ["a.toml:1: [[plugin]] needs a name"]
    [fault] = faults_of(tmp_path, a='[[plugin]]\nname = "y"\nenabled = false')
    assert fault.startswith('a.toml:1: there is no earlier plugin "y" to switch')


def test_a_changed_script_is_another_plug_in_and_makes_the_policies_others(
    tmp_path: Path, script: Path
) -> None:
    other = tmp_path / "list.txt"
    other.write_text("a")
    text = '[[plugin]]\nname = "x"\nrun = ["sift.py", "list.txt", "not a file"]'
    before = loaded(tmp_path, a=text)
    assert before.watched == (str(script), str(other))
    seen = fingerprint(tmp_path, before.watched)
    assert loaded(tmp_path, a=f"# a line more\n{text}").plugins == before.plugins
    assert fingerprint(tmp_path, before.watched) != seen  # the file, not yet the plug-in
    seen = fingerprint(tmp_path, before.watched)
    other.write_text("a and b")
    assert fingerprint(tmp_path, before.watched) != seen
    assert loaded(written(tmp_path)).plugins != before.plugins


def test_explain_names_plug_ins_as_steps_asked_or_not(tmp_path: Path) -> None:
    policy = loaded(tmp_path, a='\n[[plugin]]\nname = "x"\nrun = "sh"')

    def steps(origin: Origin) -> list[tuple[str, int, bool]]:
        explained = policy.explain(note(), replace(NOBODY, origin=origin))
        return [
            (step.place.name, step.place.line, step.matched)
            for step in explained.steps
            if step.stage is Stage.PLUGIN
        ]

    assert steps(Origin.WIRE) == [("x", 2, True)]
    assert steps(Origin.TRUSTED_IMPORT) == [("x", 2, False)]

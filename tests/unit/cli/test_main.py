"""`relay/__main__.py`: whose are the import names `relay` and `policies`?

Each test is an installation of its own, made of copies of our packages, run by another Python.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

import pytest

import relay
from tests.harness.patience import PROGRAM_S

pytestmark = pytest.mark.process

SOURCE = Path(relay.__file__).parent.parent
START = """
import sys
source, *before = sys.argv[1:]
sys.path[:] = [*before, *(path for path in sys.path if path != source)]
sys.argv[1:] = ["--version"]
from relay.__main__ import main
main()
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Rookery, installed by pip."""
    site = tmp_path / "site"
    for name in ("relay", "policies"):
        shutil.copytree(
            SOURCE / name, site / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    lines = []
    for name in ("relay", "policies"):
        content = (site / name / "__init__.py").read_bytes()
        digest = urlsafe_b64encode(sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{name}/__init__.py,sha256={digest},{len(content)}")
    record(site, "rookery-0.1.0", *lines)
    return site


def record(site: Path, title: str, *lines: str) -> None:
    folder = site / f"{title}.dist-info"
    folder.mkdir(parents=True)
    (folder / "RECORD").write_text("\n".join([*lines, f"{title}.dist-info/RECORD,,"]) + "\n")


def started(*path: Path, by: str = "__main__") -> subprocess.CompletedProcess[str]:
    start = START.replace("__main__", by)
    return subprocess.run(
        [sys.executable, "-I", "-c", start, str(SOURCE), *map(str, path)],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )


def complaint(outcome: subprocess.CompletedProcess[str]) -> str:
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("rookery: ")
    return line


def test_an_installation_of_our_own_runs(site: Path) -> None:
    outcome = started(site)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith("rookery ")


@pytest.mark.parametrize("name", ["relay", "policies"])
def test_a_distribution_with_files_in_our_package_is_named(site: Path, name: str) -> None:
    record(site, "some_thing-2.3", "some_thing/x.py,,", f"{name}/extra.py,,")
    line = complaint(started(site))
    assert f"{name!r} also belongs to the distribution 'some_thing' 2.3" in line


def test_so_is_one_that_overwrote_our_first_file(site: Path) -> None:
    (site / "relay/__init__.py").write_text("__version__ = '9'\n")
    record(site, "relay-9", "relay/__init__.py,,")
    assert "'relay' also belongs to the distribution 'relay' 9" in complaint(started(site))


def test_and_one_of_the_old_kind_without_a_list_of_files(site: Path) -> None:
    (site / "Elder-1.0.egg-info").mkdir()
    (site / "Elder-1.0.egg-info/top_level.txt").write_text("elder\npolicies\n")
    assert "'policies' also belongs to the distribution 'Elder' 1.0" in complaint(started(site))


def test_an_overwritten_file_that_nobody_owns_up_to_is_told_too(site: Path) -> None:
    (site / "policies/__init__.py").write_text("# somebody else's\n")
    assert "'policies' also belongs to an unknown distribution" in complaint(started(site))


def test_a_foreign_package_that_lies_before_ours_is_named(site: Path, tmp_path: Path) -> None:
    before = tmp_path / "before"
    (before / "policies").mkdir(parents=True)
    (before / "policies/__init__.py").write_text("")
    record(before, "insurance-4.0.1", "policies/__init__.py,,")
    line = complaint(started(before, site))
    assert "'policies' also belongs to the distribution 'insurance' 4.0.1" in line
    assert str(before) in line


def test_so_is_a_foreign_module_of_one_file(site: Path, tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    (before / "policies.py").write_text("")
    record(before, "onefile-1", "policies.py,,")
    assert "'policies' also belongs to the distribution 'onefile' 1" in complaint(
        started(before, site)
    )


def test_a_package_that_lost_its_files_says_how_to_get_them_back(site: Path) -> None:
    shutil.rmtree(site / "policies")
    (site / "policies").mkdir()
    line = complaint(started(site))
    assert "'policies' is incomplete; install again" in line


def test_names_that_only_look_alike_are_no_conflict(site: Path) -> None:
    record(site, "relays-1", "relays/__init__.py,,", "x/relay/y.py,,", "relay_tools.py,,")
    assert started(site).returncode == 0


@pytest.mark.parametrize(
    ("by", "file"), [("__main__", "relay/cli/__init__.py"), ("launcher", "relay/__main__.py")]
)
def test_ctrl_c_while_modules_are_imported_is_no_traceback(site: Path, by: str, file: str) -> None:
    (site / file).write_text("raise KeyboardInterrupt\n")
    outcome = started(site, by=by)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (130, "", "")


TERMINATED = """
import os, signal, sys
install, is_first = signal.signal, True

def terminated(number, action):
    global is_first
    before = install(number, action)
    if is_first:
        is_first = False
        os.kill(os.getpid(), signal.SIGTERM)
    return before

signal.signal = terminated
sys.argv[1:] = ["--version"]
from relay.launcher import main
main()
"""


def test_sigterm_before_the_command_begins_ends_it_as_any_later_one() -> None:
    command = [sys.executable, "-c", TERMINATED]
    outcome = subprocess.run(command, cwd=SOURCE, capture_output=True, timeout=PROGRAM_S)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (-signal.SIGTERM, b"", b"")

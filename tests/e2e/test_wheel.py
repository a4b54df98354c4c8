"""What `pip install` puts on a machine, without the checkout around it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from relay import __version__
from tests.harness.patience import PROGRAM_S

ROOT = Path(__file__).parents[2]
COMMAND = "import sys; sys.path.insert(0, sys.argv.pop(1)); import rookery_launcher as r; r.main()"


@pytest.mark.slow
def test_the_command_of_an_installed_package_starts_and_has_its_files(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=PROGRAM_S)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with ZipFile(wheel) as archive:
        archive.extractall(site)

    def rookery(*args: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, str(site), *args],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_S,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert rookery("--version") == f"rookery {__version__}\n"
    rookery("init", str(tmp_path / "data"), "--owner", "a" * 64)
    checked = rookery("policy", "check", "--data", str(tmp_path / "data"))  # packaged policies
    assert "fault" not in checked
    assert (site / "relay/client/nmem/schema.sql").is_file()
    for package in ("relay", "policies"):
        assert (site / package / "py.typed").is_file()  # or who uses the client has no types

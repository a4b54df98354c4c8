"""Known vulnerabilities of what deploy/requirements.lock installs: `make audit`.

Exits with 1 when there are some. Without access to the data says so in one line and exits with 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).with_name("requirements.lock")
TIMEOUT_S = 60
UNREACHABLE = "pip-audit: the data on vulnerabilities could not be reached; nothing was checked"


def report(output: str) -> tuple[int, list[str]]:
    """The exit code and lines for what `pip-audit --format json` printed; "" when it failed."""
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError):
        return 0, [UNREACHABLE]
    checked = [each for each in packages if "skip_reason" not in each]
    found = [
        f"{each['name']} {each['version']}: {vulnerability['id']}, fixed in "
        + (", ".join(vulnerability["fix_versions"]) or "no version")
        for each in checked
        for vulnerability in each["vulns"]
    ]
    if found:
        return 1, found
    if not checked:
        return 0, [UNREACHABLE]
    return 0, [f"pip-audit: no known vulnerability in {len(checked)} of {len(packages)} packages"]


def audited() -> str:
    """What pip-audit prints; "" when it does not end."""
    # The command line is fixed.
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK)]
    options = ["--disable-pip", "--require-hashes", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(  # noqa: S603
            [*command, *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


if __name__ == "__main__":
    code, lines = report(audited())
    print(*lines, sep="\n")  # noqa: T201  command-line output
    sys.exit(code)

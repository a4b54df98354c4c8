"""relay/client: lazy exports of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import relay.client
import relay.client.nmem
from tests.harness.patience import PROGRAM_S


@pytest.mark.parametrize(
    "package", [relay.client, relay.client.nmem], ids=lambda package: package.__name__
)
def test_lazy_exports_match_all(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert {getattr(package, name).__name__ for name in names} >= set(names) - {"validate"}
    assert set(names) == set(package._MODULE_OF)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'Nobody'"):
        package.Nobody  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.process
@pytest.mark.slow
def test_recording_a_hook_does_not_import_aiohttp() -> None:
    asked = "import relay.client.nmem.hook_recording, sys; print('aiohttp' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=PROGRAM_S
    )
    assert done.stdout == "False\n"

"""The packaged policies, with an owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cast import owner
from tests.harness.folders import loaded

if TYPE_CHECKING:
    from policies import PolicySet


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> PolicySet:
    return loaded(tmp_path_factory.mktemp("policies"), actors=f'[actors]\nowners=["{owner.npub}"]')

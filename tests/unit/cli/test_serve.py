"""relay/cli/serve.py: what a signal does in the moments that no other test can choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from relay.cli import serve
from relay.config import Config
from relay.server.connection import Stop

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path


class Socket:
    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 7777

    def close(self) -> None:
        """It has been handed on."""


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_restart_is_given_up_when_the_relay_is_ended_while_its_loop_closes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_ended: bool,  # noqa: FBT001
) -> None:
    """SIGTERM was lost: the relay started again, and ran on."""
    end = serve._End(tmp_path, Config)
    end.why = Stop.RESTART

    def run(main: Coroutine[object, object, list[int]]) -> list[int]:
        main.close()
        if is_ended:
            end.stop()
        return [5]

    monkeypatch.setattr(serve, "_run", run)
    sockets: list[Any] = [Socket()]
    kept = serve._listened(tmp_path, Config(), cast("Any", None), sockets, end)
    assert kept == ([] if is_ended else [5])

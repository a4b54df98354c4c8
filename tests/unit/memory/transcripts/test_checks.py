"""The refusals of transcript records, one by one."""

from __future__ import annotations

from base64 import b64encode

import pytest

from relay.memory.check_options import CheckOptions
from relay.memory.transcripts.checks import check
from relay.nostr.pns import derive, wrap
from tests.cast import robot


def fault(kind: int, *tags: list[str], content: str = "") -> str | None:
    return check(robot.sign(kind, [["d", "s"], *tags], content, 1), CheckOptions())


def test_a_source_with_content() -> None:
    assert fault(1989, ["source-data", ""], content="x") == "kind 1989 carries no content"
    assert fault(1989, ["source-data", ""]) is None
    assert fault(1988, content="x") is None


@pytest.mark.parametrize("name", ["seq", "line", "ms"])
@pytest.mark.parametrize("kind", [1988, 1989])
def test_a_number_that_is_none(kind: int, name: str) -> None:
    for value in ("", "-1", "1.0", "one", " 1", "+1", "１", "0x1", "1" * 30):
        assert fault(kind, [name, value]) == f"tag {name} must be an integer"
    assert fault(kind, [name]) == f"tag {name} must be an integer"
    assert fault(kind, [name, "0"]) is fault(kind, [name, "1770669815675"]) is None


@pytest.mark.parametrize("name", ["chunk", "split"])
@pytest.mark.parametrize("kind", [1988, 1989])
def test_a_piece_that_is_none(kind: int, name: str) -> None:
    for value in (
        "",
        "1",
        "1/",
        "/1",
        "0/0",
        "2/2",
        "3/2",
        "-1/2",
        "1/2/3",
        "1/2\n",
        "1.0/2",
        "１/2",
    ):
        assert fault(kind, [name, value]) == f"tag {name} must be i/n"
    assert fault(kind, [name, "0/1"]) is fault(kind, [name, "4/5"]) is None


@pytest.mark.parametrize("kind", [1080, 1081])
def test_an_envelope_that_is_no_payload(kind: int) -> None:
    payloads = (b"", b"\2" * 98, b"\1" + bytes(98), b"\3" * 99)
    padded = b64encode(b"\2" + bytes(98)).decode() + "===="
    for content in ("", "no base64", padded, *(b64encode(data).decode() for data in payloads)):
        assert fault(kind, content=content) == "content is not a NIP-44 payload"
    assert fault(kind, content=b64encode(b"\2" * 99).decode()) is None
    sealed = wrap(derive(robot), robot.sign(1988, [], "x", 1), 1, bytes(32))
    assert fault(kind, content=sealed.content) is None


@pytest.mark.parametrize("kind", [31988, 31989, 31991])
def test_states_commands_and_configurations_are_looked_at_leniently(kind: int) -> None:
    assert fault(kind, ["seq", "x"], ["chunk", "x"], content="x") is None

"""What is refused before `tomllib` parses it."""

from __future__ import annotations

import pytest

from relay.toml.parsing import values_in


@pytest.mark.parametrize(
    "text",
    [
        '[rule.a."b.c".d]\nmatch.kinds = [1]',
        f"hosts = [{', '.join(f'{chr(34)}wss://r{n}.example.org{chr(34)}' for n in range(5000))}]",
        f"about = {'a sentence. ' * 200!r}",
        f"numbers = [{', '.join(['1.5'] * 5000)}] # {'… ' * 200}",
        f"{'x' * 200_000} = 1",
    ],
    ids=["dotted keys", "texts", "a long text", "numbers", "a long key"],
)
def test_other_long_lines_are_parsed(text: str) -> None:
    assert values_in(text, "rookery.toml")

"""NIP-29 over plain HTTP: NIP-11 announces subgroups, no live audio."""

from __future__ import annotations

import pytest

from tests.unit.server.test_app import serving


@pytest.mark.proves("N11-11", "N29-130")
async def test_subgroups_are_announced() -> None:
    async with serving() as relay:
        document = await relay.get(Accept="application/nostr+json")
        assert (await document.json(content_type=None))["nip29"] == {"subgroups": True}


@pytest.mark.proves("N29-160")
@pytest.mark.parametrize("path", ["", "/", "/tea", "/tea/more"])
@pytest.mark.parametrize("url", ["", "wss://rookery.example/groups"])
async def test_there_is_no_live_audio(path: str, url: str) -> None:
    """204 would say that there is."""
    config = f'[relay]\nurl = "{url}"\n' if url else ""
    async with serving(config) as relay:
        asked = f"/.well-known/nip29/livekit{path}"
        for headers in ({}, {"Accept": "application/nostr+json"}, {"Authorization": "Nostr x"}):
            assert (await relay.get(asked, **headers)).status == 404

"""Invites of a hidden group, sent again by who may not read them (N01-96)."""

from __future__ import annotations

import pytest

from tests.cast import admin, stranger
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import DUPLICATE, STORED, Home, policy_of


@pytest.mark.proves("N01-96")
async def test_an_invite_that_is_stored_or_withdrawn_is_answered_as_a_new_one() -> None:
    async with Home(ReferenceStore(), policy_of("open")) as home:
        await home.do(admin, 9007, h="cave")
        await home.do(admin, 9002, ["hidden"], h="cave")
        stored = await home.do(admin, 9009, ["code", "aaaaaaaa"], h="cave")
        withdrawn = await home.do(admin, 9009, ["code", "bbbbbbbb"], h="cave")
        await home.do(admin, 5, ["code", "bbbbbbbb"], h="cave")
        new = home.made(admin, 9009, ["code", "cccccccc"], h="cave")
        for keys in ((), (stranger.pubkey,)):
            answers = await home.take(stored, withdrawn, new, logins=keys)
            assert answers == [STORED] * 3
        assert await home.take(stored, new, logins=[admin.pubkey]) == [DUPLICATE] * 2
        # A code of another invite is taken, whoever asks.
        again = home.made(admin, 9009, ["code", "aaaaaaaa"], ["x"], h="cave")
        taken = (False, "duplicate: code: already in use in this group")
        assert await home.take(again) == [taken]

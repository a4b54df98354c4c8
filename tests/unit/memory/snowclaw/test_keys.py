"""relay/memory/snowclaw/keys.py: four forms of a key, scopes, addresses of records."""

from __future__ import annotations

import pytest

from relay.errors import Invalid
from relay.memory.snowclaw.keys import (
    Everywhere,
    KeyStyle,
    OfGroup,
    OfUser,
    agent_d,
    category_and_key,
    config_d,
    config_scope,
    group_d,
    is_key,
    keys_of,
    memory_scope,
    pubkey_in,
    scope_in,
    user_d,
    user_ds,
)
from tests.cast import alice

HALF = alice.pubkey[:32]


@pytest.mark.proves("S-02")
def test_half_the_key_is_written_unless_the_original_is_to_read_it() -> None:
    assert user_d(alice.pubkey) == f"snowclaw:memory:npub:{HALF}"
    assert user_d(alice.pubkey, KeyStyle.NPUB) == f"snowclaw:memory:npub:{alice.npub}"


@pytest.mark.proves("S-01", "S-02")
def test_all_four_forms_are_read() -> None:
    forms = keys_of(alice.pubkey)
    assert set(forms) == {HALF, alice.npub, alice.pubkey, alice.pubkey[:16]}
    assert user_ds(alice.pubkey) == [f"snowclaw:memory:npub:{key}" for key in forms]
    assert all(map(is_key, forms))
    assert not is_key(alice.pubkey[:20])


def test_a_whole_key_is_in_two_of_the_forms() -> None:
    whole = alice.pubkey
    assert [pubkey_in(key) for key in keys_of(whole)] == [None, whole, whole, None]


@pytest.mark.proves("S-04")
@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("global", Everywhere()),
        ("group:tea", OfGroup("tea")),
        ("group:a:b", OfGroup("a:b")),
        (f"npub:{HALF}", OfUser(HALF)),
        (f"npub:{alice.npub}", OfUser(alice.npub)),
    ],
)
def test_a_scope_reads_as_it_is_written(text: str, scope: Everywhere | OfGroup | OfUser) -> None:
    assert scope_in(text) == scope
    assert str(scope) == text
    assert config_scope(config_d(scope)) == scope


@pytest.mark.parametrize("text", ["", "global:x", "group:", "npub:", "room:x", "tea"])
def test_what_is_no_scope_is_refused_in_the_relays_words(text: str) -> None:
    with pytest.raises(Invalid, match="d must be snowclaw:config:global, "):
        scope_in(text)
    with pytest.raises(Invalid, match="d must be snowclaw:config:global, "):
        config_scope(f"snowclaw:other:{text}")


def test_memory_is_of_a_user_or_of_a_group() -> None:
    assert memory_scope(user_d(alice.pubkey)) == OfUser(HALF)
    assert memory_scope(group_d("tea")) == OfGroup("tea")
    for d in ("snowclaw:config:global", "snowclaw:memory:global", group_d("")):
        with pytest.raises(Invalid, match="d must be snowclaw:memory:"):
            memory_scope(d)


@pytest.mark.proves("S-05", "S-06")
def test_agent_memory_has_a_category_and_a_key() -> None:
    assert agent_d("core", "user:k0") == "snowclaw:core:user:k0"
    assert category_and_key("snowclaw:core:user:k0") == ("core", "user:k0")
    for category, key in (("memory", "x"), ("config", "x"), ("", "x"), ("core", ""), ("a:b", "x")):
        with pytest.raises(Invalid, match="d must be snowclaw:<category>:<key>"):
            agent_d(category, key)
    for d in ("snowclaw:core", "other:core:x", "snowclaw:memory:npub:x"):
        with pytest.raises(Invalid, match="d must be snowclaw:<category>:<key>"):
            category_and_key(d)

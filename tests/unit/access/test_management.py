"""relay/access/management.py: what NIP-86 calls may change, and the result. NIP-86."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.access.actors import Actors
from relay.access.management import (
    MAX_ENTRIES,
    METHODS,
    ListChange,
    ListName,
    Management,
    blocklist_of,
    changes_of,
    check_author_not_banned,
    check_change,
    check_event_not_banned,
    check_kind_allowed,
    listed,
    management_of,
)
from relay.errors import Invalid, Reject, Unsupported
from relay.groups.key_map import KeyMap
from tests.cast import alice, bob, owner, person
from tests.contract.writing import unsigned

RELAY = person("relay").pubkey
ACTORS = Actors(owners=frozenset({owner.pubkey}), relay=RELAY)
KEY, ID = alice.pubkey, "e" * 64
NOBODY = Management()


def after(*calls: tuple[str, list[object]], start: Management = NOBODY) -> Management:
    for method, params in calls:
        for change in changes_of(method, params):
            start = start.after(change)
    return start


# -- parameters -----------------------------------------------------------------------------------

RIGHT: list[tuple[str, list[object]]] = [
    ("banpubkey", [KEY]),
    ("banpubkey", [KEY, "spam"]),
    ("unbanpubkey", [KEY]),
    ("unbanpubkey", [KEY, "a mistake"]),
    ("allowpubkey", [KEY, ""]),
    ("unallowpubkey", [KEY]),
    ("banevent", [ID, "two\nlines"]),
    ("allowevent", [ID]),
    ("allowkind", [5]),
    ("disallowkind", [0]),
    ("disallowkind", [65535]),
    ("blockip", ["203.0.113.9"]),
    ("blockip", ["203.0.113.0/24", "a crawler"]),
    ("blockip", ["2001:db8::/32"]),
    ("unblockip", ["127.0.0.1"]),
    ("createrole", ["king"]),
    ("createrole", ["28b7e50f", "King", "ruler of the relay", 37, 1]),
    ("editrole", ["king", "King", "", "360", "-1"]),
    ("deleterole", ["king"]),
    ("assignrole", [KEY, "king"]),
    ("unassignrole", [KEY, "king"]),
    ("changerelayname", ["Tea"]),
    ("changerelayname", ["x" * 30]),
    ("changerelayname", [""]),
    ("changerelaydescription", ["One line\nand another"]),
    ("changerelayicon", ["https://tea.example/icon.png"]),
    ("changerelayicon", [""]),
]

WRONG: list[tuple[str, list[object], str]] = [
    ("banpubkey", [], "params"),
    ("banpubkey", [KEY, "spam", "more"], "params"),
    ("banpubkey", [KEY.upper()], "pubkey"),
    ("banpubkey", [KEY[:-1]], "pubkey"),
    ("banpubkey", [owner.npub], "pubkey"),
    ("banpubkey", [None], "pubkey"),
    ("banpubkey", [[KEY]], "pubkey"),
    ("banpubkey", [KEY, None], "reason"),
    ("banpubkey", [KEY, 7], "reason"),
    ("banpubkey", [KEY, "x" * 1001], "reason"),
    ("banpubkey", [KEY, "bell\x07"], "reason"),
    ("unbanpubkey", [KEY, 7], "reason"),
    ("allowpubkey", [{}], "pubkey"),
    ("banevent", ["note1xyz"], "id"),
    ("allowevent", [], "params"),
    ("allowkind", [], "params"),
    ("allowkind", [1, "reason"], "params"),
    ("allowkind", ["1"], "kind"),
    ("allowkind", [True], "kind"),
    ("allowkind", [1.0], "kind"),
    ("disallowkind", [-1], "kind"),
    ("disallowkind", [65536], "kind"),
    ("blockip", ["tea.example"], "ip"),
    ("blockip", ["203.0.113.300"], "ip"),
    ("blockip", ["203.0.113.0/33"], "ip"),
    ("blockip", [""], "ip"),
    ("blockip", [3405803785], "ip"),
    ("unblockip", ["203.0.113.9", "reason"], "params"),
    ("createrole", [], "params"),
    ("createrole", ["king", "", "", 1, 1, 1], "params"),
    ("createrole", ["a king"], "id"),
    ("createrole", ["k" * 65], "id"),
    ("createrole", [None], "id"),
    ("createrole", ["king", 7], "label"),
    ("createrole", ["king", "K", "bell\x07"], "description"),
    ("createrole", ["king", "K", "", 361], "color"),
    ("createrole", ["king", "K", "", "red"], "color"),
    ("createrole", ["king", "K", "", 1, 1.5], "order"),
    ("editrole", ["king", "K", "", True], "color"),
    ("deleterole", [], "params"),
    ("assignrole", [KEY], "params"),
    ("assignrole", ["king", KEY], "pubkey"),
    ("unassignrole", [KEY, ""], "id"),
    ("changerelayname", [], "params"),
    ("changerelayname", ["x" * 31], "name"),
    ("changerelayname", ["two\nlines"], "name"),
    ("changerelayname", [1], "name"),
    ("changerelaydescription", ["x" * 5001], "description"),
    ("changerelaydescription", [None], "description"),
    ("changerelayicon", ["javascript:alert(1)"], "icon"),
    ("changerelayicon", ["https://"], "icon"),
    ("changerelayicon", ["https://tea.example/" + "x" * 2048], "icon"),
    ("supportedmethods", [1], "params"),
    ("listbannedpubkeys", [KEY], "params"),
]


@pytest.mark.proves("N86-04")
@pytest.mark.parametrize(("method", "params"), RIGHT)
def test_valid_parameters_make_a_change(method: str, params: list[object]) -> None:
    assert changes_of(method, params)


@pytest.mark.proves("N86-04")
@pytest.mark.parametrize(("method", "params", "field"), WRONG)
def test_invalid_parameters_are_named(method: str, params: list[object], field: str) -> None:
    with pytest.raises(Invalid, match=f"^invalid: {field}: "):
        changes_of(method, params)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=6,
)


@given(st.sampled_from(METHODS) | st.text(), st.lists(json_values, max_size=4))
def test_any_json_as_parameters_is_handled(method: str, params: list[object]) -> None:
    try:
        changes = changes_of(method, params)
    except (Invalid, Unsupported):
        return
    for change in changes:
        Management().after(change).blocked()


@pytest.mark.proves("N86-28")
@pytest.mark.parametrize(
    "method",
    [
        "signevent",
        "grantadmin",
        "stats",
        "",
        "BANPUBKEY",
    ],
)
def test_unsupported_methods_are_refused_and_not_listed(method: str) -> None:
    assert method not in METHODS
    with pytest.raises(Unsupported):
        changes_of(method, [])


@pytest.mark.proves("N86-10")
def test_each_supported_method_is_accepted() -> None:
    assert listed("supportedmethods", NOBODY) == list(METHODS)
    assert "supportedmethods" not in METHODS
    for method in METHODS:
        try:
            changes_of(method, [])
        except Invalid:
            continue  # it wants parameters
    assert len(set(METHODS)) == len(METHODS)


# -- lists ----------------------------------------------------------------------------------------


@pytest.mark.proves("N86-12", "N86-13", "N86-15", "N86-16", "N86-24")
@pytest.mark.parametrize(
    ("put", "take", "shown", "item", "name"),
    [
        ("banpubkey", "unbanpubkey", "listbannedpubkeys", KEY, "pubkey"),
        ("allowpubkey", "unallowpubkey", "listallowedpubkeys", KEY, "pubkey"),
        ("banevent", "allowevent", "listbannedevents", ID, "id"),
        ("allowevent", "banevent", "listallowedevents", ID, "id"),
        ("blockip", "unblockip", "listblockedips", "203.0.113.9", "ip"),
    ],
)
def test_an_item_is_listed_from_its_adding_to_its_removal(
    put: str, take: str, shown: str, item: str, name: str
) -> None:
    once = after((put, [item, "why"]))
    assert listed(shown, once) == [{name: item, "reason": "why"}]
    assert listed(shown, after((put, [item]), start=once)) == [{name: item}]
    assert listed(shown, after((take, [item]), start=once)) == []
    assert listed(shown, after((take, [item]))) == []


@pytest.mark.proves("N86-26")
def test_all_kinds_are_allowed_until_one_is_not() -> None:
    def allowed(now: Management) -> set[int]:
        found = listed("listallowedkinds", now)
        assert isinstance(found, list)
        return set(found)

    assert allowed(NOBODY) == set(range(65536))
    now = after(("disallowkind", [7]), ("disallowkind", [30023]), ("allowkind", [1]))
    assert allowed(now) == set(range(65536)) - {7, 30023}
    assert listed("listdisallowedkinds", now) == [7, 30023]
    again = after(("allowkind", [7]), start=now)
    assert check_kind_allowed(7, again) is None
    assert listed("listdisallowedkinds", again) == [30023]


@pytest.mark.proves("N86-26")
@pytest.mark.parametrize("kind", [5, 62, 9000, 9007, 9021, 9022, 39000, 39005])
def test_deletion_and_group_kinds_cannot_be_disallowed(kind: int) -> None:
    with pytest.raises(Invalid, match="kind: "):
        changes_of("disallowkind", [kind])
    assert changes_of("allowkind", [kind])


@pytest.mark.proves("N86-27")
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("203.0.113.9/32", "203.0.113.9"),
        ("203.0.113.77/24", "203.0.113.0/24"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.0/120", "203.0.113.0/24"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("2001:db8::/32", "2001:db8::/32"),
    ],
)
def test_addresses_are_stored_in_canonical_form(said: str, kept: str) -> None:
    now = after(("blockip", [said]))
    assert listed("listblockedips", now) == [{"ip": kept}]
    assert listed("listblockedips", after(("unblockip", [said]), start=now)) == []
    assert now.blocked().has(ip_address(kept.partition("/")[0]))
    assert not now.blocked().has(ip_address("192.0.2.1"))


@pytest.mark.proves("N86-27")
@pytest.mark.parametrize(
    "said",
    ["127.0.0.1", "127.0.0.0/8", "0.0.0.0/0", "126.0.0.0/7", "::1", "::/0", "::ffff:127.0.0.1"],
)
def test_loopback_addresses_cannot_be_blocked(said: str) -> None:
    with pytest.raises(Invalid, match="ip: "):
        changes_of("blockip", [said])


@pytest.mark.proves("N86-25")
def test_a_text_overrides_the_file_until_it_is_emptied() -> None:
    now = after(("changerelayname", ["Tea"]))
    assert now.text("name", "Rookery") == "Tea"
    assert now.text("description", "of the file") == "of the file"
    assert after(("changerelayname", [""]), start=now).text("name", "Rookery") == "Rookery"


# -- effect ---------------------------------------------------------------------------------------


@pytest.mark.proves("N86-11", "N29-19")
def test_a_banned_key_cannot_write_until_it_is_unbanned() -> None:
    note = unsigned(alice)
    now = after(("banpubkey", [KEY]))
    objected = check_author_not_banned(note, now.applied_to(ACTORS))
    assert objected is not None
    assert str(objected.prefix) == "blocked"
    assert check_author_not_banned(unsigned(bob), now.applied_to(ACTORS)) is None
    assert (
        check_author_not_banned(note, after(("unbanpubkey", [KEY]), start=now).applied_to(ACTORS))
        is None
    )


@pytest.mark.proves("N86-11")
@pytest.mark.parametrize("key", [owner.pubkey, RELAY])
def test_owners_and_the_relay_cannot_be_banned(key: str) -> None:
    (change,) = changes_of("banpubkey", [key])
    assert isinstance(check_change(change, NOBODY, ACTORS), Reject)
    # Nor is a key that becomes an owner after its ban.
    assert key not in NOBODY.after(change).applied_to(ACTORS).banned
    assert key in NOBODY.after(change).applied_to(Actors()).banned


@pytest.mark.proves("N86-14")
def test_a_banned_key_cannot_be_allowed() -> None:
    now = after(("banpubkey", [KEY]))
    (change,) = changes_of("allowpubkey", [KEY])
    assert isinstance(check_change(change, now, now.applied_to(ACTORS)), Reject)
    assert check_change(change, NOBODY, ACTORS) is None
    assert now.after(change).applied_to(ACTORS).is_allowed(KEY)


@pytest.mark.proves("N86-22", "N86-23")
def test_a_banned_event_is_refused_until_it_is_allowed() -> None:
    note = unsigned(alice)
    now = after(("banevent", [note.id]))
    objected = check_event_not_banned(note, now)
    assert objected is not None
    assert str(objected.prefix) == "blocked"
    assert check_event_not_banned(unsigned(alice, content="another"), now) is None
    assert check_event_not_banned(note, after(("allowevent", [note.id]), start=now)) is None


def test_a_full_list_accepts_only_removals() -> None:
    full = Management({ListName.BANNED_KEYS: {f"{n:064x}": "" for n in range(MAX_ENTRIES)}})
    (change,) = changes_of("banpubkey", [KEY])
    objected = check_change(change, full, ACTORS)
    assert objected is not None
    assert str(MAX_ENTRIES) in objected.text
    (known,) = changes_of("banpubkey", [f"{7:064x}", "another reason"])
    assert check_change(known, full, ACTORS) is None
    (gone,) = changes_of("unbanpubkey", [KEY])
    assert check_change(gone, full, ACTORS) is None


@pytest.mark.parametrize("register", [ListName.ALLOWED_KEYS, ListName.MEMBERS_SINCE])
def test_a_change_of_the_members_copies_a_part_of_the_list(register: ListName) -> None:
    """Copied whole for each key that joined, they took 2 ms each at 10,000 members."""
    some = {f"{n:064x}": "" for n in range(5000)}
    full = Management().with_lists({register: some}).after(ListChange(register, "first", ""))
    with_one = full.after(ListChange(register, KEY, ""))
    without = with_one.after(ListChange(register, KEY, None))
    for now in (with_one, without):
        parts = zip(parts_of(full, register), parts_of(now, register), strict=True)
        assert sum(before is not after for before, after in parts) == 1
    assert without == full


def parts_of(management: Management, register: ListName) -> tuple[object, ...]:
    items = management.of(register)
    assert isinstance(items, KeyMap)
    return items.parts


networks = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(0, 32)),
    st.tuples(st.ip_addresses(v=6), st.integers(0, 128)),
).map(lambda parts: ip_network(parts, strict=False))


@pytest.mark.proves("N86-27")
@given(st.lists(networks, max_size=4), st.ip_addresses(), st.integers(0, 3))
def test_an_address_in_a_blocked_range_is_blocked(
    ranges: list[IPv4Network | IPv6Network], address: IPv4Address | IPv6Address, near: int
) -> None:
    if near < len(ranges):  # mostly one that lies inside
        address = ranges[near].network_address
    address = getattr(address, "ipv4_mapped", None) or address
    blocked = blocklist_of(map(str, ranges))
    assert blocked.has(address) == any(address in network for network in ranges)


changes = st.builds(
    ListChange,
    st.sampled_from(list(ListName)),
    st.sampled_from(["a", "b", "c"]),
    st.none() | st.sampled_from(["", "x"]),
)


@given(st.lists(changes))
def test_stored_entries_give_the_same_value(calls: list[ListChange]) -> None:
    """A store has the last note of each item, in any order."""
    now = NOBODY
    kept: dict[Any, ListChange] = {}
    for change in calls:
        before = now
        now = now.after(change)
        assert (now is before) == (before.of(change.list_name).get(change.item) == change.note)
        kept[change.list_name, change.item] = change
    again = management_of(kept.values())
    for register in ListName:
        assert dict(again.of(register)) == dict(now.of(register))

"""What a kind 5 deletes, kept without the deleted texts."""

from __future__ import annotations

from relay.nostr.nip09 import address_hash, address_tags, targets_of, version_target
from tests.cast import owner, robot

record = robot.sign(30078, [["d", "a:b"]], "", 5)
note = robot.sign(1, [["d", "a:b"]], "", 5)


def test_a_deletion_names_ids_and_addresses_of_its_author_and_what_is_malformed_is_left_out() -> (
    None
):
    tags = [
        ["e", note.id],
        ["e", "no id"],
        *address_tags([record, note, record]),
        ["a", f"30078:{owner.pubkey}:a:b"],
        ["a", "30078:a"],
    ]
    assert tags[2] == ["a", f"30078:{robot.pubkey}:a:b"]
    by_id, by_address = targets_of(robot.sign(5, tags, "", 9))
    assert (by_id.name, by_id.author) == (note.id, robot.pubkey)
    assert by_id.until > 10**12
    assert by_address == (address_hash(record), robot.pubkey, 9)
    assert "a:b" not in by_address.name


def test_a_deleted_version_names_the_older_ones_and_an_event_without_versions_itself() -> None:
    assert version_target(record) == (address_hash(record), robot.pubkey, 5)
    assert version_target(note) == (note.id, robot.pubkey, 5)

"""The people of the tests, by name. Their keys come from their names: throw-away, for tests only.

`owner`, `robot` and `rover` have a standing with the relay under test: it was made with
`--owner` the first and `--agent` the other two. Everybody else is somebody only through what a
test does.
"""

from __future__ import annotations

from hashlib import sha256

from relay.nostr.keys import SecretKey


def person(name: str) -> SecretKey:
    """The key of whoever is called this: the same in each run, another for each name."""
    return SecretKey(sha256(f"rookery test cast: {name}".encode()).digest())


owner = person("owner")
robot = person("robot")
rover = person("rover")
admin = person("admin")
alice = person("alice")
bob = person("bob")
carol = person("carol")
dave = person("dave")
stranger = person("stranger")

OWNERS = {"owner": owner}
AGENTS = {"robot": robot, "rover": rover}

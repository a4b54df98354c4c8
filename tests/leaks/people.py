"""Who reads: the viewers of the leak table, and what their keys are to each group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests import cast

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey

FLAGS: Final[dict[str, tuple[str, ...]]] = {
    "square": (),
    "yard": ("private", "restricted"),
    "tea": ("private", "restricted", "closed"),
    "attic": ("hidden", "closed"),
    "cave": ("private", "hidden", "restricted", "closed"),
}
"""Groups by their flags; `hidden` implies what `private` does for reading (N29-97)."""
HIDDEN: Final = frozenset({"attic", "cave"})
PUBLIC: Final = frozenset({"square", "stall"})
JOINABLE: Final = frozenset({"square", "yard"})
ENDED: Final = "shed"
"""A private group that was deleted."""
LOST: Final = "pit"
"""A hidden group that was deleted."""
CLOSED_DOWN: Final = "stall"
"""A public group that was deleted."""
ENDS: Final[dict[str, tuple[str, ...]]] = {
    ENDED: ("private",),
    LOST: ("hidden", "closed"),
    CLOSED_DOWN: (),
}
NOWHERE: Final = "nowhere"
"""A group that never was."""

KEYS: Final[dict[str, SecretKey]] = {
    name: cast.person(name)
    for name in (
        "stranger",
        "carol",
        "bob",
        "dave",
        "alice",
        "mia",
        "moderator",
        "admin",
        "owner",
        "robot",
        "rover",
        "rita",
        "tess",
        "cora",
        "hex",
    )
}
"""Of who reads. The relay's own is known once the relay is made."""
RELAY: Final = "relay"

EVERY_GROUP: Final = frozenset({"alice", "mia", "moderator", "admin", "robot"})
MEMBERS: Final[dict[str, frozenset[str]]] = {
    "square": EVERY_GROUP | {"carol"},
    "yard": EVERY_GROUP,
    "tea": EVERY_GROUP | {"tess"},
    "attic": EVERY_GROUP,
    "cave": EVERY_GROUP | {"cora"},
    **dict.fromkeys(ENDS, frozenset({"admin", "mia", "hex"})),
}
"""When all is said; bob was thrown out of every group, dave left every group."""
OWNERS: Final = frozenset({"owner", RELAY})
AGENTS: Final = frozenset({"robot", "rover"})
KNOWN: Final = frozenset({"owner", *AGENTS}).union(*MEMBERS.values())


@dataclass(frozen=True, slots=True)
class Viewer:
    """A connection: who logs in on it, and from where it comes."""

    keys: tuple[str, ...]
    is_trusted: bool = False
    is_banned: bool = False


VIEWERS: Final[dict[str, Viewer]] = {
    "nobody": Viewer(()),
    "an outsider": Viewer(("stranger",)),
    "a recipient": Viewer(("rita",)),
    "a member elsewhere": Viewer(("carol",)),
    "a removed member": Viewer(("bob",)),
    "who left": Viewer(("dave",)),
    "a member": Viewer(("mia",)),
    "a member of tea": Viewer(("tess",)),
    "members of tea and of cave": Viewer(("tess", "cora")),
    "an outsider and a member": Viewer(("stranger", "mia")),
    "the author": Viewer(("alice",)),
    "a moderator": Viewer(("moderator",)),
    "an admin": Viewer(("admin",)),
    "an agent, member": Viewer(("robot",)),
    "an agent, outsider": Viewer(("rover",)),
    "the owner": Viewer(("owner",)),
    "the relay itself": Viewer((RELAY,)),
    "a trusted address": Viewer((), is_trusted=True),
    "a banned key": Viewer(("hex",), is_banned=True),
    "a banned key and a member": Viewer(("hex", "mia"), is_banned=True),
}
"""All that is said of them in the table is said of their keys: two keys read what either may."""
TRUSTED_ADDRESS: Final = "127.0.0.2"

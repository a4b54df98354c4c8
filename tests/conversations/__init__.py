"""Conversations: plain-text scripts of what people say to a relay and what it must answer.

    # A removed member stops receiving at once.             NIP-29 kind 9001, N29-94
    preset open                                             # how the relay was made; else `group`
    people owner alice                                      # who speaks
    names tea                                               # $tea: a name nobody else uses

    owner → ["EVENT", {"kind": 9007, "tags": [["h", $tea]]}]
    owner → ["EVENT", {"kind": 9000, "tags": [["h", $tea], ["p", @alice]]}]
    alice → AUTH
    alice → ["REQ", "s", {"kinds": [9], "#h": [$tea]}]
    alice ← ["EOSE", "s"]
    owner → ["EVENT", {"kind": 9001, "tags": [["h", $tea], ["p", @alice]]}]
    owner → ["EVENT", {"kind": 9, "tags": [["h", $tea]], "content": "not for alice any more"}]
    alice ← no ["EVENT", "s", …]

The first line is the title and names what the script holds the relay to. An indented line goes on
with the line before it. `#` begins a comment, at the start of a line or after its end.

Who. `owner`, `robot` and `rover` are the relay's owner and its two agents; anybody else has a key
of their own in each script, so that scripts share a relay and not a past. Everybody has one
connection, opened when they first speak; `alice/phone` is another one of Alice's.

What is said.
    alice → [...]                  a frame. In EVENT and AUTH what the event lacks is filled in: its
                                   author and signature are Alice's, tags and content empty,
                                   `created_at` a second after the script's event before it (all of
                                   them in the minute before `$now`). An id in place of the event
                                   sends that event (again).
    alice → AUTH                   answers the challenge; `AUTH bob` with Bob's key
    alice → text anything          these very characters, as one frame; `20 × text x`: twenty times
    alice signs $note {...}        makes an event and sends nothing; $note is its id
    alice signs $low < $high {...} two that differ in a tag `n`, the lower id first
    alice leaves                   closes the connection; speaking again opens a new one
    restart                        the relay ends and starts again, and every connection with it
EVENT and AUTH must get `OK true`, unless the next line is another OK or NOTICE to that person.

What is heard.
    alice ← [...]                  the next frame she gets, of its subscription (EVENT, EOSE,
                                   CLOSED, COUNT), or else the next OK, NOTICE or AUTH;
                                   `3 × [...]`: the next three
    alice ← no [...]               nothing like it is among what she has not read yet: she asks
                                   something else first, and waits for that answer
    alice ← closed 1009            the relay ends the connection, with this code

Values are JSON, and
    @alice                         her public key
    $name                          in what is said: its value. In what is heard: compared, when it
                                   has one, else it gets what stands there.
    $id $challenge                 that person's last event; that connection's last challenge
    $now $now-60 $relay            the second in which the script began; the relay's URL
    "30078:@alice:$name"           both work inside texts too ("$$" and "@@" mean the signs)
    "x" × 300    [["t", "x"]] × 9  a text or list over and over
    json {...}                     the text of this value
and where something is heard
    …                              anything; in a list the rest of it; in a text any characters
    ⊇ [...] ∌ [...]                a list that has at least these, in any order, and none of those
    this | that                    either
    {...}                          an object in which these keys have these values

A relay with rules of its own is asked for by a block of TOML, a file of its policy folder:
    policy
        [groups]
        joins = "review"

A number that the relay announces in its document (NIP-11, `limitation`), and on which the script
relies; a relay that announces another is not held to it:
    limit max_event_tags 5000

`pytest tests/conversations` starts the relays that the scripts ask for and plays them all;
`python -m tests.conversations wss://…` plays them to any other (`--help`).
"""

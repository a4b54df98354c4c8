"""DIR/control.sock: a folder's events, given to other commands by the relay that runs on it.

Protocol, one line of JSON at a time, any number of requests on a connection, one after the other:

    → {"do":"submit","origin":"IMPORT","sizes":[412,388]}   then so many rows of so many bytes
    ← {"is":"results","results":[[true,""],[false,"blocked: deleted"]]}
    → {"do":"events","filter":{"kinds":[9]}}
    ← {"is":"page","sizes":[412,388]}                       then the rows; any number of pages
    ← {"is":"page","sizes":[]}                              the end
    → {"do":"public_events","filter":{}}                    the same, only what anybody may read
    → {"do":"foresee","logins":["<key>"],"size":412}        then the event; nothing comes of it
    ← {"is":"foreseen","ok":false,"message":"…","rule":"…","facts":{…}}
    → {"do":"standings"}                                    keys that NIP-86 calls allowed, banned
    ← {"is":"page","sizes":[80]}                            rows of ["banned","<key>"], as above
    → {"do":"sizes","by":"kind","limit":20}                 what is stored, by kind, author, group
    ← {"is":"page","sizes":[60]}                            rows of [1,[events,bytes]], as above
    → {"do":"sweep","purpose":"TRIAL"}                      what retention takes; SWEEP takes it
    ← {"is":"page","sizes":[310]}                           rows of JSON, as it goes
    → {"do":"refusals","after":17}                          the last events that were refused
    ← {"is":"page","sizes":[310]}                           rows of JSON, as above
    → {"do":"head"}
    ← {"is":"head","head":80}
    ← {"is":"failed","prefix":"invalid","text":"…"}         instead of any of these

A row is the event's bytes and a line end. What is public is asked for by a word of its own: a relay
that does not know it refuses, where one that did not know a field would give everything. Only the
user that the relay runs as may connect. Bounded are connections and what a request may hold; a page
is read from the store when the one before is taken.
"""

from relay.server.control.folder import ALLOWED, BANNED, DataFolder, DryRunReply, Folder, Rows
from relay.server.control.protocol import MAX_ROWS
from relay.server.control.remote import RemoteFolder
from relay.server.control.server import ControlServer

__all__ = [
    "ALLOWED",
    "BANNED",
    "MAX_ROWS",
    "ControlServer",
    "DataFolder",
    "DryRunReply",
    "Folder",
    "RemoteFolder",
    "Rows",
]

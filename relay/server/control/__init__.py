"""DIR/control.sock: how commands use a data folder while a relay runs on it.

Protocol: lines of JSON; a connection may send any number of requests, one after the other:

    → {"do":"submit","origin":"IMPORT","sizes":[412,388]}   then rows of these sizes
    ← {"is":"results","results":[[true,""],[false,"blocked: deleted"]]}
    → {"do":"events","filter":{"kinds":[9]}}
    ← {"is":"page","sizes":[412,388]}                       then the rows; any number of pages
    ← {"is":"page","sizes":[]}                              the last page
    ←                                                       an empty line: it reads on
    → {"do":"public_events","filter":{}}                    only what anonymous viewers may read
    → {"do":"dry_run","logins":["<key>"],"size":412}        then the event; it is not stored
    ← {"is":"dry_run","ok":false,"message":"…","rule":"…","facts":{…}}
    → {"do":"managed_keys"}                                 keys allowed or banned by NIP-86
    ← {"is":"page","sizes":[80]}                            rows of ["banned","<key>"], as above
    → {"do":"sizes","by":"kind","limit":20}                 stored bytes by kind, author or group
    ← {"is":"page","sizes":[60]}                            rows of [1,[events,bytes]], as above
    → {"do":"sweep","purpose":"DRY_RUN","ahead_s":0}        what retention deletes; SWEEP does it
    ← {"is":"page","sizes":[310]}                           rows of JSON, while it runs
    → {"do":"refusals","after":17}                          the last refused events
    ← {"is":"page","sizes":[310]}                           rows of JSON, as above
    → {"do":"log","after":17}                               the last lines of the log
    ← {"is":"page","sizes":[120]}                           rows of JSON, as above
    → {"do":"status"}                                       numbers since start
    ← {"is":"page","sizes":[2400]}                          one row of JSON, as above
    → {"do":"restart"}                                      the relay starts again
    ← {"is":"page","sizes":[]}                              it would start, and stops now
    → {"do":"head"}
    ← {"is":"head","head":80}
    ← {"is":"failed","prefix":"invalid","text":"…"}         instead of any of these

A row is the event's bytes and a newline. `public_events` is a request of its own, not a field of
`events`: an older relay refuses an unknown request, but would ignore an unknown field. Only the
user that the relay runs as may connect. Connections and request sizes are bounded; a page is read
from the store when the one before was sent.
"""

from relay.server.control.folder import (
    ALLOWED,
    BANNED,
    INDEXED_VALUES,
    DataFolder,
    DryRunReply,
    Folder,
    Rows,
)
from relay.server.control.protocol import MAX_ROWS
from relay.server.control.remote import RemoteFolder
from relay.server.control.server import ControlServer

__all__ = [
    "ALLOWED",
    "BANNED",
    "INDEXED_VALUES",
    "MAX_ROWS",
    "ControlServer",
    "DataFolder",
    "DryRunReply",
    "Folder",
    "RemoteFolder",
    "Rows",
]

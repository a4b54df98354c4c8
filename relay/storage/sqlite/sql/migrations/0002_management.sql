-- Lists set by NIP-86 calls.
CREATE TABLE management (
    register TEXT NOT NULL,
    item     TEXT NOT NULL,
    note     TEXT NOT NULL,
    PRIMARY KEY (register, item)
) WITHOUT ROWID

-- What NIP-86 calls have set.
CREATE TABLE management (
    register TEXT NOT NULL,
    item     TEXT NOT NULL,
    note     TEXT NOT NULL,
    PRIMARY KEY (register, item)
) WITHOUT ROWID

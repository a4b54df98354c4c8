-- Receipts: of deletions before this version nothing is known.
CREATE TABLE erasures (
    request BLOB PRIMARY KEY,
    by      BLOB    NOT NULL,
    kind    INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    numbers TEXT    NOT NULL,
    ids     TEXT    NOT NULL
) WITHOUT ROWID;
CREATE INDEX erasures_at ON erasures (at)

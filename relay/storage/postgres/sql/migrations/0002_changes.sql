-- Several relays on one database: what batches changed beside adding rows, and used NIP-98 events.

ALTER TABLE head ADD COLUMN changes_after bigint;
UPDATE head SET changes_after = seq;
ALTER TABLE head ALTER COLUMN changes_after SET NOT NULL;

CREATE TABLE changes (
    seq  bigint NOT NULL,
    what text   NOT NULL,
    item bytea  NOT NULL,
    grp  bytea,
    at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX changes_seq ON changes (seq);

CREATE TABLE used_calls (
    id    bytea  PRIMARY KEY,
    until bigint NOT NULL
);

-- For plans of pages, of a kind and of an author.
ALTER TABLE events ALTER COLUMN kind SET (n_distinct = 100),
    ALTER COLUMN pubkey SET (n_distinct = 1000000);
ANALYZE events;

-- The current schema. `PRAGMA user_version` is its version; migrations/ bring older files here.
--
-- Keys of indices are 64-bit integers: the first 8 bytes of ids and public keys (signed, in the order
-- of the bytes), and keyed hashes of slots and tags. They only find rows; the full values are compared.

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value
) WITHOUT ROWID;
-- In the transaction that creates the tables: without its key a store could not be opened again.
INSERT INTO meta (name, value) VALUES ('hash_key', lower(hex(randomblob(32))));

-- `tags` is complete for rows up to this seq; tags of later rows may be in memory only.
INSERT INTO meta (name, value) VALUES ('tags_upto', 0);

CREATE TABLE events (
    seq        INTEGER PRIMARY KEY,       -- order of commits, never used again
    id         BLOB    NOT NULL,
    id_key     INTEGER NOT NULL,
    pubkey     BLOB    NOT NULL,
    author_key INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    grp        TEXT,                      -- the group that the row belongs to
    d          TEXT    NOT NULL,          -- first `d`, empty when there is none
    slot       INTEGER,                   -- null: all versions are kept
    version    INTEGER NOT NULL,          -- what LATEST compares, and sweeps order by
    expires_at INTEGER,
    quiet      INTEGER NOT NULL,
    raw        BLOB    NOT NULL,          -- the event as it is sent
    partition  INTEGER NOT NULL DEFAULT 0 -- of a row of a guarded group: a keyed hash of the group
);

CREATE INDEX events_id     ON events (id_key);
CREATE INDEX events_time   ON events (created_at DESC, id_key, seq, partition, kind);
-- With seq a scan of times is in the order of results; what comes behind it is tested in the index.
-- The columns after id_key make counts index-only, and let scans skip other kinds in the index.
CREATE INDEX events_kind   ON events (partition, kind, created_at DESC, id_key, grp, expires_at);
CREATE INDEX events_author ON events (author_key, created_at DESC, id_key, kind, grp, expires_at);
-- No other row of an author comes before those of a kind that clients look up of anybody. Not for
-- memory records, of which an agent has many.
CREATE INDEX events_author_kind ON events (author_key, kind, created_at DESC, id_key)
    WHERE kind IN (0, 3) OR kind BETWEEN 10000 AND 19999
    OR kind BETWEEN 30000 AND 30077 OR kind BETWEEN 30102 AND 39999;
CREATE INDEX events_slot   ON events (slot) WHERE slot IS NOT NULL;
CREATE INDEX events_d      ON events (d, kind) WHERE d > '';
CREATE INDEX events_group  ON events (grp, kind) WHERE grp IS NOT NULL;
CREATE INDEX events_expiry ON events (expires_at) WHERE expires_at IS NOT NULL;

-- What newer versions replaced, kept by `[[retention]] history`. No query over events finds them; they
-- count in `sizes`.
CREATE TABLE old_versions (
    seq         INTEGER PRIMARY KEY,      -- the one that it had among events
    id          BLOB    NOT NULL,
    pubkey      BLOB    NOT NULL,
    kind        INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    grp         TEXT,
    slot        INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    expires_at  INTEGER,
    quiet       INTEGER NOT NULL,
    replaced_at INTEGER NOT NULL,         -- by the clock of the relay
    drop_at     INTEGER,                  -- when a sweep deletes it; null: never
    raw         BLOB    NOT NULL
);
CREATE INDEX old_versions_slot   ON old_versions (slot, seq);
CREATE INDEX old_versions_id     ON old_versions (id);
CREATE INDEX old_versions_author ON old_versions (pubkey);
CREATE INDEX old_versions_group  ON old_versions (grp) WHERE grp IS NOT NULL;
CREATE INDEX old_versions_drop   ON old_versions (drop_at) WHERE drop_at IS NOT NULL;

-- One row per indexed tag value; those of a class of kinds in the order of results. The class comes
-- before: a query for one kind passes over no rows of another class, of which anybody may plant any
-- number. There are some 320: a query without kinds looks each up.
CREATE TABLE tags (
    hash       INTEGER NOT NULL,          -- of the tag, XOR the partition of the row
    kind_class INTEGER NOT NULL,          -- see relay/storage/sqlite/kind_classes.py
    created_at INTEGER NOT NULL,
    id_key     INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    expires_at INTEGER,                   -- of the row, as it was written; null: perhaps it expires
    PRIMARY KEY (hash, kind_class, created_at DESC, id_key, seq)
) WITHOUT ROWID;

-- What was deleted: stays after the event, and refuses it when it is sent again.
CREATE TABLE tombstones (
    target  TEXT NOT NULL,                -- e:<id>, a:<kind>:<pubkey>:<d>, p:<pubkey>
    by      TEXT NOT NULL,                -- who deleted it; empty: for any author
    until   INTEGER,                      -- last created_at that is deleted; null for an id
    why     TEXT NOT NULL,
    request BLOB,                         -- the kind 62 of a key that vanished; never served
    PRIMARY KEY (target, by)
) WITHOUT ROWID;

-- What requests deleted, for receipts: ids and kinds, never a text.
CREATE TABLE erasures (
    request BLOB PRIMARY KEY,             -- id of the kind 5, 9005 or 62
    by      BLOB    NOT NULL,             -- its author
    kind    INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    numbers TEXT    NOT NULL,             -- [[kind, events]]
    ids     TEXT    NOT NULL              -- [[id, kind]] of the first
) WITHOUT ROWID;
CREATE INDEX erasures_at ON erasures (at);

-- Totals, updated in the transaction that changes them: quotas and statistics read these and never
-- count rows.
CREATE TABLE sizes (
    pubkey BLOB    NOT NULL,
    kind   INTEGER NOT NULL,
    grp    TEXT    NOT NULL,              -- empty: of no group
    events INTEGER NOT NULL,
    bytes  INTEGER NOT NULL,              -- of `raw`
    PRIMARY KEY (pubkey, kind, grp)
) WITHOUT ROWID;
CREATE INDEX sizes_group ON sizes (grp, kind) WHERE grp > '';

-- The same of gift wraps (1059) for at most 16 recipients, under each of these.
CREATE TABLE received (
    recipient TEXT PRIMARY KEY,
    events    INTEGER NOT NULL,
    bytes     INTEGER NOT NULL
) WITHOUT ROWID;

-- What read rules need of groups, updated in the transaction that changes them.
CREATE TABLE groups (
    id      TEXT PRIMARY KEY,
    guarded INTEGER NOT NULL,             -- only its members read its rows; once ended: its 9008
    hidden  INTEGER NOT NULL,
    ended   INTEGER NOT NULL,
    partition INTEGER                     -- null: no row has it
) WITHOUT ROWID;

-- Groups that were made guarded, or open: some of their rows may be in the other partition. The rows
-- are moved in the order of kind and seq.
CREATE TABLE partition_moves (
    grp  TEXT PRIMARY KEY,
    kind INTEGER NOT NULL,                -- of the row that was looked at last
    seq  INTEGER NOT NULL,
    upto INTEGER NOT NULL                 -- seq of the last row that may have to be moved
) WITHOUT ROWID;

CREATE TABLE members (
    pubkey BLOB    NOT NULL,
    grp    TEXT    NOT NULL,
    admin  INTEGER NOT NULL,
    PRIMARY KEY (pubkey, grp)
) WITHOUT ROWID;
CREATE INDEX members_group ON members (grp);

-- Who was a member when a group ended, and so may read its 9008.
CREATE TABLE former_members (
    pubkey BLOB    NOT NULL,
    grp    TEXT    NOT NULL,
    PRIMARY KEY (pubkey, grp)
) WITHOUT ROWID;
CREATE INDEX former_members_group ON former_members (grp);

-- Lists set by NIP-86 calls; they take precedence over the policy files.
CREATE TABLE management (
    register TEXT NOT NULL,               -- which list
    item     TEXT NOT NULL,
    note     TEXT NOT NULL,               -- the reason, or the text
    PRIMARY KEY (register, item)
) WITHOUT ROWID;

-- The current schema; `meta` has its version. migrations/ bring older databases here.
--
-- Texts of clients are bytea in UTF-8: `text` holds no NUL, and bytea sorts by its bytes. They may be
-- longer than an entry of an index (2,700 bytes): indices have their SHA-256, or how they begin.

CREATE TABLE meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- One row. Updated by every batch, under its lock.
CREATE TABLE head (
    seq           bigint NOT NULL,        -- of the newest row ever committed, or later
    changes_after bigint NOT NULL         -- `changes` has all that came after this seq
) WITH (fillfactor = 10);
INSERT INTO head VALUES (0, 0);

-- What batches changed beside adding rows, for the other relays on the database, which read on from
-- their seq, and which batches there were. A minute of it is kept.
CREATE TABLE changes (
    seq  bigint NOT NULL,                 -- of the head after the batch
    what text   NOT NULL,                 -- batch, list, group, gone, passed, erased: see following.py
    item bytea  NOT NULL,
    grp  bytea,
    at   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX changes_seq ON changes (seq);

CREATE TABLE events (
    seq        bigint  PRIMARY KEY,       -- order of commits, never used again
    id         bytea   NOT NULL,
    id_key     bigint  NOT NULL,          -- first 8 bytes of the id, signed, in the order of the bytes
    pubkey     bytea   NOT NULL,
    kind       integer NOT NULL,
    created_at bigint  NOT NULL,
    grp        bytea,                     -- the group that the row belongs to
    d          bytea   NOT NULL,          -- first `d`, empty when there is none
    slot       bigint,                    -- keyed hash of (pubkey, kind, d); null: all versions are kept
    version    bigint  NOT NULL,          -- what LATEST compares, and sweeps order by
    expires_at bigint,
    quiet      boolean NOT NULL,
    tags       bigint[] NOT NULL,         -- keyed hashes of the indexed tags, each once
    rule_tags  bigint[] NOT NULL,         -- of the names of all tags, and of tags whose name is no letter
    raw        bytea   NOT NULL           -- the event as it is sent
);

CREATE UNIQUE INDEX events_id ON events (id);
CREATE INDEX events_time   ON events (created_at DESC, id_key, seq);
CREATE INDEX events_kind   ON events (kind, created_at DESC, id_key, seq);
CREATE INDEX events_author ON events (pubkey, created_at DESC, id_key, seq, kind);
CREATE INDEX events_slot   ON events (slot) WHERE slot IS NOT NULL;
CREATE INDEX events_d      ON events (substring(d, 1, 200), kind) WHERE d <> '';
CREATE INDEX events_group  ON events (substring(grp, 1, 64), kind) WHERE grp IS NOT NULL;
CREATE INDEX events_expiry ON events (expires_at) WHERE expires_at IS NOT NULL;
-- One plan of a page is made for all values. Of a store that is nearly all of one kind the planner
-- would by the true numbers look for a rare one among all rows in the order of time.
ALTER TABLE events ALTER COLUMN kind SET (n_distinct = 100),
    ALTER COLUMN pubkey SET (n_distinct = 1000000);

-- What newer versions replaced, kept by `[[retention]] history`. No query over events finds them; they
-- count in `sizes`.
CREATE TABLE old_versions (
    seq         bigint  PRIMARY KEY,      -- the one that it had among events
    id          bytea   NOT NULL,
    pubkey      bytea   NOT NULL,
    kind        integer NOT NULL,
    created_at  bigint  NOT NULL,
    grp         bytea,
    slot        bigint  NOT NULL,
    version     bigint  NOT NULL,
    expires_at  bigint,
    quiet       boolean NOT NULL,
    replaced_at bigint  NOT NULL,         -- by the clock of the relay
    drop_at     bigint,                   -- when a sweep deletes it; null: never
    raw         bytea   NOT NULL
);
CREATE INDEX old_versions_slot   ON old_versions (slot, seq);
CREATE INDEX old_versions_id     ON old_versions (id);
CREATE INDEX old_versions_author ON old_versions (pubkey);
CREATE INDEX old_versions_group  ON old_versions (substring(grp, 1, 64)) WHERE grp IS NOT NULL;
CREATE INDEX old_versions_drop   ON old_versions (drop_at) WHERE drop_at IS NOT NULL;

-- One row per item of `events.tags`, in the order of results.
CREATE TABLE tags (
    hash       bigint  NOT NULL,
    created_at bigint  NOT NULL,
    id_key     bigint  NOT NULL,
    seq        bigint  NOT NULL,
    kind       integer NOT NULL
);
CREATE UNIQUE INDEX tags_hash ON tags (hash, created_at DESC, id_key, seq, kind);
-- What a request to vanish looks up by its key, which any number of other events may mention.
CREATE INDEX tags_kind ON tags (hash, kind, created_at) INCLUDE (seq)
    WHERE kind IN (1059, 9000, 44100, 44101);

-- NIP-98 events that were used with one of the relays that share the database, until they expire.
CREATE TABLE used_calls (
    id    bytea  PRIMARY KEY,
    until bigint NOT NULL                 -- last second at which it would be valid
);

-- What was deleted: stays after the event, and refuses it when it is sent again.
CREATE TABLE tombstones (
    target  bytea NOT NULL,               -- e:<id>, a:<kind>:<pubkey>:<d>, p:<pubkey>
    by      bytea NOT NULL,               -- who deleted it; empty: for any author
    until   bigint,                       -- last created_at that is deleted; null for an id
    why     bytea NOT NULL,
    request bytea                         -- the kind 62 of a key that vanished; never served
);
CREATE UNIQUE INDEX tombstones_target ON tombstones (sha256(target), sha256(by));

-- What requests deleted, for receipts: ids and kinds, never a text.
CREATE TABLE erasures (
    request bytea   PRIMARY KEY,          -- id of the kind 5, 9005 or 62
    by      bytea   NOT NULL,             -- its author
    kind    integer NOT NULL,
    at      bigint  NOT NULL,
    numbers text    NOT NULL,             -- [[kind, events]]
    ids     text    NOT NULL              -- [[id, kind]] of the first
);
CREATE INDEX erasures_at ON erasures (at);

-- Totals, updated in the transaction that changes them: quotas and statistics read these and never
-- count rows.
CREATE TABLE sizes (
    pubkey bytea   NOT NULL,
    kind   integer NOT NULL,
    grp    bytea   NOT NULL,              -- empty: of no group
    events bigint  NOT NULL,
    bytes  bigint  NOT NULL               -- of `raw`
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX sizes_key ON sizes (pubkey, kind, sha256(grp));
CREATE INDEX sizes_group ON sizes (substring(grp, 1, 64), kind) WHERE grp <> '';

-- The same of gift wraps (1059) for at most 16 recipients, under each of these.
CREATE TABLE received (
    recipient bytea  PRIMARY KEY,
    events    bigint NOT NULL,
    bytes     bigint NOT NULL
) WITH (fillfactor = 70);

-- What read rules need of groups, updated in the transaction that changes them.
CREATE TABLE groups (
    id      bytea   PRIMARY KEY,
    guarded boolean NOT NULL,             -- only its members read its rows; once ended: its 9008
    hidden  boolean NOT NULL,
    ended   boolean NOT NULL
);

CREATE TABLE members (
    pubkey bytea   NOT NULL,
    grp    bytea   NOT NULL,
    admin  boolean NOT NULL,
    PRIMARY KEY (pubkey, grp)
);
CREATE INDEX members_group ON members (grp);

-- Who was a member when a group ended, and so may read its 9008.
CREATE TABLE former_members (
    pubkey bytea NOT NULL,
    grp    bytea NOT NULL,
    PRIMARY KEY (pubkey, grp)
);
CREATE INDEX former_members_group ON former_members (grp);

-- Lists set by NIP-86 calls; they take precedence over the policy files.
CREATE TABLE management (
    register text  NOT NULL,              -- which list
    item     bytea NOT NULL,
    note     bytea NOT NULL               -- the reason, or the text
);
CREATE UNIQUE INDEX management_item ON management (register, sha256(item));

-- Policy files for all relays on the database (`[storage] policies`). The newest version is in force.
CREATE TABLE policy_versions (
    version bigint  PRIMARY KEY,          -- counted from 1
    at      bigint  NOT NULL,             -- by the clock of who pushed it
    by      text    NOT NULL,
    message text    NOT NULL,
    sha256  text    NOT NULL,             -- of `files`, in hex
    number  integer NOT NULL,             -- of files
    bytes   bigint  NOT NULL,             -- of their contents
    files   bytea   NOT NULL              -- MessagePack: [[name, content]], by name
);

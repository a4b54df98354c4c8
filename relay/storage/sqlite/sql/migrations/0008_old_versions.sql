-- Kept old versions of replaceable and addressable events (`[[retention]] history`).
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

-- For reads that would pass over any number of rows of groups that their reader may not read.
DROP INDEX events_group;
CREATE INDEX events_group  ON events (grp, kind, created_at DESC, id_key, expires_at);
-- Look-ups of tags by kind pass over no rows of other kinds. The old table is the one that is renamed:
-- SQLite keeps such a name in quotes. No ORDER BY: a hash may have millions of rows to sort.
ALTER TABLE tags RENAME TO former_tags;
CREATE TABLE tags (
    hash       INTEGER NOT NULL,
    kind_class INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    id_key     INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    PRIMARY KEY (hash, kind_class, created_at DESC, id_key, seq)
) WITHOUT ROWID;
INSERT INTO tags SELECT hash,
    iif(kind < 256, kind, kind * (hash & 65535 | 1) & 65535 >> 8 | 256),
    created_at, id_key, seq FROM former_tags;
DROP TABLE former_tags;

-- Tables and indices as files of earlier schemas have them, in place of the present ones.
DROP INDEX events_kind;
DROP INDEX events_author;
CREATE INDEX events_kind   ON events (kind, created_at DESC, id_key);
CREATE INDEX events_author ON events (author_key, created_at DESC, id_key);
DROP INDEX events_d;
CREATE INDEX events_d      ON events (d) WHERE d > '';
DROP INDEX events_group;
CREATE INDEX events_group  ON events (grp, kind) WHERE grp IS NOT NULL;
DROP TABLE tags;
CREATE TABLE tags (
    hash       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    id_key     INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    PRIMARY KEY (hash, created_at DESC, id_key, seq)
) WITHOUT ROWID;
CREATE INDEX tags_kind ON tags (hash, kind, created_at DESC)
    WHERE kind = 1059 OR kind = 9000 OR kind = 44100 OR kind = 44101;

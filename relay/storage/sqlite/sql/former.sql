-- Tables and indices as files of earlier schemas have them, in place of the present ones. After each
-- statement, what is there is known.
DROP TABLE events;
CREATE TABLE events (
    seq        INTEGER PRIMARY KEY,
    id         BLOB    NOT NULL,
    id_key     INTEGER NOT NULL,
    pubkey     BLOB    NOT NULL,
    author_key INTEGER NOT NULL,
    kind       INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    grp        TEXT,
    d          TEXT    NOT NULL,
    slot       INTEGER,
    version    INTEGER NOT NULL,
    expires_at INTEGER,
    quiet      INTEGER NOT NULL,
    raw        BLOB    NOT NULL
);
CREATE INDEX events_time   ON events (created_at DESC, id_key);
CREATE INDEX events_kind   ON events (kind, created_at DESC, id_key, grp, expires_at);
CREATE INDEX events_group  ON events (grp, kind, created_at DESC, id_key, expires_at);
CREATE INDEX events_author ON events (author_key, created_at DESC, id_key);
CREATE INDEX events_d      ON events (d) WHERE d > '';
DROP INDEX events_kind;
CREATE INDEX events_kind   ON events (kind, created_at DESC, id_key);
DROP TABLE groups;
CREATE TABLE groups (
    id      TEXT PRIMARY KEY,
    guarded INTEGER NOT NULL,
    hidden  INTEGER NOT NULL,
    ended   INTEGER NOT NULL
) WITHOUT ROWID;
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
DROP TABLE tags;
CREATE TABLE tags (
    hash       INTEGER NOT NULL,
    kind_class INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    id_key     INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    PRIMARY KEY (hash, kind_class, created_at DESC, id_key, seq)
) WITHOUT ROWID;

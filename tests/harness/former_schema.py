"""Files as schema 12 had them, made from new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


def put_back_to_schema_14(db: sqlite3.Connection) -> None:
    db.executescript(
        """
        DROP INDEX events_author_kind;
        ALTER TABLE tags DROP COLUMN expires_at;
        PRAGMA user_version = 14;
        """
    )


def put_back_to_schema_13(db: sqlite3.Connection) -> None:
    put_back_to_schema_14(db)
    db.executescript(
        """
        DROP INDEX events_time;
        DROP INDEX events_kind;
        DROP INDEX events_group;
        ALTER TABLE events DROP COLUMN partition;
        ALTER TABLE groups DROP COLUMN partition;
        DROP TABLE partition_moves;
        CREATE INDEX events_time   ON events (created_at DESC, id_key);
        CREATE INDEX events_kind   ON events (kind, created_at DESC, id_key, grp, expires_at);
        CREATE INDEX events_group  ON events (grp, kind, created_at DESC, id_key, expires_at);
        UPDATE tags SET kind_class = (
            SELECT iif(e.kind < 256, e.kind, e.kind * (tags.hash & 65535 | 1) & 65535 >> 8 | 256)
            FROM events AS e WHERE e.seq = tags.seq);
        PRAGMA user_version = 13;
        """
    )


def put_back_to_schema_12(db: sqlite3.Connection) -> None:
    put_back_to_schema_13(db)
    db.executescript(
        """
        CREATE TEMP TABLE kept AS SELECT * FROM tags;
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
        INSERT INTO tags SELECT k.hash, k.created_at, k.id_key, k.seq, e.kind
            FROM kept AS k JOIN events AS e USING (seq);
        DROP TABLE kept;
        DROP INDEX events_group;
        CREATE INDEX events_group ON events (grp, kind) WHERE grp IS NOT NULL;
        PRAGMA user_version = 12;
        """
    )

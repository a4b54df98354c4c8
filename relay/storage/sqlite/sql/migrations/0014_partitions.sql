-- Rows of guarded groups get partitions of their own: nobody passes over those of others. The start
-- notes which groups are guarded, and their rows are moved while the relay runs.
INSERT INTO meta (name, value) VALUES ('unplaced', 1);
ALTER TABLE events ADD COLUMN partition INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN partition INTEGER;
CREATE TABLE partition_moves (
    grp  TEXT PRIMARY KEY,
    kind INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    upto INTEGER NOT NULL
) WITHOUT ROWID;
DROP INDEX events_time;
DROP INDEX events_kind;
DROP INDEX events_group;
CREATE INDEX events_time   ON events (created_at DESC, id_key, partition, kind);
CREATE INDEX events_kind   ON events (partition, kind, created_at DESC, id_key, grp, expires_at);
CREATE INDEX events_group  ON events (grp, kind) WHERE grp IS NOT NULL;

-- For look-ups beside any number of events of other kinds with the same tag, or the same `d`.
CREATE INDEX tags_kind ON tags (hash, kind, created_at DESC)
    WHERE kind = 1059 OR kind = 9000 OR kind = 44100 OR kind = 44101;
DROP INDEX events_d;
CREATE INDEX events_d      ON events (d, kind) WHERE d > '';

-- For look-ups beside any number of events of other kinds with the same tag, or the same `d`.

CREATE INDEX tags_kind ON tags (hash, kind, created_at) INCLUDE (seq)
    WHERE kind IN (1059, 9000, 44100, 44101);
DROP INDEX events_d;
CREATE INDEX events_d      ON events (substring(d, 1, 200), kind) WHERE d <> '';

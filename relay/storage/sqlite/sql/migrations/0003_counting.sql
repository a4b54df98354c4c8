-- Counts become index-only, and scans skip other kinds in the index.
DROP INDEX events_kind;
DROP INDEX events_author;
CREATE INDEX events_kind   ON events (kind, created_at DESC, id_key, grp, expires_at);
CREATE INDEX events_author ON events (author_key, created_at DESC, id_key, kind, grp, expires_at)

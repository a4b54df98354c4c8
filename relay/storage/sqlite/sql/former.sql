-- Indices as files of earlier schemas have them, in place of the present ones.
DROP INDEX events_kind;
DROP INDEX events_author;
CREATE INDEX events_kind   ON events (kind, created_at DESC, id_key);
CREATE INDEX events_author ON events (author_key, created_at DESC, id_key);
DROP INDEX events_d;
CREATE INDEX events_d      ON events (d) WHERE d > '';
DROP INDEX events_group;
CREATE INDEX events_group  ON events (grp, kind) WHERE grp IS NOT NULL;

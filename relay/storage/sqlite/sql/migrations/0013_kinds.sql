-- For reads that would pass over any number of rows of groups that their reader may not read.
DROP INDEX events_group;
CREATE INDEX events_group  ON events (grp, kind, created_at DESC, id_key, expires_at);

-- For the end of a group: what refers to its messages belongs to it and need not name it.
CREATE INDEX events_group  ON events (grp, kind) WHERE grp IS NOT NULL;

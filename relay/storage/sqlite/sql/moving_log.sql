-- What `rookery move` must look at again: a line for each change of what it may have copied.
-- Members are written with their group, but a key that vanishes leaves ended groups alone; totals
-- follow from rows.

CREATE TABLE moving_log (
    number INTEGER PRIMARY KEY,
    name   TEXT NOT NULL,                 -- of the table
    key,                                  -- seq, or the first column that names the row
    by                                    -- the second
);

CREATE TRIGGER moving_events_gone AFTER DELETE ON events
BEGIN INSERT INTO moving_log (name, key) VALUES ('events', old.seq); END;
CREATE TRIGGER moving_events_moved AFTER UPDATE ON events
BEGIN INSERT INTO moving_log (name, key) VALUES ('events', new.seq); END;

CREATE TRIGGER moving_old_new AFTER INSERT ON old_versions
BEGIN INSERT INTO moving_log (name, key) VALUES ('old_versions', new.seq); END;
CREATE TRIGGER moving_old_changed AFTER UPDATE ON old_versions
BEGIN INSERT INTO moving_log (name, key) VALUES ('old_versions', new.seq); END;
CREATE TRIGGER moving_old_gone AFTER DELETE ON old_versions
BEGIN INSERT INTO moving_log (name, key) VALUES ('old_versions', old.seq); END;

CREATE TRIGGER moving_tombstones_new AFTER INSERT ON tombstones
BEGIN INSERT INTO moving_log (name, key, by) VALUES ('tombstones', new.target, new.by); END;
CREATE TRIGGER moving_tombstones_changed AFTER UPDATE ON tombstones
BEGIN INSERT INTO moving_log (name, key, by) VALUES ('tombstones', new.target, new.by); END;
CREATE TRIGGER moving_tombstones_gone AFTER DELETE ON tombstones
BEGIN INSERT INTO moving_log (name, key, by) VALUES ('tombstones', old.target, old.by); END;

CREATE TRIGGER moving_erasures_new AFTER INSERT ON erasures
BEGIN INSERT INTO moving_log (name, key) VALUES ('erasures', new.request); END;
CREATE TRIGGER moving_erasures_gone AFTER DELETE ON erasures
BEGIN INSERT INTO moving_log (name, key) VALUES ('erasures', old.request); END;

CREATE TRIGGER moving_groups_new AFTER INSERT ON groups
BEGIN INSERT INTO moving_log (name, key) VALUES ('groups', new.id); END;
CREATE TRIGGER moving_groups_gone AFTER DELETE ON groups
BEGIN INSERT INTO moving_log (name, key) VALUES ('groups', old.id); END;

CREATE TRIGGER moving_former_gone AFTER DELETE ON former_members
BEGIN INSERT INTO moving_log (name, key) VALUES ('groups', old.grp); END;

CREATE TRIGGER moving_management_new AFTER INSERT ON management
BEGIN INSERT INTO moving_log (name, key, by) VALUES ('management', new.register, new.item); END;
CREATE TRIGGER moving_management_gone AFTER DELETE ON management
BEGIN INSERT INTO moving_log (name, key, by) VALUES ('management', old.register, old.item); END;

INSERT INTO meta (name, value) VALUES ('moving_log', lower(hex(randomblob(16))));

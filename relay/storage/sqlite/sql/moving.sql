-- :rows  seq, limit -> as `Row`, in order of seq
SELECT seq, raw, grp, quiet, CASE WHEN slot IS NOT NULL THEN 1 END, version, expires_at
FROM events WHERE seq > ? ORDER BY seq LIMIT ?;

-- :old_rows  seq, limit -> as `OldRow`, in order of seq
SELECT seq, raw, grp, quiet, 1, version, expires_at, replaced_at, drop_at
FROM old_versions WHERE seq > ? ORDER BY seq LIMIT ?;

-- :old_rows_at  [seq] -> as `OldRow`, in order of seq
SELECT seq, raw, grp, quiet, 1, version, expires_at, replaced_at, drop_at
FROM old_versions WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY seq;

-- :placed_at  [seq] -> seq, group, expires_at
SELECT seq, grp, expires_at FROM events WHERE seq IN (SELECT value FROM json_each(?));

-- :head  -> the newest of: the seq of the newest row, the head that was noted
SELECT max((SELECT coalesce(max(seq), 0) FROM events),
    (SELECT coalesce(max(value), 0) FROM meta WHERE name = 'head'));

-- :partitions  -> partition, group, of those that have one
SELECT partition, id FROM groups WHERE partition IS NOT NULL;

-- :sizes  -> kind, events, bytes
SELECT kind, sum(events), sum(bytes) FROM sizes GROUP BY kind ORDER BY kind;

-- :lines  number, limit -> number, table, key, second key or null
SELECT number, name, key, by FROM moving_log WHERE number > ? ORDER BY number LIMIT ?;

-- :log_state  -> which log there is or null, how many triggers
SELECT (SELECT value FROM meta WHERE name = 'moving_log'),
    (SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name GLOB 'moving_*');

-- :log_triggers  -> names
SELECT name FROM sqlite_master WHERE type = 'trigger' AND name GLOB 'moving_*';

-- :drop_log
DROP TABLE IF EXISTS moving_log;


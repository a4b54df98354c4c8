-- :rows  seq, limit -> as `Row`, in order of seq
SELECT seq, raw, grp, quiet, CASE WHEN slot IS NOT NULL THEN 1 END, version, expires_at
FROM events WHERE seq > $1 ORDER BY seq LIMIT $2;

-- :old_rows  seq, limit -> as `OldRow`, in order of seq
SELECT seq, raw, grp, quiet, 1, version, expires_at, replaced_at, drop_at
FROM old_versions WHERE seq > $1 ORDER BY seq LIMIT $2;

-- :old_rows_at  [seq] -> as `OldRow`, in order of seq
SELECT seq, raw, grp, quiet, 1, version, expires_at, replaced_at, drop_at
FROM old_versions WHERE seq = ANY($1::bigint[]) ORDER BY seq;

-- :placed_at  [seq] -> seq, group, expires_at
SELECT seq, grp, expires_at FROM events WHERE seq = ANY($1::bigint[]);

-- :sizes  -> kind, events, bytes
SELECT kind, sum(events)::bigint, sum(bytes)::bigint FROM sizes GROUP BY kind ORDER BY kind;

-- :lines  number, limit -> number, table, seq, key, second key
SELECT number, name, seq, key, by FROM moving_log WHERE number > $1 ORDER BY number LIMIT $2;

-- :has_tables  -> whether a store was made here
SELECT to_regclass('meta') IS NOT NULL;

-- :log_triggers  -> how many there are
SELECT count(*) FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE t.tgname LIKE 'moving\_%' AND c.relnamespace = current_schema()::regnamespace;

-- :drop_log
DROP TRIGGER IF EXISTS moving_events ON events;
DROP TRIGGER IF EXISTS moving_old ON old_versions;
DROP TRIGGER IF EXISTS moving_tombstones ON tombstones;
DROP TRIGGER IF EXISTS moving_erasures ON erasures;
DROP TRIGGER IF EXISTS moving_groups ON groups;
DROP TRIGGER IF EXISTS moving_former ON former_members;
DROP TRIGGER IF EXISTS moving_management ON management;
DROP FUNCTION IF EXISTS moving_log_seq, moving_log_tombstone, moving_log_erasure, moving_log_group,
    moving_log_former, moving_log_entry;
DROP TABLE IF EXISTS moving_log;
DELETE FROM meta WHERE name = 'moving_log';

-- :drop_meta  name
DELETE FROM meta WHERE name = $1;

-- :settle  what queries are planned by, and which pages need no look at their rows
VACUUM (ANALYZE) events, old_versions, tags, tombstones, sizes, members;

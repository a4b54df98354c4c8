-- :row  columns of a row
e.seq, e.raw, e.grp, e.quiet, e.slot, e.version, e.expires_at;

-- :size  bytes of a row and of its old versions, which are deleted with it
octet_length(e.raw) + coalesce((
    SELECT sum(octet_length(o.raw)) FROM old_versions AS o WHERE o.slot = e.slot AND o.pubkey = e.pubkey), 0);

-- :about  what is known of a row without its event
e.id, e.pubkey, e.kind, e.d, e.slot, e.grp, e.expires_at, e.created_at;

-- :about_old  the same of an old version whose row stays: nothing pins it
''::bytea, o.pubkey, o.kind, ''::bytea, NULL, o.grp, NULL, o.created_at;

-- :begin  -> in the transaction that it begins, no other process writes
BEGIN; SELECT pg_advisory_xact_lock('head'::regclass::oid::bigint);

-- :commit  with %d: seq, %s: hex that names the batch; tells the other processes
UPDATE head SET seq = %d;
INSERT INTO changes (seq, what, item) VALUES (%d, 'batch', '\x%s');
SELECT pg_notify('rookery_' || current_schema(), '%d');
COMMIT;

-- :lock  -> as in `begin`, in a transaction
SELECT pg_advisory_xact_lock('head'::regclass::oid::bigint);

-- :end_hung  seconds -> ends the process that has had `lock` while it waited so long for its client
-- idle_in_transaction_session_timeout does not apply between preparing a statement and executing it.
-- It may read a long result for six times as long: no statement of a batch takes longer.
SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity AS a USING (pid)
WHERE locktype = 'advisory' AND classid = 0 AND objid = 'head'::regclass AND objsubid = 1
AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND granted
AND a.wait_event IN ('ClientRead', 'ClientWrite') AND a.state_change
    < now() - make_interval(secs => CASE a.wait_event WHEN 'ClientRead' THEN $1 ELSE 6 * $1 END);

-- :nothing
SELECT;

-- :rollback
ROLLBACK;

-- :has_committed  seq, hex that names the batch -> whether it was committed, if within the last minute or the newest before it
SELECT EXISTS (
    SELECT FROM changes WHERE seq = $1 AND what = 'batch' AND item = decode($2, 'hex'));

-- :waits_for_replica  process id of a connection -> whether its commit waits for a synchronous replica
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep');

-- :replicate  writes something, so its commit waits until a synchronous replica has all before it; nothing if there is none
-- A message of the log: it needs no table that can be written to.
SELECT pg_logical_emit_message(true, 'rookery', ''::text)
WHERE current_setting('synchronous_standby_names') <> '';

-- :use_call  id, until, now -> a row unless it was used; kept for as long as clocks of relays may differ
-- Waits for no replica: its connection is one of few, and what a fail-over forgets is over in a minute.
WITH old AS (DELETE FROM used_calls WHERE until < $3 - 900),
     waits AS (SELECT set_config('synchronous_commit', 'local', true) AS upto)
INSERT INTO used_calls (id, until) SELECT $1, $2 FROM waits WHERE upto = 'local'
ON CONFLICT DO NOTHING RETURNING true;

-- :channel  -> name of the channel of `commit`
SELECT 'rookery_' || current_schema();

-- :hold  -> whether no other process has the database, as long as the connection lives
SELECT pg_try_advisory_lock('meta'::regclass::oid::bigint);

-- :hold_shared  -> whether no process has the database for itself, as long as the connection lives
SELECT pg_try_advisory_lock_shared('meta'::regclass::oid::bigint);

-- :is_held_shared  -> whether processes have the database that share it
SELECT EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = 'meta'::regclass AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND mode = 'ShareLock' AND granted);

-- :is_nobodys  -> whether no process has the database; for the transaction none can take it
SELECT pg_try_advisory_xact_lock('meta'::regclass::oid::bigint);

-- :lead  -> whether no other process does what one of them has to do, as long as the connection lives
SELECT pg_try_advisory_lock('changes'::regclass::oid::bigint);

-- :add_changes  seq, [what], [item], [group or null]
INSERT INTO changes (seq, what, item, grp)
SELECT $1, * FROM unnest($2::text[], $3::bytea[], $4::bytea[]);

-- :changes_since  seq, bytes -> `changes_after`, and seq, what, item, group of each change, or nulls; in order of seq
-- A `record` is what the state of groups is built from; of batches only the newest is there, of what
-- is `passed` the newest of so many bytes.
SELECT h.changes_after, c.seq, c.what, c.item, c.grp
FROM head AS h LEFT JOIN (
    SELECT seq, what, item, grp FROM changes
    WHERE seq > $1 AND what <> 'passed' AND (what <> 'batch' OR seq = (SELECT seq FROM head))
    UNION ALL
    SELECT seq, what, item, grp FROM (
        SELECT seq, what, item, grp,
            sum(length(item)) OVER (ORDER BY seq DESC ROWS UNBOUNDED PRECEDING) AS newest
        FROM changes WHERE seq > $1 AND what = 'passed'
    ) AS passed WHERE newest <= $2
    UNION ALL
    SELECT seq, 'record', raw, grp FROM events WHERE seq > $1
    AND (kind BETWEEN 9000 AND 9022 OR kind BETWEEN 39000 AND 39005)
    AND expires_at IS DISTINCT FROM 1
) AS c ON true ORDER BY c.seq;

-- :drop_changes
-- What was the newest batch a minute ago stays: by it a relay knows the database when its connection
-- was lost. It waits neither for a lock nor for a replica: the connection would count as lost.
SET LOCAL lock_timeout = '1s';
SET LOCAL synchronous_commit = off;
WITH gone AS (
    DELETE FROM changes WHERE at < now() - interval '1 minute' AND NOT (what = 'batch' AND seq = (
        SELECT max(seq) FROM changes WHERE what = 'batch' AND at < now() - interval '1 minute'
    )) RETURNING seq
)
UPDATE head SET changes_after = greatest(changes_after, (SELECT max(seq) FROM gone))
WHERE EXISTS (SELECT FROM gone);

-- :head  -> seq
SELECT seq FROM head;

-- :head_to_write  -> seq, whether commits wait for a synchronous replica
SELECT seq, current_setting('synchronous_standby_names') <> '' FROM head;

-- :process  -> pid that answers on this connection
SELECT pg_backend_pid();

-- :position  -> seq, hex that names its batch or null
SELECT seq, (
    SELECT encode(item, 'hex') FROM changes WHERE seq = head.seq AND what = 'batch'
    ORDER BY at DESC LIMIT 1
) FROM head;

-- :news  -> seq, newest version of the policies or 0
SELECT seq, (SELECT coalesce(max(version), 0) FROM policy_versions) FROM head;

-- :begin_reading  -> all that follows sees one state
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- :replica  -> seq, whether the server follows another one, what it says of its history, rules and seqs of its text index
SELECT seq, pg_is_in_recovery(),
    (SELECT value FROM meta WHERE name = 'history'),
    (SELECT value FROM meta WHERE name = 'search_rules'),
    (SELECT value::bigint FROM meta WHERE name = 'search_upto'),
    coalesce((SELECT value::bigint FROM meta WHERE name = 'search_ahead'), 0)
FROM head;

-- :rows_by_id  [id] -> columns of a row
SELECT {row}
FROM events AS e WHERE e.id = ANY($1::bytea[]);

-- :size_of_rows  [id], [slot hash] -> bytes; `raw` is not read for its length
SELECT coalesce(sum(size), 0)::bigint FROM (
    SELECT octet_length(raw) AS size FROM events WHERE id = ANY($1::bytea[])
    UNION ALL
    SELECT octet_length(raw) FROM events WHERE slot = ANY($2::bigint[])
) AS found;

-- :sizes_by_id  [id] -> id, bytes of the event
SELECT id, octet_length(raw) FROM events WHERE id = ANY($1::bytea[]);

-- :sizes_by_slot  [slot hash] -> hash, bytes of the event
SELECT slot, octet_length(raw) FROM events WHERE slot = ANY($1::bigint[]);

-- :own  [id], [pubkey or null], [group or null], [hash of p or null]
FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bigint[]) AS w (id, pubkey, grp, p)
JOIN events AS e ON e.id = w.id
WHERE e.pubkey = w.pubkey OR e.grp = w.grp OR (e.kind = 1059 AND w.p = ANY(e.tags))
OR (w.pubkey IS NULL AND w.grp IS NULL);

-- :own_rows  as `own` -> columns of a row
SELECT {row}
{own};

-- :size_of_own_rows  as `own`, [slot hash] -> bytes
SELECT coalesce(sum(size), 0)::bigint FROM (
    SELECT {size} AS size
    {own}
    UNION ALL
    SELECT {size} FROM events AS e WHERE e.slot = ANY($5::bigint[])
) AS found;

-- :old_named  as `own` -> id, bytes of such old versions
SELECT o.id, octet_length(o.raw)
FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bigint[]) AS w (id, pubkey, grp, p)
JOIN old_versions AS o ON o.id = w.id
WHERE o.pubkey = w.pubkey OR o.grp = w.grp;

-- :rows_by_slot  [slot hash] -> columns of a row
SELECT {row}
FROM events AS e WHERE e.slot = ANY($1::bigint[]);

-- :present_rows  [id], [slot hash] -> id, pubkey, kind, d, slot, group, expires_at, created_at; never `raw`
SELECT {about}
FROM events AS e WHERE e.id = ANY($1::bytea[])
UNION ALL
SELECT {about}
FROM events AS e WHERE e.slot = ANY($2::bigint[]);

-- :sent_to  [id], hash of p -> id of the gift wraps and notices among these rows that have the tag
SELECT e.id FROM events AS e
WHERE e.id = ANY($1::bytea[]) AND e.kind IN (1059, 44100, 44101) AND $2::bigint = ANY(e.tags);

-- :rows_by_name  [kind], [d], bytes -> columns of a row: until they have more bytes
SELECT {row}
FROM (
    SELECT e.seq, octet_length(e.raw) AS size, sum(octet_length(e.raw)) OVER (ORDER BY e.seq) AS upto
    FROM unnest($1::integer[], $2::bytea[]) AS n (kind, d)
    JOIN events AS e ON substring(e.d, 1, 200) = substring(n.d, 1, 200) AND e.d <> ''
    WHERE e.d = n.d AND e.kind = n.kind
) AS found JOIN events AS e ON e.seq = found.seq
WHERE found.upto - found.size <= $3;

-- :rows_referring  [hash of e, E, a or A], [kind], limit -> columns of a row of no group
SELECT {row}
FROM events AS e
WHERE e.seq IN (SELECT t.seq FROM tags AS t WHERE t.hash = ANY($1::bigint[])
                AND t.kind = ANY($2::integer[]))
AND e.grp IS NULL LIMIT $3;

-- :rows_by_seq  [seq], bytes -> columns of a row, in the order given: as many as have so many bytes with their old versions, or the first
SELECT {row}
FROM (
    SELECT place, seq, size, sum(size) OVER (ORDER BY place) AS upto
    FROM (
        SELECT j.place, e.seq, {size} AS size
        FROM unnest($1::bigint[]) WITH ORDINALITY AS j (seq, place)
        JOIN events AS e ON e.seq = j.seq
    ) AS sizes
) AS found JOIN events AS e ON e.seq = found.seq
WHERE found.upto <= $2 OR found.upto = found.size ORDER BY found.place;

-- :rows_since  seq, limit -> columns of a row, in order of seq
SELECT {row}
FROM events AS e WHERE e.seq > $1 ORDER BY e.seq LIMIT $2;

-- :seqs_of_kinds  [kind], after, upto, limit -> seq, ascending
-- By the index of kinds: there may be few among very many rows.
WITH found AS MATERIALIZED (
    SELECT seq FROM events WHERE kind = ANY($1::integer[]) AND seq > $2 AND seq <= $3
)
SELECT seq FROM found ORDER BY seq LIMIT $4;

-- :tombstones  [target], number or null -> columns of so many tombstones; null: of all
-- In the order of the index: once a few ids have very many, any other plan reads the whole table.
SELECT t.target, t.by, t.until, t.why, t.request
FROM (SELECT DISTINCT sha256(w.target) AS hash FROM unnest($1::bytea[]) AS w (target)) AS w
CROSS JOIN LATERAL (
    SELECT * FROM tombstones WHERE sha256(target) = w.hash
    ORDER BY sha256(target), sha256(by) LIMIT $2
) AS t
LIMIT $2;

-- :tombstones_by  [target], [by] -> columns of tombstones
SELECT t.target, t.by, t.until, t.why, t.request
FROM unnest($1::bytea[], $2::bytea[]) AS w (target, by)
CROSS JOIN LATERAL (
    SELECT * FROM tombstones WHERE sha256(target) = sha256(w.target) AND sha256(by) = sha256(w.by)
    ORDER BY sha256(target), sha256(by) LIMIT 1
) AS t;

-- :rows_with_prefix  [lowest id], [highest id], limit for each -> place, from 1, and group, id, kind, author, expires_at, quiet, bytes of each row with an id between
SELECT w.place, e.grp, e.id, e.kind, e.pubkey, e.expires_at, e.quiet, octet_length(e.raw)
FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS w (low, high, place)
CROSS JOIN LATERAL (SELECT * FROM events WHERE id BETWEEN w.low AND w.high LIMIT $3) AS e;

-- :content_kinds  -> low, high: the kinds of what is no record of a group. Records are not read, anybody can ask to join
(VALUES (0, 8999), (9023, 38999), (39006, 65535)) AS k (low, high);

-- :expiring  [low], seconds, most -> how many rows expire in each [low, low + seconds), in this order, at most so many
SELECT (
    SELECT count(*) FROM (
        SELECT FROM events
        WHERE expires_at >= w.low AND expires_at < w.low + $2::bigint LIMIT $3::bigint
    ) AS rows
) FROM unnest($1::bigint[]) WITH ORDINALITY AS w (low, place) ORDER BY w.place;

-- :groups_in_use  [group] -> those that hold more than what made them (Z-03)
SELECT w.grp FROM unnest($1::bytea[]) AS w (grp)
WHERE EXISTS (
    SELECT FROM {content_kinds} CROSS JOIN LATERAL (
        SELECT FROM events AS e WHERE substring(e.grp, 1, 64) = substring(w.grp, 1, 64)
        AND e.grp = w.grp AND e.kind BETWEEN k.low AND k.high LIMIT 1
    ) AS found
);

-- :rows_of_group  group -> seq, kind and bytes of rows to delete when it ends (N29-124)
SELECT seq, kind, octet_length(raw) FROM events WHERE substring(grp, 1, 64) = substring($1::bytea, 1, 64) AND grp = $1
AND kind NOT IN (9007, 9008);

-- :expire_rows  [seq], expires_at -> id, kind, group or empty
UPDATE events SET expires_at = $2 WHERE seq = ANY($1::bigint[])
RETURNING id, kind, coalesce(grp, '');

-- :rows_of_key  pubkey, hash of p, until, newest seq -> seq of rows to delete when a key vanishes (N62-01)
SELECT seq FROM events WHERE pubkey = $1 AND created_at <= $3 AND seq <= $4
UNION  -- wraps and notices that were sent to it (N62-05)
SELECT seq FROM tags WHERE hash = $2 AND created_at <= $3 AND kind IN (1059, 44100, 44101)
AND seq <= $4;

-- :kinds_to_one  kinds that are sent to one key. With one kind at a time, and an order, `tags_kind` is read no further than to a LIMIT
(VALUES (1059), (44100), (44101)) AS k (kind);

-- :size_of_key  pubkey, hash of p, limit -> bytes of what would go with the key, of so many rows of `sizes` and as many that were sent to it at most
SELECT coalesce(sum(bytes), 0)::bigint FROM (
    (SELECT bytes FROM sizes WHERE pubkey = $1 LIMIT $3)
    UNION ALL (  -- no total: in `received` a gift wrap for many recipients is missing
        SELECT octet_length(e.raw) FROM {kinds_to_one} CROSS JOIN LATERAL (
            SELECT seq FROM tags
            WHERE hash = $2 AND kind IN (1059, 44100, 44101) AND kind = k.kind
            ORDER BY created_at LIMIT $3
        ) AS t JOIN events AS e ON e.seq = t.seq LIMIT $3
    )
) AS found;

-- :size_of_group  group, limit -> bytes of what would go with it, but its records; of so many rows of `sizes` at most
SELECT coalesce(sum(bytes), 0)::bigint FROM {content_kinds} CROSS JOIN LATERAL (
    SELECT bytes FROM sizes
    WHERE substring(grp, 1, 64) = substring($1::bytea, 1, 64) AND grp = $1 AND grp <> ''
    AND kind BETWEEN k.low AND k.high LIMIT $2
) AS found;

-- :size_of_records  group, limit -> bytes of its records, also of those that are LONG_EXPIRED; of so many rows of `sizes` at most
SELECT coalesce(sum(bytes), 0)::bigint FROM (
    SELECT bytes FROM sizes
    WHERE substring(grp, 1, 64) = substring($1::bytea, 1, 64) AND grp = $1 AND grp <> ''
    AND kind = ANY(ARRAY(SELECT generate_series(9000, 9022)) || ARRAY(SELECT generate_series(39000, 39005)))
    LIMIT $2
) AS found;

-- :leaving_of_key  pubkey, hash of p, until, limit -> seq, bytes, columns of `present_rows`
SELECT e.seq, {size}, {about}
FROM events AS e WHERE e.pubkey = $1 AND e.created_at <= $3
AND (e.kind NOT BETWEEN 9000 AND 9020 OR e.expires_at IS NOT DISTINCT FROM 1)
AND e.kind NOT BETWEEN 39000 AND 39005
UNION ALL
SELECT e.seq, {size}, {about}
FROM {kinds_to_one} CROSS JOIN LATERAL (
    SELECT seq FROM tags
    WHERE hash = $2 AND created_at <= $3 AND kind IN (1059, 44100, 44101) AND kind = k.kind
    ORDER BY created_at LIMIT $4
) AS t JOIN events AS e ON e.seq = t.seq
UNION ALL
SELECT o.seq, octet_length(o.raw), {about_old}
FROM old_versions AS o WHERE o.pubkey = $1 AND o.created_at <= $3 AND NOT EXISTS (
    SELECT FROM events AS e WHERE e.slot = o.slot AND e.pubkey = o.pubkey AND e.created_at <= $3)
LIMIT $4;

-- :leaving_of_group  group, limit -> as `leaving_of_key`
SELECT e.seq, {size}, {about}
FROM {content_kinds} CROSS JOIN LATERAL (
    SELECT * FROM events
    WHERE substring(grp, 1, 64) = substring($1::bytea, 1, 64) AND grp = $1
    AND kind BETWEEN k.low AND k.high LIMIT $2
) AS e
UNION ALL
SELECT o.seq, octet_length(o.raw), {about_old}
FROM old_versions AS o
WHERE substring(o.grp, 1, 64) = substring($1::bytea, 1, 64) AND o.grp = $1 AND NOT EXISTS (
    SELECT FROM events AS e WHERE e.slot = o.slot AND e.pubkey = o.pubkey AND e.grp = $1)
LIMIT $2;

-- :keys_stored  [pubkey], [hash of p] -> those of which something would go
-- One kind at a time, as `kinds_to_one`: or all tags would be read while they are not vacuumed.
SELECT w.pubkey FROM unnest($1::bytea[], $2::bigint[]) AS w (pubkey, p)
WHERE EXISTS (SELECT FROM events AS e WHERE e.pubkey = w.pubkey) OR EXISTS (
    SELECT FROM (VALUES (1059), (9000), (44100), (44101)) AS k (kind) CROSS JOIN LATERAL (
        SELECT FROM tags
        WHERE hash = w.p AND kind IN (1059, 9000, 44100, 44101) AND kind = k.kind
        ORDER BY created_at LIMIT 1
    ) AS found
);

-- :groups_with_keys  [pubkey], [hash of p] -> groups in which something would go with one of the keys
SELECT grp FROM sizes WHERE pubkey = ANY($1::bytea[]) AND grp <> ''
UNION
SELECT e.grp FROM tags AS t JOIN events AS e ON e.seq = t.seq
WHERE t.hash = ANY($2::bigint[]) AND t.kind = 1059 AND e.grp IS NOT NULL;

-- :rows_to_ban  pubkey, seq -> seq, id of rows of a banned key up to seq (N86-11)
SELECT seq, id FROM events WHERE pubkey = $1 AND seq <= $2
AND kind NOT BETWEEN 9000 AND 9022 AND kind NOT BETWEEN 39000 AND 39005;

-- :groups_moderated  pubkey, until, limit -> groups where the key wrote one of 9000–9020
SELECT DISTINCT grp FROM events
WHERE pubkey = $1 AND created_at <= $2 AND kind BETWEEN 9000 AND 9020 AND grp IS NOT NULL
AND expires_at IS DISTINCT FROM 1 LIMIT $3;

-- :groups_put_into  hash of p, after, limit -> the group of each later 9000 that puts the key into one
SELECT e.grp
FROM tags AS t JOIN events AS e ON e.seq = t.seq
WHERE t.hash = $1 AND t.kind = 9000 AND t.created_at > $2 AND e.grp IS NOT NULL LIMIT $3;

-- :records_of_groups  [group] -> columns of a row, in order of seq, of all that their state is built from, but those that are LONG_EXPIRED
SELECT {row}
FROM events AS e
WHERE substring(e.grp, 1, 64) IN (SELECT substring(w.grp, 1, 64) FROM unnest($1::bytea[]) AS w (grp))
AND e.grp = ANY($1::bytea[])
-- Lists are looked up in the index of groups; of ranges all messages of the groups would be read.
AND e.kind = ANY(ARRAY(SELECT generate_series(9000, 9022)) || ARRAY(SELECT generate_series(39000, 39005)))
AND e.expires_at IS DISTINCT FROM 1 ORDER BY e.seq;

-- :move_events  [seq], [group] -> pubkey, kind, bytes, group
UPDATE events AS e SET grp = w.grp FROM unnest($1::bigint[], $2::bytea[]) AS w (seq, grp)
WHERE e.seq = w.seq RETURNING e.pubkey, e.kind, octet_length(e.raw), e.grp;

-- :add_events  columns of events as lists, the tags as texts
WITH added AS (
    INSERT INTO events (seq, id, id_key, pubkey, kind, created_at, grp, d, slot, version,
                        expires_at, quiet, raw, tags, rule_tags)
    SELECT seq, id, id_key, pubkey, kind, created_at, grp, d, slot, version, expires_at, quiet, raw,
        tags::bigint[], rule_tags::bigint[]
    FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bytea[], $5::integer[], $6::bigint[],
                $7::bytea[], $8::bytea[], $9::bigint[], $10::bigint[], $11::bigint[],
                $12::boolean[], $13::bytea[], $14::text[], $15::text[])
        AS w (seq, id, id_key, pubkey, kind, created_at, grp, d, slot, version, expires_at, quiet,
              raw, tags, rule_tags)
    RETURNING seq, created_at, id_key, kind, tags
)
INSERT INTO tags (hash, created_at, id_key, seq, kind)
SELECT unnest(tags), created_at, id_key, seq, kind FROM added;

-- :delete_events  [seq] -> seq, id, pubkey, kind, group or empty, bytes, of gift wraps raw, and whether it was LONG_EXPIRED
WITH gone AS (
    DELETE FROM events WHERE seq = ANY($1::bigint[])
    RETURNING seq, id, id_key, created_at, pubkey, kind, grp, tags, raw, expires_at
), untagged AS (
    DELETE FROM tags AS t
    USING (SELECT unnest(tags) AS hash, created_at, id_key, seq FROM gone) AS g
    WHERE t.hash = g.hash AND t.created_at = g.created_at AND t.id_key = g.id_key AND t.seq = g.seq
), unindexed AS (
    DELETE FROM texts AS t USING gone AS g WHERE t.seq = g.seq
)
SELECT seq, id, pubkey, kind, coalesce(grp, ''), octet_length(raw),
    CASE WHEN kind = 1059 THEN raw END, expires_at IS NOT DISTINCT FROM 1
FROM gone;

-- :add_old  columns of old_versions as lists
INSERT INTO old_versions (seq, id, pubkey, kind, created_at, grp, slot, version, expires_at, quiet,
                          replaced_at, drop_at, raw)
SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::integer[], $5::bigint[],
    $6::bytea[], $7::bigint[], $8::bigint[], $9::bigint[], $10::boolean[], $11::bigint[],
    $12::bigint[], $13::bytea[]);

-- :old_after  seq, limit -> columns of a row, replaced_at, drop_at, newer ones of its slot
SELECT o.seq, o.raw, o.grp, o.quiet, o.slot, o.version, o.expires_at, o.replaced_at, o.drop_at,
  (SELECT count(*) FROM old_versions AS n WHERE n.slot = o.slot AND n.seq > o.seq)
FROM old_versions AS o WHERE o.seq > $1 ORDER BY o.seq LIMIT $2;

-- :old_due  now, limit, bytes -> as `old_after`, until so many are there
SELECT o.seq, o.raw, o.grp, o.quiet, o.slot, o.version, o.expires_at, o.replaced_at, o.drop_at, 0
FROM (
    SELECT seq, sum(size) OVER (ORDER BY drop_at, seq) - size AS before
    FROM (
        SELECT seq, drop_at, octet_length(raw) AS size FROM old_versions
        WHERE drop_at IS NOT NULL AND drop_at <= $1 ORDER BY drop_at LIMIT $2
    ) AS due
) AS found JOIN old_versions AS o ON o.seq = found.seq WHERE found.before < $3
ORDER BY found.before;

-- :forget_by_seq  [seq] -> seq, id, pubkey, kind, group or empty, bytes of what is deleted
DELETE FROM old_versions AS o WHERE o.seq = ANY($1::bigint[])
RETURNING o.seq, o.id, o.pubkey, o.kind, coalesce(o.grp, ''), octet_length(o.raw);

-- :has_old  -> whether there are old versions
SELECT EXISTS (SELECT FROM old_versions);

-- :by_index  the next statements of the transaction look up each of their keys in an index
SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;

-- :by_cost  after `by_index`
SET LOCAL enable_seqscan = DEFAULT; SET LOCAL enable_hashjoin = DEFAULT;
SET LOCAL enable_mergejoin = DEFAULT;

-- :forget_named  [slot or null], [id or null], [upto], [by or null], [until or null], [group or null] -> as `forget_by_seq`, and which of these names it first, from 1
WITH wanted AS (
    SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bytea[], $5::bigint[],
                         $6::bytea[]) WITH ORDINALITY AS w (slot, id, upto, by, until, grp, place)
), found AS (
    SELECT o.*, w.upto, w.by, w.until, w.grp AS of_grp, w.place
    FROM wanted AS w JOIN old_versions AS o ON o.slot = w.slot
    UNION ALL
    SELECT o.*, w.upto, w.by, w.until, w.grp, w.place
    FROM wanted AS w JOIN old_versions AS o ON o.id = w.id
), first AS (
    SELECT seq, min(place) AS place FROM found
    WHERE seq <= upto AND (by IS NULL OR pubkey = by) AND (until IS NULL OR created_at <= until)
    AND (of_grp IS NULL OR grp = of_grp) GROUP BY seq
)
DELETE FROM old_versions AS o USING first AS f WHERE o.seq = f.seq
RETURNING o.seq, o.id, o.pubkey, o.kind, coalesce(o.grp, ''), octet_length(o.raw), f.place;

-- :forget_over_number  [slot], number that is kept -> as `forget_by_seq`
DELETE FROM old_versions AS o USING unnest($1::bigint[]) AS w (slot)
WHERE o.slot = w.slot AND o.seq <= (
    SELECT n.seq FROM old_versions AS n WHERE n.slot = w.slot ORDER BY n.seq DESC LIMIT 1 OFFSET $2)
RETURNING o.seq, o.id, o.pubkey, o.kind, coalesce(o.grp, ''), octet_length(o.raw);

-- :forget_of_rows  [seq] -> as `forget_by_seq`, of the slots of these rows
DELETE FROM old_versions AS o USING events AS e
WHERE e.seq = ANY($1::bigint[]) AND o.slot = e.slot AND o.pubkey = e.pubkey
RETURNING o.seq, o.id, o.pubkey, o.kind, coalesce(o.grp, ''), octet_length(o.raw);

-- :forget_of_group  group -> as `forget_by_seq`
DELETE FROM old_versions AS o
WHERE substring(o.grp, 1, 64) = substring($1::bytea, 1, 64) AND o.grp = $1
RETURNING o.seq, o.id, o.pubkey, o.kind, coalesce(o.grp, ''), octet_length(o.raw);

-- :forget_of_key  pubkey, until, upto -> as `forget_by_seq`
DELETE FROM old_versions AS o WHERE o.pubkey = $1 AND o.created_at <= $2 AND o.seq <= $3
RETURNING o.seq, o.id, o.pubkey, o.kind, coalesce(o.grp, ''), octet_length(o.raw);

-- :set_drop_at  [seq], [drop_at]
UPDATE old_versions AS o SET drop_at = w.drop_at
FROM unnest($1::bigint[], $2::bigint[]) AS w (seq, drop_at) WHERE o.seq = w.seq;

-- :expired  now, [pubkey], limit -> id, bytes with old versions, kind, pubkey, d
SELECT id, {size}, kind, pubkey, d FROM events AS e
WHERE expires_at IS NOT NULL AND expires_at <= $1
AND NOT (expires_at = 1 AND pubkey = ANY($2::bytea[])) ORDER BY expires_at LIMIT $3;

-- :add_sizes  [pubkey], [kind], [group], [events], [bytes]; added up
INSERT INTO sizes AS s (pubkey, kind, grp, events, bytes)
SELECT * FROM unnest($1::bytea[], $2::integer[], $3::bytea[], $4::bigint[], $5::bigint[])
ON CONFLICT (pubkey, kind, sha256(grp)) DO UPDATE
SET events = s.events + excluded.events, bytes = s.bytes + excluded.bytes;

-- :drop_empty_sizes  [pubkey], [kind], [group]
DELETE FROM sizes AS s USING unnest($1::bytea[], $2::integer[], $3::bytea[]) AS w (pubkey, kind, grp)
WHERE s.pubkey = w.pubkey AND s.kind = w.kind AND sha256(s.grp) = sha256(w.grp) AND s.events = 0;

-- :received_by  [recipient] -> recipient, events, bytes
SELECT recipient, events, bytes FROM received WHERE recipient = ANY($1::bytea[]);

-- :add_received  [recipient], [events], [bytes]; added up
INSERT INTO received AS r (recipient, events, bytes)
SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bigint[])
ON CONFLICT (recipient) DO UPDATE
SET events = r.events + excluded.events, bytes = r.bytes + excluded.bytes;

-- :drop_empty_received  [recipient]
DELETE FROM received WHERE recipient = ANY($1::bytea[]) AND events = 0;

-- :sizes_by_kind  limit -> kind, events, bytes, most bytes first; requests to vanish too, which are no rows
SELECT kind, sum(events)::bigint, sum(bytes)::bigint FROM (
    SELECT kind, events, bytes FROM sizes
    UNION ALL
    SELECT 62, 1, octet_length(request) FROM tombstones WHERE request IS NOT NULL
) AS s GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT $1;

-- :sizes_by_author  limit -> pubkey, events, bytes, most bytes first
SELECT pubkey, sum(events)::bigint, sum(bytes)::bigint FROM sizes
GROUP BY pubkey ORDER BY 3 DESC, pubkey LIMIT $1;

-- :sizes_by_group  limit -> group or empty, events, bytes, most bytes first
SELECT grp, sum(events)::bigint, sum(bytes)::bigint FROM sizes
GROUP BY grp ORDER BY 3 DESC, grp LIMIT $1;

-- :add_tombstone  target, by, until, why, request; the one with the later `until` wins
INSERT INTO tombstones AS t (target, by, until, why, request) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (sha256(target), sha256(by)) DO UPDATE
SET until = excluded.until, why = excluded.why, request = excluded.request
WHERE excluded.until > t.until;

-- :keep_out  [seq] of rows of a group that ends, hash of h; tombstones for those that do not name it
INSERT INTO tombstones (target, by, until, why, request)
SELECT convert_to('e:' || encode(id, 'hex'), 'UTF8'), ''::bytea, NULL, '9008'::bytea, NULL
FROM events WHERE seq = ANY($1::bigint[]) AND NOT tags @> ARRAY[$2::bigint]
AND kind NOT BETWEEN 9000 AND 9022 AND kind NOT BETWEEN 39000 AND 39005
ON CONFLICT DO NOTHING;

-- :keep_out_versions  [seq], why; tombstones for those that have a slot, as `tombstone_of_slot`
INSERT INTO tombstones AS t (target, by, until, why, request)
SELECT convert_to(format('%s:%s:%s:', ordered, kind, encode(pubkey, 'hex')), 'UTF8')
    || CASE WHEN kind IN (0, 3) OR kind BETWEEN 10000 AND 19999 THEN ''::bytea ELSE d END,
    ''::bytea, max(CASE ordered WHEN 's' THEN version ELSE created_at END), $2::bytea, NULL::bytea
FROM (
    SELECT *, CASE position('["ts",'::bytea IN raw) WHEN 0 THEN 'a' ELSE 's' END AS ordered
    FROM events WHERE seq = ANY($1::bigint[]) AND slot IS NOT NULL
    AND kind NOT BETWEEN 9000 AND 9022 AND kind NOT BETWEEN 39000 AND 39005
) AS rows
GROUP BY 1
ON CONFLICT (sha256(target), sha256(by)) DO UPDATE
SET until = excluded.until, why = excluded.why, request = excluded.request
WHERE excluded.until > t.until;

-- :put_group  id, guarded, hidden, ended
INSERT INTO groups (id, guarded, hidden, ended) VALUES ($1, $2, $3, $4)
ON CONFLICT (id) DO UPDATE
SET guarded = excluded.guarded, hidden = excluded.hidden, ended = excluded.ended;

-- :drop_members  group, [pubkey], [admin] of the ones that stay
DELETE FROM members WHERE grp = $1 AND pubkey = ANY(ARRAY(  -- never a nested loop
    SELECT pubkey FROM (
        SELECT pubkey, admin FROM members WHERE grp = $1
        EXCEPT SELECT w.* FROM unnest($2::bytea[], $3::boolean[]) AS w
    ) AS gone
));

-- :drop_some_members  group, [pubkey]
DELETE FROM members WHERE grp = $1 AND pubkey = ANY($2::bytea[]);

-- :put_members  group, [pubkey], [admin]
INSERT INTO members (grp, pubkey, admin)
SELECT $1, w.* FROM unnest($2::bytea[], $3::boolean[]) AS w (pubkey, admin)
ON CONFLICT DO NOTHING;

-- :drop_former_members  group
DELETE FROM former_members WHERE grp = $1;

-- :drop_former_member  pubkey, [group]
DELETE FROM former_members WHERE pubkey = $1 AND grp = ANY($2::bytea[]);

-- :put_former_members  group, [pubkey]
INSERT INTO former_members (grp, pubkey) SELECT $1, w.pubkey FROM unnest($2::bytea[]) AS w (pubkey);

-- :ended_groups  [group] or null: all -> id, guarded, former member or null
SELECT g.id, g.guarded, m.pubkey FROM groups AS g LEFT JOIN former_members AS m ON m.grp = g.id
WHERE g.ended AND ($1::bytea[] IS NULL OR g.id = ANY($1));

-- :management  [register] or null: all -> register, item, note
SELECT register, item, note FROM management WHERE $1::text[] IS NULL OR register = ANY($1);

-- :put_entry  register, item, note
INSERT INTO management (register, item, note) VALUES ($1, $2, $3)
ON CONFLICT (register, sha256(item)) DO UPDATE SET note = excluded.note;

-- :drop_entry  register, item
DELETE FROM management WHERE register = $1 AND sha256(item) = sha256($2);

-- :put_meta  name, value
INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- :add_meta  name, value; ignored if there is one
INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- :name_history  with %s: hex; does not wait for a replica, which is not read before it has the name
SET LOCAL synchronous_commit = off;
INSERT INTO meta (name, value) VALUES ('history', '%s') ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- :get_meta  name -> value
SELECT value FROM meta WHERE name = $1;

-- :add_erasure  request, by, kind, at, numbers, ids
INSERT INTO erasures (request, by, kind, at, numbers, ids) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (request) DO UPDATE SET by = excluded.by, kind = excluded.kind, at = excluded.at,
    numbers = excluded.numbers, ids = excluded.ids;

-- :drop_erasures  at: those before it
DELETE FROM erasures WHERE at < $1;

-- :erasure  request -> by, kind, at, numbers, ids
SELECT by, kind, at, numbers, ids FROM erasures WHERE request = $1;

-- :requests_begun  [request] -> those that deleted something
SELECT request FROM erasures WHERE request = ANY($1::bytea[]);

-- :rows_to_check  seq, limit, bytes -> as `CheckedRow`, in order of seq
SELECT e.seq, id, id_key, kind, created_at, pubkey, d, tags, raw,
    (SELECT count(*) FROM tags AS t WHERE t.hash = ANY(e.tags) AND t.created_at = e.created_at
     AND t.id_key = e.id_key AND t.seq = e.seq AND t.kind = e.kind)
FROM (SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before
      FROM (SELECT seq, octet_length(raw) AS size FROM events WHERE seq > $1 ORDER BY seq LIMIT $2)
           AS later) AS next
JOIN events AS e ON e.seq = next.seq
WHERE next.before < $3 ORDER BY e.seq;

-- :number_of_rows  -> number of rows and old versions in the tables themselves, and as the totals have it
SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM old_versions),
    (SELECT coalesce(sum(events), 0)::bigint FROM sizes);

-- :lock_schema  -> for the transaction, while tables are made or changed
SELECT pg_advisory_xact_lock(1383034731);

-- :server  -> version as a number, encoding, whether it is a replica, whether transactions are read-only
SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'),
    pg_is_in_recovery(), current_setting('transaction_read_only') = 'on';

-- :tables  -> how many tables the schema has, whether one is `meta`
SELECT count(*), coalesce(bool_or(relname = 'meta'), false) FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f');

-- :rows_to_tag  seq, limit -> seq, raw
SELECT seq, raw FROM events WHERE seq > $1 ORDER BY seq LIMIT $2;

-- :add_tags  [seq], [hash]; those that the row has are ignored
WITH new AS (
    SELECT w.seq, array_agg(DISTINCT w.hash) AS hashes
    FROM unnest($1::bigint[], $2::bigint[]) AS w (seq, hash)
    JOIN events AS e ON e.seq = w.seq AND NOT w.hash = ANY(e.tags) GROUP BY w.seq
), noted AS (
    UPDATE events AS e SET tags = e.tags || n.hashes FROM new AS n WHERE e.seq = n.seq
    RETURNING e.created_at, e.id_key, e.seq, e.kind, n.hashes
)
INSERT INTO tags (hash, created_at, id_key, seq, kind)
SELECT unnest(hashes), created_at, id_key, seq, kind FROM noted;

-- :left_by_vacuum  -> rows that are deleted, but may still be read
SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables
WHERE schemaname = current_schema() AND relname IN ('events', 'old_versions', 'texts', 'management', 'changes');

-- :vacuum  what may hold deleted texts
VACUUM events, old_versions, tags, texts, management, tombstones, changes;

-- :policy_versions  limit -> columns of a version but for its files; newest first
SELECT version, at, by, message, sha256, number, bytes FROM policy_versions
ORDER BY version DESC LIMIT $1;

-- :policy_files  version or null for the newest -> columns of a version
SELECT version, at, by, message, sha256, number, bytes, files FROM policy_versions
WHERE version = coalesce($1::bigint, (SELECT max(version) FROM policy_versions));

-- :lock_policies  nobody else pushes until the end of the transaction
LOCK TABLE policy_versions IN SHARE ROW EXCLUSIVE MODE;

-- :add_policies  columns of a version
INSERT INTO policy_versions (version, at, by, message, sha256, number, bytes, files)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- :drop_policies  version  it, and older ones
DELETE FROM policy_versions WHERE version <= $1;

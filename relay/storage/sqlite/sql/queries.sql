-- :row  columns of a row
e.seq, e.raw, e.grp, e.quiet, e.slot, e.version, e.expires_at;

-- :size  bytes of a row and of its old versions, which are deleted with it
length(e.raw) + ifnull((
    SELECT sum(length(o.raw)) FROM old_versions AS o WHERE o.slot = e.slot AND o.pubkey = e.pubkey), 0);

-- :size_of_old  [seq] -> bytes of the old versions of these rows
SELECT ifnull(sum(length(o.raw)), 0)
FROM json_each(:seqs) AS j CROSS JOIN events AS e ON e.seq = j.value
CROSS JOIN old_versions AS o ON o.slot = e.slot AND o.pubkey = e.pubkey;

-- :size_of_old_named  id, author or null, group or null -> bytes of such an old version
SELECT length(raw) FROM old_versions INDEXED BY old_versions_id
WHERE id = :id AND (pubkey = :by OR grp = :grp);

-- :about  what is known of a row without its event
e.id, e.pubkey, e.kind, e.d, e.slot, e.grp, e.expires_at, e.created_at;

-- :about_old  the same of an old version whose row stays: nothing pins it
x'', o.pubkey, o.kind, '', NULL, o.grp, NULL, o.created_at;

-- :rows_by_id  [id_key] -> columns of a row; index events_id
SELECT {row}
FROM json_each(:keys) AS j CROSS JOIN events AS e INDEXED BY events_id ON e.id_key = j.value;

-- :sizes_by_id  [id_key] -> id_key, bytes of the event, seq
SELECT j.value, length(e.raw), e.seq
FROM json_each(:keys) AS j CROSS JOIN events AS e INDEXED BY events_id ON e.id_key = j.value;

-- :sizes_by_slot  [hash of a slot] -> hash, bytes of the event, seq
SELECT j.value, length(e.raw), e.seq
FROM json_each(:keys) AS j CROSS JOIN events AS e INDEXED BY events_slot ON e.slot = j.value;

-- :own_rows  [[id_key, id_key of author or null, group or null, hash of p or null]], [newest seq] -> columns of a row
-- `raw` is read of the rows that remain only.
SELECT {row}
FROM json_each(:wanted) AS j CROSS JOIN events AS e INDEXED BY events_id
ON e.id_key = json_extract(j.value, '$[0]')
WHERE e.author_key = json_extract(j.value, '$[1]') OR e.grp = json_extract(j.value, '$[2]')
OR coalesce(json_extract(j.value, '$[1]'), json_extract(j.value, '$[2]')) IS NULL
OR (e.kind = 1059 AND (
    e.seq IN (SELECT value FROM json_each(:newest)) OR EXISTS (
        SELECT 1 FROM tags AS t WHERE t.hash = json_extract(j.value, '$[3]') AND t.kind_class = 1059
        AND t.created_at = e.created_at AND t.id_key = e.id_key AND t.seq = e.seq
    )
));

-- :rows_by_slot  [slot hash] -> columns of a row; index events_slot
SELECT {row}
FROM json_each(:keys) AS j CROSS JOIN events AS e INDEXED BY events_slot ON e.slot = j.value;

-- :present_rows  [id_key], [slot hash] -> id, pubkey, kind, d, slot, group, expires_at, created_at; never `raw`
SELECT {about}
FROM json_each(:ids) AS j CROSS JOIN events AS e INDEXED BY events_id ON e.id_key = j.value
UNION ALL
SELECT {about}
FROM json_each(:slots) AS j CROSS JOIN events AS e INDEXED BY events_slot ON e.slot = j.value;

-- :sent_to  [id_key], hash of p, [newest seq] -> id of the gift wraps and notices among these rows that have the tag
SELECT e.id FROM json_each(:keys) AS j CROSS JOIN events AS e INDEXED BY events_id ON e.id_key = j.value
WHERE e.kind IN (1059, 44100, 44101) AND (
    e.seq IN (SELECT value FROM json_each(:newest)) OR EXISTS (
        SELECT 1 FROM tags AS t WHERE t.hash = :p AND t.kind_class = e.kind
        AND t.created_at = e.created_at AND t.id_key = e.id_key AND t.seq = e.seq
    )
);

-- :rows_by_name  [[kind, d in hex]] -> columns of a row; index events_d
SELECT {row}
FROM json_each(:names) AS j CROSS JOIN events AS e INDEXED BY events_d
ON e.d = text_of(json_extract(j.value, '$[1]')) AND e.kind = json_extract(j.value, '$[0]')
WHERE e.d > '';

-- :rows_referring  [hash of e, E, a or A], [newest seq], [kind], [class of kind], limit -> columns of a row of no group
SELECT {row}
FROM (
    SELECT seq FROM tags WHERE hash IN (SELECT value FROM json_each(:hashes))
    AND kind_class IN (SELECT value FROM json_each(:classes))
    UNION
    SELECT value FROM json_each(:newest)
) AS k CROSS JOIN events AS e ON e.seq = k.seq
WHERE e.grp IS NULL AND e.kind IN (SELECT value FROM json_each(:kinds)) LIMIT :limit;

-- :raw_by_seq  [seq] -> raw and seq, in the order given
SELECT e.raw, e.seq FROM json_each(?) AS j CROSS JOIN events AS e ON e.seq = j.value;

-- :placed_by_seq  [seq] -> raw, created_at, id_key and seq, in the order given
SELECT e.raw, e.created_at, e.id_key, e.seq
FROM json_each(?) AS j CROSS JOIN events AS e ON e.seq = j.value;

-- :move_event  group, seq
UPDATE events SET grp = ? WHERE seq = ?;

-- :rows_by_seq  [seq], bytes -> columns of a row, in the order given: as many as have so many bytes with their old versions, or the first
SELECT {row}
FROM (
    SELECT place, seq, size, sum(size) OVER (ORDER BY place) AS upto
    FROM (
        SELECT j.key AS place, e.seq, {size} AS size
        FROM json_each(?) AS j CROSS JOIN events AS e ON e.seq = j.value
    )
) AS found CROSS JOIN events AS e ON e.seq = found.seq
WHERE found.upto <= ? OR found.upto = found.size ORDER BY found.place;

-- :rows_since  seq, limit -> columns of a row, in order of seq
SELECT {row}
FROM events AS e WHERE e.seq > ? ORDER BY e.seq LIMIT ?;

-- :seqs_of_kinds  [kind], after, upto, limit -> seq, ascending
SELECT seq FROM events INDEXED BY events_kind
WHERE partition IN (SELECT 0 UNION SELECT partition FROM groups WHERE partition IS NOT NULL)
AND kind IN (SELECT value FROM json_each(?)) AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?;

-- :rows_of_group  group -> seq, kind and bytes of rows to delete when it ends (N29-124)
SELECT seq, kind, length(raw) FROM events INDEXED BY events_group
WHERE grp = :grp AND kind NOT IN (9007, 9008);

-- :expire_rows  expires_at, [seq]
UPDATE events SET expires_at = :at WHERE seq IN (SELECT value FROM json_each(:seqs));

-- :content_kinds  -> low, high: the kinds of what is no record of a group. Records are not read, anybody can ask to join
(SELECT 0 AS low, 8999 AS high UNION ALL VALUES (9023, 38999), (39006, 65535)) AS k;

-- :rows_of_key  id_key and pubkey, hash of p, until, last seq, [newest seq] -> seq of rows to delete when a key vanishes (N62-01)
SELECT seq FROM events INDEXED BY events_author
WHERE author_key = :key AND created_at <= :until AND pubkey = :pubkey AND seq <= :upto
UNION  -- wraps and notices that were sent to it (N62-05)
SELECT t.seq FROM tags AS t CROSS JOIN events AS e ON e.seq = t.seq AND e.kind IN (1059, 44100, 44101)
WHERE t.hash = :p AND t.kind_class IN (1059, 44100, 44101)
AND t.created_at <= :until AND t.seq <= :upto
UNION
SELECT e.seq FROM json_each(:newest) AS j CROSS JOIN events AS e ON e.seq = j.value
WHERE e.created_at <= :until AND e.kind IN (1059, 44100, 44101) AND e.seq <= :upto;

-- :size_of_key  pubkey, hash of p, [newest seq], limit -> bytes of what would go with the key, of so many rows of `sizes` and twice as many that were sent to it at most
SELECT ifnull(sum(bytes), 0) FROM (
    SELECT * FROM (SELECT bytes FROM sizes WHERE pubkey = :pubkey LIMIT :limit)
    UNION ALL
    -- No total: in `received` a gift wrap for many recipients is missing.
    SELECT bytes FROM (
        SELECT * FROM (
            SELECT e.seq, length(e.raw) AS bytes FROM tags AS t CROSS JOIN events AS e ON e.seq = t.seq
            AND e.kind IN (1059, 44100, 44101)
            WHERE t.hash = :p AND t.kind_class IN (1059, 44100, 44101) LIMIT :limit
        )
        UNION  -- a slice of the newest may be in the table already
        SELECT * FROM (
            SELECT e.seq, length(e.raw) FROM json_each(:newest) AS j
            CROSS JOIN events AS e ON e.seq = j.value
            WHERE e.kind IN (1059, 44100, 44101) LIMIT :limit
        )
    )
);

-- :size_of_group  group, limit -> bytes of what would go with it, but its records; of so many rows of `sizes` at most
SELECT ifnull(sum(bytes), 0) FROM (
    SELECT s.bytes FROM {content_kinds} CROSS JOIN sizes AS s INDEXED BY sizes_group
    ON s.grp = :grp AND s.grp > '' AND s.kind BETWEEN k.low AND k.high LIMIT :limit
);

-- :size_of_records  group, limit -> bytes of its records, also of those that are LONG_EXPIRED; of so many rows of `sizes` at most
SELECT ifnull(sum(bytes), 0) FROM (
    SELECT s.bytes FROM (SELECT 9000 AS low, 9022 AS high UNION ALL VALUES (39000, 39005)) AS k
    CROSS JOIN sizes AS s INDEXED BY sizes_group
    ON s.grp = :grp AND s.grp > '' AND s.kind BETWEEN k.low AND k.high LIMIT :limit
);

-- :leaving_of_key  id_key and pubkey, hash of p, until, [newest seq] -> seq, bytes, columns of `present_rows`
SELECT e.seq, {size}, {about}
FROM events AS e INDEXED BY events_author
WHERE author_key = :key AND created_at <= :until AND pubkey = :pubkey
AND (kind NOT BETWEEN 9000 AND 9020 OR expires_at IS 1) AND kind NOT BETWEEN 39000 AND 39005
UNION ALL
SELECT e.seq, {size}, {about}
FROM (
    SELECT seq FROM tags WHERE hash = :p AND kind_class IN (1059, 44100, 44101)
    AND created_at <= :until
    UNION ALL
    SELECT value FROM json_each(:newest)
) AS t CROSS JOIN events AS e ON e.seq = t.seq
WHERE e.kind IN (1059, 44100, 44101) AND e.created_at <= :until
UNION ALL
SELECT o.seq, length(o.raw), {about_old}
FROM old_versions AS o INDEXED BY old_versions_author
WHERE o.pubkey = :pubkey AND o.created_at <= :until AND NOT EXISTS (
    SELECT 1 FROM events AS e
    WHERE e.slot = o.slot AND e.pubkey = o.pubkey AND e.created_at <= :until);

-- :leaving_of_group  group -> as `leaving_of_key`
SELECT e.seq, {size}, {about}
FROM {content_kinds} CROSS JOIN events AS e INDEXED BY events_group
ON e.grp = :grp AND e.kind BETWEEN k.low AND k.high
UNION ALL
SELECT o.seq, length(o.raw), {about_old}
FROM old_versions AS o INDEXED BY old_versions_group
WHERE o.grp = :grp AND NOT EXISTS (
    SELECT 1 FROM events AS e WHERE e.slot = o.slot AND e.pubkey = o.pubkey AND e.grp = :grp);

-- :key_is_stored  pubkey, hash of p, [newest seq] -> 1 when something would go with the key
-- By `sizes`: the rows of another key may have the same id_key.
SELECT 1 FROM sizes WHERE pubkey = :pubkey
UNION ALL
SELECT 1 FROM tags AS t CROSS JOIN events AS e ON e.seq = t.seq AND e.kind IN (1059, 44100, 44101)
WHERE t.hash = :p AND t.kind_class IN (1059, 44100, 44101)
UNION ALL
SELECT 1 FROM tags AS t CROSS JOIN events AS e ON e.seq = t.seq AND e.kind = 9000
WHERE t.hash = :p AND t.kind_class = 9000
UNION ALL
SELECT 1 FROM json_each(:newest) AS j CROSS JOIN events AS e ON e.seq = j.value
WHERE e.kind IN (1059, 9000, 44100, 44101)
LIMIT 1;

-- :groups_with_key  pubkey, hash of p, [newest seq] -> groups in which something would go with the key, at least
SELECT grp FROM sizes WHERE pubkey = :pubkey AND grp > ''
UNION
SELECT e.grp FROM (
    SELECT seq FROM tags WHERE hash = :p AND kind_class = 1059
    UNION
    SELECT value FROM json_each(:newest)
) AS t CROSS JOIN events AS e ON e.seq = t.seq
WHERE e.kind = 1059 AND e.grp IS NOT NULL;

-- :rows_to_ban  id_key and pubkey, seq -> seq of rows of a banned key up to seq (N86-11)
SELECT seq FROM events INDEXED BY events_author
WHERE author_key = :key AND pubkey = :pubkey AND seq <= :upto
AND kind NOT BETWEEN 9000 AND 9022 AND kind NOT BETWEEN 39000 AND 39005;

-- :groups_moderated  id_key and pubkey, until, limit -> groups where the key wrote one of 9000–9020
SELECT DISTINCT grp FROM events INDEXED BY events_author
WHERE author_key = :key AND created_at <= :until AND pubkey = :pubkey
AND kind BETWEEN 9000 AND 9020 AND grp IS NOT NULL AND expires_at IS NOT 1 LIMIT :limit;

-- :groups_put_into  hash of p, after, [newest seq], limit -> the group of each later 9000 that puts the key into one
SELECT e.grp
FROM (
    SELECT seq FROM tags WHERE hash = :p AND kind_class = 9000 AND created_at > :after
    UNION ALL
    SELECT value FROM json_each(:newest)
) AS t CROSS JOIN events AS e ON e.seq = t.seq
WHERE e.kind = 9000 AND e.created_at > :after AND e.grp IS NOT NULL LIMIT :limit;

-- :records_of_groups  [group] -> columns of a row, in order of seq, of all that their state is built from, but those that are LONG_EXPIRED
SELECT {row}
FROM (
    SELECT seq FROM events INDEXED BY events_group
    WHERE grp IN (SELECT value FROM json_each(:groups)) AND kind BETWEEN 9000 AND 9022
    UNION ALL
    SELECT seq FROM events INDEXED BY events_group
    WHERE grp IN (SELECT value FROM json_each(:groups)) AND kind BETWEEN 39000 AND 39005
) AS found CROSS JOIN events AS e ON e.seq = found.seq
WHERE e.expires_at IS NOT 1 ORDER BY e.seq;

-- :raws_by_seq  [seq] -> seq, created_at, id_key, pubkey, kind, grp, raw, whether it has a slot, version, partition
SELECT e.seq, e.created_at, e.id_key, e.pubkey, e.kind, ifnull(e.grp, ''), e.raw,
  e.slot IS NOT NULL, e.version, e.partition
FROM json_each(:seqs) AS j CROSS JOIN events AS e ON e.seq = j.value;

-- :old_of_slot  slot, seq before which, limit -> what counts in a page, columns of a row, whether it is the row of the slot; newest first
-- The row of the slot counts for nothing: else a large one alone would be a page, and look as if no old one was left.
SELECT '', raw, seq, grp, quiet, slot, version, expires_at, 1 FROM events INDEXED BY events_slot
WHERE slot = ?1
UNION ALL
SELECT * FROM (
    SELECT raw, raw, seq, grp, quiet, slot, version, expires_at, 0 FROM old_versions
    WHERE slot = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3
);

-- :old_one  id, slot -> columns of a row
SELECT seq, raw, grp, quiet, slot, version, expires_at FROM old_versions WHERE id = ? AND slot = ?;

-- :old_after  seq, limit -> seq, raw, grp, quiet, slot, version, expires_at, replaced_at, drop_at, newer ones of its slot
SELECT o.seq, o.raw, o.grp, o.quiet, o.slot, o.version, o.expires_at, o.replaced_at, o.drop_at,
  (SELECT count(*) FROM old_versions AS n WHERE n.slot = o.slot AND n.seq > o.seq)
FROM old_versions AS o WHERE o.seq > ? ORDER BY o.seq LIMIT ?;

-- :old_due  now, limit, bytes -> as `old_after`, until so many are there
SELECT o.seq, o.raw, o.grp, o.quiet, o.slot, o.version, o.expires_at, o.replaced_at, o.drop_at, 0
FROM (
    SELECT seq, sum(length(raw)) OVER (ORDER BY drop_at, seq) - length(raw) AS before
    FROM (
        SELECT seq, drop_at, raw FROM old_versions INDEXED BY old_versions_drop
        WHERE drop_at IS NOT NULL AND drop_at <= ? ORDER BY drop_at LIMIT ?
    )
) AS found CROSS JOIN old_versions AS o ON o.seq = found.seq WHERE found.before < ?
ORDER BY found.before;

-- :old_by_seq  [seq] -> seq, id, pubkey, kind, grp, bytes
SELECT o.seq, o.id, o.pubkey, o.kind, ifnull(o.grp, ''), length(o.raw)
FROM json_each(:seqs) AS j CROSS JOIN old_versions AS o ON o.seq = j.value;

-- :has_old  -> a row if there are old versions
SELECT 1 FROM old_versions LIMIT 1;

-- :old_named  slot or null, id or null, upto, by or null, until or null, group or null -> as `old_by_seq`
SELECT seq, id, pubkey, kind, ifnull(grp, ''), length(raw) FROM old_versions
WHERE (slot = :slot OR id = :id) AND seq <= :upto
AND (:by IS NULL OR pubkey = :by) AND (:until IS NULL OR created_at <= :until)
AND (:grp IS NULL OR grp = :grp);

-- :old_over_number  [slot], number that is kept -> as `old_by_seq`
SELECT o.seq, o.id, o.pubkey, o.kind, ifnull(o.grp, ''), length(o.raw)
FROM json_each(:slots) AS j CROSS JOIN old_versions AS o ON o.slot = j.value
AND o.seq <= (SELECT n.seq FROM old_versions AS n WHERE n.slot = j.value
              ORDER BY n.seq DESC LIMIT 1 OFFSET :kept);

-- :old_of_rows  [seq] -> as `old_by_seq`, of the slots of these rows
SELECT o.seq, o.id, o.pubkey, o.kind, ifnull(o.grp, ''), length(o.raw)
FROM json_each(:seqs) AS j CROSS JOIN events AS e ON e.seq = j.value
CROSS JOIN old_versions AS o ON o.slot = e.slot AND o.pubkey = e.pubkey;

-- :old_of_group  group -> as `old_by_seq`
SELECT seq, id, pubkey, kind, grp, length(raw) FROM old_versions INDEXED BY old_versions_group
WHERE grp = :grp AND grp IS NOT NULL;

-- :old_of_key  pubkey, until, upto -> as `old_by_seq`
SELECT seq, id, pubkey, kind, ifnull(grp, ''), length(raw) FROM old_versions
WHERE pubkey = :pubkey AND created_at <= :until AND seq <= :upto;

-- :delete_old  [seq]
DELETE FROM old_versions WHERE seq IN (SELECT value FROM json_each(?));

-- :set_drop_at  drop_at, seq
UPDATE old_versions SET drop_at = ? WHERE seq = ?;

-- :tombstones  [target, or in hex as [target]], number -> columns of so many tombstones; -1: of all
SELECT t.target, t.by, t.until, t.why, t.request
FROM json_each(:targets) AS j CROSS JOIN tombstones AS t
ON t.target = CASE j.type WHEN 'array' THEN text_of(json_extract(j.value, '$[0]')) ELSE j.value END
LIMIT :most;

-- :tombstones_by  [target, by] -> columns of tombstones
SELECT t.target, t.by, t.until, t.why, t.request
FROM json_each(:named) AS j CROSS JOIN tombstones AS t
ON t.target = json_extract(j.value, '$[0]') AND t.by = json_extract(j.value, '$[1]');

-- :rows_with_prefix  low and high id_key, limit -> group, seq, id, kind, author, expires_at, quiet, bytes
SELECT e.grp, e.seq, e.id, e.kind, e.pubkey, e.expires_at, e.quiet, length(e.raw)
FROM events AS e INDEXED BY events_id WHERE e.id_key BETWEEN :low AND :high LIMIT :limit;

-- :rows_in_group  group, most -> how many rows it has beside what made it (Z-03), at most so many
SELECT count(*) FROM (
    SELECT 1 FROM {content_kinds} CROSS JOIN events AS e INDEXED BY events_group
    ON e.grp = :grp AND e.kind BETWEEN k.low AND k.high LIMIT :most
);

-- :expiring  low, high, most -> how many rows expire in [low, high), at most so many
SELECT count(*) FROM (
    SELECT 1 FROM events INDEXED BY events_expiry
    WHERE expires_at IS NOT NULL AND expires_at >= :low AND expires_at < :high LIMIT :most
);

-- :bytes_in_group  group -> of the same rows
SELECT ifnull(sum(s.bytes), 0) FROM {content_kinds} CROSS JOIN sizes AS s INDEXED BY sizes_group
ON s.grp = ? AND s.grp > '' AND s.kind BETWEEN k.low AND k.high;

-- :rows_moving  -> rows of all groups that were made private, or opened, and are not moved yet, records included, and their bytes; a million and a billion if they are of 2,000 authors, kinds and groups
SELECT iif(count(*) < 2000, ifnull(sum(events), 0), 1000000),
  iif(count(*) < 2000, ifnull(sum(bytes), 0), 1000000000) FROM (
    SELECT s.events, s.bytes FROM partition_moves AS m CROSS JOIN groups AS g ON g.id = m.grp
    CROSS JOIN sizes AS s INDEXED BY sizes_group ON s.grp = m.grp AND s.grp > ''
    WHERE g.ended = 0 LIMIT 2000
);

-- :expired  now, [pubkey], limit -> id, bytes with old versions, kind, pubkey, d; index events_expiry
SELECT id, {size}, kind, pubkey, d FROM events AS e INDEXED BY events_expiry
WHERE expires_at IS NOT NULL AND expires_at <= ?
AND NOT (expires_at = 1 AND lower(hex(pubkey)) IN (SELECT value FROM json_each(?)))
ORDER BY expires_at LIMIT ?;

-- :rows_after  seq -> seq, created_at, id_key, kind, expires_at, raw, partition of later rows
SELECT seq, created_at, id_key, kind, expires_at, raw, partition FROM events WHERE seq > ?;

-- :all_rows  -> seq, created_at, id_key, kind, expires_at, raw, partition
SELECT seq, created_at, id_key, kind, expires_at, raw, partition FROM events;

-- :add_tag  hash, class of kind, created_at, id_key, seq, expires_at; ignored when it exists
INSERT OR IGNORE INTO tags VALUES (?, ?, ?, ?, ?, ?);

-- :count_tables  -> how many tables and indices the file has
SELECT count(*) FROM sqlite_master;

-- :objects  -> kind, name and text of tables, indices, triggers and views
SELECT type, name, sql FROM sqlite_master;

-- :statistics  -> kind, name and text of the tables in which ANALYZE leaves what it has counted
VALUES ('table', 'sqlite_stat1', 'CREATE TABLE sqlite_stat1(tbl,idx,stat)'),
    ('table', 'sqlite_stat4', 'CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)');

-- :drop_statistics  and plan without them from now on
DROP TABLE IF EXISTS sqlite_stat1;
DROP TABLE IF EXISTS sqlite_stat4;
PRAGMA writable_schema = RESET;

-- :wrong_meta  -> names of entries that are no number, or no text, or missing
SELECT o.name FROM (
    SELECT 'hash_key' AS name, 'text' AS type, 1 AS is_needed
    UNION ALL VALUES ('tags_upto', 'integer', 1), ('head', 'integer', 0), ('index_tags', 'text', 0)
) AS o LEFT JOIN meta AS m USING (name)
WHERE typeof(m.value) <> o.type AND (o.is_needed OR m.name IS NOT NULL);

-- :delete_events  [seq]
DELETE FROM events WHERE seq IN (SELECT value FROM json_each(:seqs));

-- :delete_tag  hash, class of kind, created_at, id_key, seq
DELETE FROM tags WHERE hash = ? AND kind_class = ? AND created_at = ? AND id_key = ? AND seq = ?;

-- :drop_empty_size  pubkey, kind, grp
DELETE FROM sizes WHERE pubkey = ? AND kind = ? AND grp = ? AND events = 0;

-- :received_by  [recipient] -> recipient, events, bytes
SELECT recipient, events, bytes FROM received
WHERE recipient IN (SELECT value FROM json_each(:recipients));

-- :add_received  recipient, events, bytes; added up
INSERT INTO received VALUES (?, ?, ?) ON CONFLICT (recipient) DO UPDATE
SET events = events + excluded.events, bytes = bytes + excluded.bytes;

-- :drop_empty_received  recipient
DELETE FROM received WHERE recipient = ? AND events = 0;

-- :sizes_by_kind  limit -> kind, events, bytes, most bytes first; requests to vanish too, which are no rows
SELECT kind, sum(events), sum(bytes) FROM (
    SELECT kind, events, bytes FROM sizes
    UNION ALL
    SELECT 62, 1, length(request) FROM tombstones WHERE request IS NOT NULL
) GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT ?;

-- :sizes_by_author  limit -> pubkey in hex, events, bytes, most bytes first
SELECT lower(hex(pubkey)), sum(events), sum(bytes) FROM sizes
GROUP BY pubkey ORDER BY 3 DESC, pubkey LIMIT ?;

-- :sizes_by_group  limit -> group or null, events, bytes, most bytes first
SELECT nullif(grp, ''), sum(events), sum(bytes) FROM sizes
GROUP BY grp ORDER BY 3 DESC, grp LIMIT ?;

-- :add_tombstone  target, by, until, why, request; the one with the later `until` wins
INSERT INTO tombstones (target, by, until, why, request) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (target, by) DO UPDATE
SET until = excluded.until, why = excluded.why, request = excluded.request
WHERE excluded.until > until;

-- :put_group  id, guarded, hidden, ended, partition; null: it keeps the one that it has
INSERT OR REPLACE INTO groups (id, guarded, hidden, ended, partition)
VALUES (?1, ?2, ?3, ?4, coalesce(?5, (SELECT partition FROM groups WHERE id = ?1)));

-- :guarded_groups  -> id
SELECT id FROM groups WHERE guarded AND NOT ended;

-- :groups_to_place  -> id, whether it should have a partition; of those that have one, or should
SELECT id, guarded AND NOT ended FROM groups WHERE guarded AND NOT ended OR partition IS NOT NULL;

-- :set_partition  partition, group
UPDATE groups SET partition = ? WHERE id = ?;

-- :move_group  group, kind and seq after which some rows may have to be moved, seq of the last
INSERT INTO partition_moves (grp, kind, seq, upto) VALUES (?, ?, ?, ?)
ON CONFLICT (grp) DO UPDATE SET
  kind = min(kind, excluded.kind),
  seq = CASE WHEN excluded.kind < kind THEN excluded.seq
             WHEN excluded.kind > kind THEN seq ELSE min(seq, excluded.seq) END,
  upto = max(upto, excluded.upto);

-- :has_moves  -> a row if rows of a group may be in the wrong partition
SELECT 1 FROM partition_moves LIMIT 1;

-- :closed_moves  limit -> those of these groups that are guarded
SELECT m.grp FROM (SELECT grp FROM partition_moves LIMIT ?) AS m CROSS JOIN groups AS g
ON g.id = m.grp WHERE g.guarded = 1 AND g.ended = 0;

-- :next_move  group, seq -> the next group of which all such rows are up to this seq: group, kind and seq of the row that was looked at last, seq of the last row
SELECT grp, kind, seq, upto FROM partition_moves WHERE grp > ? AND upto <= ? ORDER BY grp LIMIT 1;

-- :rows_to_move  group, kind, seq, upto, partition -> seq, created_at, id_key, expires_at, partition, raw or null: it is in this partition
SELECT seq, created_at, id_key, expires_at, partition, CASE WHEN partition <> :partition THEN raw END
FROM events INDEXED BY events_group
WHERE grp = :grp AND grp IS NOT NULL AND kind = :kind AND seq > :seq AND seq <= :upto ORDER BY seq;

-- :kind_after  group, kind -> the next kind of its rows, or null
SELECT min(kind) FROM events INDEXED BY events_group
WHERE grp = ? AND grp IS NOT NULL AND kind > ?;

-- :set_row_partitions  partition, [seq]
UPDATE events SET partition = ? WHERE seq IN (SELECT value FROM json_each(?));

-- :put_move  kind and seq of the row that was looked at last, group
UPDATE partition_moves SET kind = ?, seq = ? WHERE grp = ?;

-- :drop_move  group
DELETE FROM partition_moves WHERE grp = ?;

-- :has_rows_in  partition -> a row if it has any
SELECT 1 FROM events INDEXED BY events_kind WHERE partition = ? LIMIT 1;

-- :drop_members  group
DELETE FROM members WHERE grp = ?;

-- :members_of_group  group -> pubkey, admin
SELECT pubkey, admin FROM members WHERE grp = ?;

-- :drop_member  pubkey, group
DELETE FROM members WHERE pubkey = ? AND grp = ?;

-- :put_member  pubkey, group, admin
INSERT OR REPLACE INTO members (pubkey, grp, admin) VALUES (?, ?, ?);

-- :drop_former_members  group
DELETE FROM former_members WHERE grp = ?;

-- :drop_former_member  pubkey, [group]
DELETE FROM former_members WHERE pubkey = ? AND grp IN (SELECT value FROM json_each(?));

-- :put_former_member  pubkey, group
INSERT INTO former_members (pubkey, grp) VALUES (?, ?);

-- :ended_groups  -> id, guarded, former member or null
SELECT g.id, g.guarded, m.pubkey FROM groups AS g LEFT JOIN former_members AS m ON m.grp = g.id
WHERE g.ended = 1;

-- :group_rows  -> id, guarded, hidden, ended
SELECT id, guarded, hidden, ended FROM groups;

-- :members_after  pubkey, group, limit -> pubkey, group, admin of the next ones
SELECT pubkey, grp, admin FROM members WHERE (pubkey, grp) > (?, ?) ORDER BY pubkey, grp LIMIT ?;

-- :management  -> register, item, note
SELECT register, item, note FROM management;

-- :put_entry  register, item, note
INSERT OR REPLACE INTO management (register, item, note) VALUES (?, ?, ?);

-- :drop_entry  register, item
DELETE FROM management WHERE register = ? AND item = ?;

-- :put_meta  name, value
INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?);

-- :drop_meta  name
DELETE FROM meta WHERE name = ?;

-- :get_meta  name -> value
SELECT value FROM meta WHERE name = ?;

-- :newest_seq  -> seq or null
SELECT max(seq) FROM events;

-- :seq_of_id  id_key, id -> seq
SELECT seq FROM events WHERE id_key = ? AND id = ?;

-- :add_erasure  request, by, kind, at, numbers, ids
INSERT OR REPLACE INTO erasures (request, by, kind, at, numbers, ids) VALUES (?, ?, ?, ?, ?, ?);

-- :drop_erasures  at: those before it; index erasures_at
DELETE FROM erasures WHERE at < ?;

-- :erasure  request -> by, kind, at, numbers, ids
SELECT by, kind, at, numbers, ids FROM erasures WHERE request = ?;

-- :rows_to_check  seq, limit, bytes -> as `CheckedRow`, in order of seq. Every index must name the row.
SELECT e.seq, e.id, e.id_key, e.kind, e.created_at, e.pubkey, e.author_key, e.d,
  EXISTS (SELECT 1 FROM events AS i INDEXED BY events_id WHERE i.id_key = e.id_key AND i.seq = e.seq)
  AND EXISTS (SELECT 1 FROM events AS i INDEXED BY events_time
              WHERE i.created_at = e.created_at AND i.id_key = e.id_key
                AND i.partition = e.partition AND i.kind = e.kind AND i.seq = e.seq)
  AND EXISTS (SELECT 1 FROM events AS i INDEXED BY events_kind
              WHERE i.partition = e.partition AND i.kind = e.kind
                AND i.created_at = e.created_at AND i.id_key = e.id_key
                AND i.seq = e.seq AND i.grp IS e.grp AND i.expires_at IS e.expires_at)
  AND EXISTS (SELECT 1 FROM events AS i INDEXED BY events_author
              WHERE i.author_key = e.author_key AND i.created_at = e.created_at
                AND i.id_key = e.id_key AND i.seq = e.seq AND i.kind = e.kind AND i.grp IS e.grp
                AND i.expires_at IS e.expires_at)
  AND (NOT (e.kind IN (0, 3) OR e.kind BETWEEN 10000 AND 19999
            OR e.kind BETWEEN 30000 AND 30077 OR e.kind BETWEEN 30102 AND 39999)
       OR EXISTS (SELECT 1 FROM events AS i INDEXED BY events_author_kind
                  WHERE i.author_key = e.author_key AND i.kind = e.kind
                    AND (i.kind IN (0, 3) OR i.kind BETWEEN 10000 AND 19999
                         OR i.kind BETWEEN 30000 AND 30077 OR i.kind BETWEEN 30102 AND 39999)
                    AND i.created_at = e.created_at AND i.id_key = e.id_key AND i.seq = e.seq))
  AND (e.slot IS NULL OR EXISTS (SELECT 1 FROM events AS i INDEXED BY events_slot
                                 WHERE i.slot = e.slot AND i.slot IS NOT NULL AND i.seq = e.seq))
  AND (e.d = '' OR EXISTS (SELECT 1 FROM events AS i INDEXED BY events_d
                           WHERE i.d = e.d AND i.d > '' AND i.kind = e.kind AND i.seq = e.seq))
  AND (e.grp IS NULL OR EXISTS (SELECT 1 FROM events AS i INDEXED BY events_group
                                WHERE i.grp = e.grp AND i.grp IS NOT NULL AND i.kind = e.kind
                                  AND i.seq = e.seq))
  AND (e.expires_at IS NULL
       OR EXISTS (SELECT 1 FROM events AS i INDEXED BY events_expiry
                  WHERE i.expires_at = e.expires_at AND i.expires_at IS NOT NULL AND i.seq = e.seq)),
  e.raw
FROM (SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before
      FROM (SELECT seq, length(raw) AS size FROM events WHERE seq > ? ORDER BY seq LIMIT ?)) AS next
CROSS JOIN events AS e ON e.seq = next.seq
WHERE next.before < ? ORDER BY e.seq;

-- :mixed  the hash of the tag `t.value ->> 0` XOR the partition of the row `e`
(t.value ->> 0 | e.partition) - (t.value ->> 0 & e.partition);

-- :missing_tags  [[hash, class of kind, created_at, id_key, seq]] -> seq and hash of those not in the table
SELECT e.seq, t.value ->> 0
FROM json_each(?) AS t CROSS JOIN events AS e ON e.seq = t.value ->> 4
WHERE NOT EXISTS (
    SELECT 1 FROM (SELECT {mixed} AS value) AS h
    CROSS JOIN tags AS x ON x.hash = h.value AND x.kind_class = t.value ->> 1
    AND x.created_at = t.value ->> 2 AND x.id_key = t.value ->> 3 AND x.seq = e.seq
);

-- :classes_of_tags  [hash], limit -> JSON lists of hashes and classes: of which classes of kinds the table has rows with each. Counts one more for each hash
WITH RECURSIVE found (hash, class) AS (
    SELECT j.value, (SELECT min(kind_class) FROM tags WHERE hash = j.value) FROM json_each(?) AS j
    UNION ALL
    SELECT f.hash, (
        SELECT min(t.kind_class) FROM tags AS t WHERE t.hash = f.hash AND t.kind_class > f.class)
    FROM found AS f WHERE f.class IS NOT NULL LIMIT ?
)
SELECT json_group_array(hash), json_group_array(class) FROM found WHERE class IS NOT NULL;

-- :number_of_rows  -> number of rows and old versions in the tables themselves, and as the totals have it
SELECT (SELECT count(*) FROM events NOT INDEXED) + (SELECT count(*) FROM old_versions), (SELECT ifnull(sum(events), 0) FROM sizes);

-- :stored_bytes  -> bytes of all events
SELECT ifnull(sum(bytes), 0) FROM sizes;

-- :profile_of  key of the author, author -> its kind 0
SELECT raw FROM events WHERE author_key = ? AND pubkey = ? AND kind = 0;

-- :newest_profiles  limit -> kind 0, newest first, but those of guarded groups; index events_kind
SELECT raw FROM events WHERE partition = 0 AND kind = 0 ORDER BY created_at DESC LIMIT ?;

-- :group_metadata  -> 39000 of each group; index events_kind
SELECT raw FROM events WHERE partition = 0 AND kind = 39000 ORDER BY created_at;

-- :newest_size  since, limit -> number, bytes and oldest of the newest events
SELECT count(*), sum(size), min(created_at) FROM (
    SELECT length(raw) AS size, created_at FROM events
    WHERE created_at >= ? ORDER BY created_at DESC LIMIT ?);

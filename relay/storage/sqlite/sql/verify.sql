-- :state  -> rows, newest seq or null
SELECT count(*), max(seq) FROM events;

-- :rows_after  seq, limit -> all columns of later rows, in order
SELECT seq, id, id_key, pubkey, author_key, kind, created_at, grp, d, slot, version, expires_at,
  partition, raw
FROM events WHERE seq > ? ORDER BY seq LIMIT ?;

-- :rows_of  [seq] -> all columns of these rows, in order
SELECT seq, id, id_key, pubkey, author_key, kind, created_at, grp, d, slot, version, expires_at,
  partition, raw
FROM events WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY seq;

-- :fix_row  id, id_key, pubkey, author_key, kind, created_at, grp, d, slot, version, expires_at, partition, seq
UPDATE events SET id = ?, id_key = ?, pubkey = ?, author_key = ?, kind = ?, created_at = ?, grp = ?,
d = ?, slot = ?, version = ?, expires_at = ?, partition = ? WHERE seq = ?;

-- :shared_slots  -> slots of more than one row
SELECT slot FROM events WHERE slot IS NOT NULL GROUP BY slot HAVING count(*) > 1;

-- :rows_of_slot  slot -> columns of a row
SELECT seq, raw, grp, quiet, slot, version, expires_at FROM events WHERE slot = ?;

-- :stored_as_all  -> seqs of rows without a slot, of kinds of which NIP-01 keeps the newest version,
-- where another row has the same address or the newest was removed
WITH versions AS (
    SELECT seq, slot, kind, pubkey, iif(kind < 30000, '', d) AS d FROM events
    WHERE kind IN (0, 3) OR kind BETWEEN 10000 AND 19999 OR kind BETWEEN 30000 AND 39999
)
SELECT seq FROM versions AS v WHERE slot IS NULL AND (
    EXISTS (
        SELECT 1 FROM tombstones
        WHERE target = 's:' || v.kind || ':' || lower(hex(v.pubkey)) || ':' || v.d
    ) OR (pubkey, kind, d) IN (
        SELECT pubkey, kind, d FROM versions GROUP BY pubkey, kind, d HAVING count(*) > 1
    )
);

-- :old_versions
--   -> seq, id, pubkey, kind, created_at, slot, grp, raw, whether its record has a newer row
SELECT o.seq, o.id, o.pubkey, o.kind, o.created_at, o.slot, o.grp, o.raw, EXISTS (
    SELECT 1 FROM events AS e INDEXED BY events_slot
    WHERE e.slot = o.slot AND e.slot IS NOT NULL AND e.seq > o.seq AND e.pubkey = o.pubkey
)
FROM old_versions AS o ORDER BY o.seq;

-- :delete_lost_versions  those without a newer row
DELETE FROM old_versions WHERE NOT EXISTS (
    SELECT 1 FROM events AS e INDEXED BY events_slot
    WHERE e.slot = old_versions.slot AND e.slot IS NOT NULL AND e.seq > old_versions.seq
);

-- :all_tags  -> hash, created_at, id_key, seq, class of the kind
SELECT hash, created_at, id_key, seq, kind_class FROM tags;

-- :tags_expiring_otherwise  -> seq of rows that do not expire when the index says
SELECT DISTINCT t.seq FROM tags AS t CROSS JOIN events AS e ON e.seq = t.seq
WHERE t.expires_at IS NOT NULL AND t.expires_at IS NOT e.expires_at AND e.expires_at IS NOT 1;

-- :deletions_naming  hash of e or a in a partition, pubkey -> raw of the kind 5s
SELECT e.raw FROM tags AS t CROSS JOIN events AS e ON e.seq = t.seq
WHERE t.hash = ? AND t.kind_class = 5 AND e.pubkey = ?;

-- :sizes_counted  -> pubkey, kind, grp, events, bytes that the table lacks
SELECT pubkey, kind, ifnull(grp, ''), count(*), sum(size) FROM (
    SELECT pubkey, kind, grp, length(raw) AS size FROM events
    UNION ALL SELECT pubkey, kind, grp, length(raw) FROM old_versions
) GROUP BY 1, 2, 3
EXCEPT SELECT pubkey, kind, grp, events, bytes FROM sizes;

-- :sizes_noted  -> pubkey, kind, grp, events, bytes that only the table has
SELECT pubkey, kind, grp, events, bytes FROM sizes
EXCEPT SELECT pubkey, kind, ifnull(grp, ''), count(*), sum(size) FROM (
    SELECT pubkey, kind, grp, length(raw) AS size FROM events
    UNION ALL SELECT pubkey, kind, grp, length(raw) FROM old_versions
) GROUP BY 1, 2, 3;

-- :received  -> recipient, events, bytes
SELECT recipient, events, bytes FROM received;

-- :groups  -> id, guarded, hidden, ended
SELECT id, guarded, hidden, ended FROM groups;

-- :partitions  -> group, partition or null, whether it should have one, whether its rows are being moved
SELECT g.id, g.partition, g.guarded AND NOT g.ended, m.grp IS NOT NULL
FROM groups AS g LEFT JOIN partition_moves AS m ON m.grp = g.id;

-- :place  the partition that a row belongs into; [kinds without partitions]
iif(kind NOT IN (SELECT value FROM json_each(:apart))
    AND grp IN (SELECT id FROM groups WHERE guarded AND NOT ended), partition_of(grp), 0);

-- :place_rows  [kinds without partitions]: each row into that
UPDATE events SET partition = {place} WHERE partition <> {place};

-- :place_groups
UPDATE groups SET partition = iif(guarded AND NOT ended, partition_of(id), NULL);

-- :empty_moves
DELETE FROM partition_moves;

-- :members  -> pubkey, group, admin
SELECT pubkey, grp, admin FROM members;

-- :empty_tags
DELETE FROM tags;

-- :empty_sizes
DELETE FROM sizes;

-- :count_sizes
INSERT INTO sizes
SELECT pubkey, kind, ifnull(grp, ''), count(*), sum(size) FROM (
    SELECT pubkey, kind, grp, length(raw) AS size FROM events
    UNION ALL SELECT pubkey, kind, grp, length(raw) FROM old_versions
) GROUP BY 1, 2, 3;

-- :empty_received
DELETE FROM received;

-- :empty_groups  all but the ended ones
DELETE FROM groups WHERE ended = 0;

-- :empty_members
DELETE FROM members;

-- :rebuild_indices
REINDEX;

-- :indexed_texts  first and last seq
--   -> seq, kind, stems, text, seq, created_at, id_key, once, repeated, frequent
SELECT t.seq, t.kind, t.stems, t.text, r.seq, r.created_at, r.id_key, r.once, r.repeated, r.frequent
FROM texts AS t LEFT JOIN ranks AS r ON r.seq = t.seq WHERE t.seq BETWEEN ? AND ?;

-- :make_index_words  every occurrence of a word in the index of texts
CREATE VIRTUAL TABLE temp.occurrences USING fts5vocab(main, words, instance);

-- :occurrences  -> seq, a number that depends on the words of its text and their places
SELECT doc, sum(
    (unicode(term) * 131 + unicode(substr(term, -1)) * 31 + length(term) + unicode(col)) * (offset + 1)
) FROM temp.occurrences GROUP BY doc;

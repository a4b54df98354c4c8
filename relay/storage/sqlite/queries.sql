-- :rows_by_id  [id_key] -> columns of a row; index events_id
SELECT e.seq, e.raw, e.grp, e.quiet, e.slot, e.version, e.expires_at
FROM json_each(:keys) AS j CROSS JOIN events AS e INDEXED BY events_id ON e.id_key = j.value;

-- :rows_by_slot  [slot hash] -> columns of a row; index events_slot
SELECT e.seq, e.raw, e.grp, e.quiet, e.slot, e.version, e.expires_at
FROM json_each(:keys) AS j CROSS JOIN events AS e INDEXED BY events_slot ON e.slot = j.value;

-- :rows_since  seq, limit -> columns of a row, in order of seq
SELECT e.seq, e.raw, e.grp, e.quiet, e.slot, e.version, e.expires_at
FROM events AS e WHERE e.seq > :seq ORDER BY e.seq LIMIT :limit;

-- :rows_of_group  hash of h, hash of d, group -> seq of what goes when a group ends (N29-124)
SELECT e.seq FROM tags AS t CROSS JOIN events AS e ON e.seq = t.seq
WHERE t.hash IN (:h, :d) AND e.grp = :grp AND e.kind NOT IN (9007, 9008)
UNION  -- a deletion without `h` that acted in the group
SELECT seq FROM events INDEXED BY events_kind WHERE kind = 5 AND grp = :grp;

-- :raws_by_seq  [seq] -> seq, created_at, id_key, raw
SELECT e.seq, e.created_at, e.id_key, e.raw
FROM json_each(:seqs) AS j CROSS JOIN events AS e ON e.seq = j.value;

-- :tombstones  [target] -> columns of tombstones
SELECT t.target, t.by, t.until, t.why
FROM json_each(:targets) AS j CROSS JOIN tombstones AS t ON t.target = j.value;

-- :prefix_in_group  low and high id_key, group -> ids
SELECT e.id FROM events AS e INDEXED BY events_id
WHERE e.id_key BETWEEN :low AND :high AND e.grp = :grp;

-- :group_in_use  hash of h -> 1 when the group holds anything but its own records (Z-03)
SELECT 1 FROM tags WHERE hash = :h AND kind NOT BETWEEN 9000 AND 9022 LIMIT 1;

-- :delete_events  [seq]
DELETE FROM events WHERE seq IN (SELECT value FROM json_each(:seqs));

-- :delete_tag  hash, created_at, id_key, seq
DELETE FROM tags WHERE hash = ? AND created_at = ? AND id_key = ? AND seq = ?;

-- :bury  target, by, until, why; the later of two times holds
INSERT INTO tombstones (target, by, until, why) VALUES (?, ?, ?, ?)
ON CONFLICT (target, by) DO UPDATE SET until = max(until, excluded.until);

-- :put_group  id, guarded, hidden, ended
INSERT OR REPLACE INTO groups (id, guarded, hidden, ended) VALUES (?, ?, ?, ?);

-- :drop_members  group
DELETE FROM members WHERE grp = ?;

-- :put_member  pubkey, group, admin
INSERT INTO members (pubkey, grp, admin) VALUES (?, ?, ?);

-- :put_meta  name, value
INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?);

-- :get_meta  name -> value
SELECT value FROM meta WHERE name = ?;

-- :newest_seq  -> seq or null
SELECT max(seq) FROM events;

-- :seq_of_id  id_key, id -> seq
SELECT seq FROM events WHERE id_key = ? AND id = ?;

-- :lock  waits for another process that indexes
SELECT 1 FROM meta WHERE name = 'search_upto' FOR UPDATE;

-- :state  -> seq up to which the log is indexed, the same of the kinds that are ahead of others, rules
SELECT (SELECT value::bigint FROM meta WHERE name = 'search_upto') AS upto,
    coalesce((SELECT value::bigint FROM meta WHERE name = 'search_ahead'), 0) AS ahead,
    (SELECT value FROM meta WHERE name = 'search_rules') AS rules;

-- :log  seq, limit -> seq, raw, id_key of later rows, in order
SELECT seq, raw, id_key FROM events WHERE seq > $1 ORDER BY seq LIMIT $2;

-- :log_of_kinds  [kind], last seq, seq, limit -> the same of later rows of these kinds
SELECT seq, raw, id_key FROM events
WHERE kind + 0 = ANY($1::integer[]) AND seq <= $2 AND seq > $3 ORDER BY seq LIMIT $4;

-- :put_meta  name, value
INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = $2;

-- :add_texts  columns of texts, as arrays; of rows that are still there
INSERT INTO texts (
    seq, created_at, id_key, thread, once, repeated, frequent, words, words_repeated, words_frequent
)
SELECT t.* FROM unnest(
    $1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::integer[],
    $7::integer[], $8::text[], $9::text[], $10::text[]
) AS t (seq)
WHERE EXISTS (SELECT 1 FROM events AS e WHERE e.seq = t.seq)
ON CONFLICT (seq) DO NOTHING;

-- :indexed  [seq] -> those that have a text
SELECT seq FROM texts WHERE seq = ANY($1::bigint[]);

-- :empty_texts
TRUNCATE texts;

-- :next_texts  seq, limit -> seq of later ones
SELECT seq FROM texts WHERE seq > $1 ORDER BY seq LIMIT $2;

-- :drop_gone  [seq]: those whose events are deleted
DELETE FROM texts AS t WHERE t.seq = ANY($1::bigint[]) AND NOT EXISTS (
    SELECT 1 FROM events AS e WHERE e.seq = t.seq
);

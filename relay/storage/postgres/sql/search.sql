-- :state  -> seq up to which the log is indexed, rules; waits for another process that indexes
SELECT u.value::bigint AS upto, r.value AS rules FROM meta AS u, meta AS r
WHERE u.name = 'search_upto' AND r.name = 'search_rules' FOR UPDATE OF u;

-- :log  seq, limit -> seq, raw, id_key of later rows, in order
SELECT seq, raw, id_key FROM events WHERE seq > $1 ORDER BY seq LIMIT $2;

-- :put_meta  name, value
UPDATE meta SET value = $2 WHERE name = $1;

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

-- :empty_texts
TRUNCATE texts;

-- :next_texts  seq, limit -> seq of later ones
SELECT seq FROM texts WHERE seq > $1 ORDER BY seq LIMIT $2;

-- :drop_gone  [seq]: those whose events are deleted
DELETE FROM texts AS t WHERE t.seq = ANY($1::bigint[]) AND NOT EXISTS (
    SELECT 1 FROM events AS e WHERE e.seq = t.seq
);

-- Totals of gift wraps for quotas, by recipient.
CREATE TABLE received (
    recipient TEXT PRIMARY KEY,
    events    INTEGER NOT NULL,
    bytes     INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO received
SELECT recipient, count(*), sum(size) FROM (
    SELECT DISTINCT e.seq, json_extract(t.value, '$[1]') AS recipient, length(e.raw) AS size
    FROM events AS e, json_each(CAST(e.raw AS TEXT), '$.tags') AS t
    WHERE e.kind = 1059
        AND json_array_length(t.value) > 1 AND json_extract(t.value, '$[0]') = 'p'
        AND (
            SELECT count(DISTINCT json_extract(o.value, '$[1]'))
            FROM json_each(CAST(e.raw AS TEXT), '$.tags') AS o
            WHERE json_array_length(o.value) > 1 AND json_extract(o.value, '$[0]') = 'p'
        ) <= 16
)
WHERE length(recipient) = 64 AND recipient NOT GLOB '*[^0-9a-f]*'
GROUP BY recipient

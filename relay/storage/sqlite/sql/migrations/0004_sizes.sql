-- Totals: quotas and statistics read these and never count rows.
CREATE TABLE sizes (
    pubkey BLOB    NOT NULL,
    kind   INTEGER NOT NULL,
    grp    TEXT    NOT NULL,
    events INTEGER NOT NULL,
    bytes  INTEGER NOT NULL,
    PRIMARY KEY (pubkey, kind, grp)
) WITHOUT ROWID;
CREATE INDEX sizes_group ON sizes (grp, kind) WHERE grp > '';
INSERT INTO sizes
SELECT pubkey, kind, ifnull(grp, ''), count(*), sum(length(raw)) FROM events GROUP BY 1, 2, 3;
-- Sweeps order tool history and clears by their tag `ts`, as new rows have it.
UPDATE events SET version = (
    SELECT CAST(ts AS INTEGER) FROM (
        SELECT json_extract(t.value, '$[1]') AS ts
        FROM json_each(CAST(raw AS TEXT), '$.tags') AS t
        WHERE json_extract(t.value, '$[0]') = 'ts' AND json_array_length(t.value) > 1 LIMIT 1
    )
)
WHERE kind IN (30095, 30096) AND EXISTS (
    SELECT 1 FROM (
        SELECT json_extract(t.value, '$[1]') AS ts
        FROM json_each(CAST(raw AS TEXT), '$.tags') AS t
        WHERE json_extract(t.value, '$[0]') = 'ts' AND json_array_length(t.value) > 1 LIMIT 1
    ) WHERE ts GLOB '[0-9]*' AND ts NOT GLOB '*[^0-9]*' AND length(ts) < 19
)

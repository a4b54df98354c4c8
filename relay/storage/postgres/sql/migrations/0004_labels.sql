-- The `h` of `snowclaw:config:` records is a label: its admins have no rights in them.

UPDATE old_versions SET grp = NULL
WHERE kind = 30078 AND grp IS NOT NULL AND slot IN (
    SELECT slot FROM events WHERE kind = 30078 AND substring(d, 1, 16) = 'snowclaw:config:'
);
UPDATE events SET grp = NULL
WHERE kind = 30078 AND grp IS NOT NULL AND substring(d, 1, 16) = 'snowclaw:config:';
DELETE FROM sizes WHERE kind = 30078;
INSERT INTO sizes
SELECT pubkey, kind, coalesce(grp, ''), count(*), sum(length(raw)) FROM (
    SELECT pubkey, kind, grp, raw FROM events WHERE kind = 30078
    UNION ALL
    SELECT pubkey, kind, grp, raw FROM old_versions WHERE kind = 30078
) AS rows GROUP BY 1, 2, 3;

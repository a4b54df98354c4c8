-- :old_one  id, slot -> columns of a row
SELECT seq, raw, grp, quiet, slot, version, expires_at FROM old_versions WHERE id = $1 AND slot = $2;

-- :versions_of_slot  slot, seq before which, limit, bytes -> columns of a row, whether it is the row of the slot; that one first, then newest first, until they have so many bytes
SELECT p.seq, p.raw, p.grp, p.quiet, p.slot, p.version, p.expires_at, p.is_holder
FROM (
    SELECT q.*, sum(octet_length(q.raw)) OVER (
        ORDER BY q.is_holder DESC, q.seq DESC ROWS UNBOUNDED PRECEDING
    ) - octet_length(q.raw) AS before
    FROM (
        SELECT seq, raw, grp, quiet, slot, version, expires_at, true AS is_holder
        FROM events WHERE slot = $1
        UNION ALL
        (SELECT seq, raw, grp, quiet, slot, version, expires_at, false FROM old_versions
         WHERE slot = $1 AND seq < $2 ORDER BY seq DESC LIMIT $3)
    ) AS q
) AS p
WHERE p.before < $4 ORDER BY p.is_holder DESC, p.seq DESC;

-- :explain  how the statement that follows is carried out
EXPLAIN (FORMAT JSON)

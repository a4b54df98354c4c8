-- Look-ups of profiles, lists and statuses pass over no other rows of their authors.
CREATE INDEX events_author_kind ON events (author_key, kind, created_at DESC, id_key)
    WHERE kind IN (0, 3) OR kind BETWEEN 10000 AND 19999
    OR kind BETWEEN 30000 AND 30077 OR kind BETWEEN 30102 AND 39999;
-- Reads by tag pass over expired rows in the index.
ALTER TABLE tags ADD COLUMN expires_at INTEGER;

-- Apart from moving_log.sql: an earlier version of this function, where no deletion could be stored,
-- may have been left in a database by a move that was killed. BY is a word of PL/pgSQL.

CREATE OR REPLACE FUNCTION moving_log_tombstone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moving_log (name, key, by) VALUES ('tombstones', new.target, new."by");
    RETURN NULL;
END $$;

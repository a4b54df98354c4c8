-- What `rookery move` must look at again: a line for each change of what it may have copied.
-- Batches write one after the other, so lines are committed in the order of their numbers.
-- Members are written with their group, but a key that vanishes leaves ended groups alone; totals
-- follow from rows.

-- Batches wait meanwhile: not for a VACUUM too.
SET LOCAL lock_timeout = '2s';

CREATE TABLE moving_log (
    number bigserial PRIMARY KEY,
    name   text NOT NULL,                 -- of the table
    seq    bigint,
    key    bytea,                         -- the first column that names the row
    by     bytea                          -- the second
);

CREATE FUNCTION moving_log_seq() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moving_log (name, seq)
    VALUES (TG_TABLE_NAME, CASE WHEN TG_OP = 'DELETE' THEN old.seq ELSE new.seq END);
    RETURN NULL;
END $$;
CREATE TRIGGER moving_events AFTER DELETE OR UPDATE OF grp, expires_at ON events
FOR EACH ROW EXECUTE FUNCTION moving_log_seq();
CREATE TRIGGER moving_old AFTER INSERT OR UPDATE OR DELETE ON old_versions
FOR EACH ROW EXECUTE FUNCTION moving_log_seq();

CREATE TRIGGER moving_tombstones AFTER INSERT OR UPDATE ON tombstones
FOR EACH ROW EXECUTE FUNCTION moving_log_tombstone();

CREATE FUNCTION moving_log_erasure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moving_log (name, key)
    VALUES ('erasures', CASE WHEN TG_OP = 'DELETE' THEN old.request ELSE new.request END);
    RETURN NULL;
END $$;
CREATE TRIGGER moving_erasures AFTER INSERT OR UPDATE OR DELETE ON erasures
FOR EACH ROW EXECUTE FUNCTION moving_log_erasure();

CREATE FUNCTION moving_log_group() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moving_log (name, key) VALUES ('groups', new.id);
    RETURN NULL;
END $$;
CREATE TRIGGER moving_groups AFTER INSERT OR UPDATE ON groups
FOR EACH ROW EXECUTE FUNCTION moving_log_group();

CREATE FUNCTION moving_log_former() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO moving_log (name, key) VALUES ('groups', old.grp);
    RETURN NULL;
END $$;
CREATE TRIGGER moving_former AFTER DELETE ON former_members
FOR EACH ROW EXECUTE FUNCTION moving_log_former();

CREATE FUNCTION moving_log_entry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO moving_log (name, key, by)
        VALUES ('management', convert_to(old.register, 'UTF8'), old.item);
    ELSE
        INSERT INTO moving_log (name, key, by)
        VALUES ('management', convert_to(new.register, 'UTF8'), new.item);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER moving_management AFTER INSERT OR UPDATE OR DELETE ON management
FOR EACH ROW EXECUTE FUNCTION moving_log_entry();

INSERT INTO meta (name, value) VALUES ('moving_log', gen_random_uuid()::text);

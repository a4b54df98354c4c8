-- What conditions need of a row that no column has.

-- The first value of the tags of this name that have one; or, with `or_empty`, of the first tag, which
-- may have none. `json` takes no NUL: where one is written,
-- U+FFFF and a letter stand for it, and for U+FFFF, until the value is bytes again.
CREATE FUNCTION first_tag(raw bytea, name text, or_empty boolean DEFAULT false) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    -- With each backslash written in another way, `\u0000` is a NUL wherever it stands.
    event text := replace(convert_from(raw, 'UTF8'), '\\', '\u005c');
    has_nul boolean := strpos(event, '\u0000') > 0;
    found bytea;
BEGIN
    IF has_nul THEN
        event := replace(event, U&'\FFFF', U&'\FFFF' || 'a');
        event := replace(event, '\u0000', U&'\FFFF' || 'b');
    END IF;
    SELECT coalesce(convert_to(tag ->> 1, 'UTF8'), '') INTO found
    FROM json_array_elements(event::json -> 'tags') WITH ORDINALITY AS t (tag, place)
    WHERE tag ->> 0 = name AND (or_empty OR json_array_length(tag) > 1) ORDER BY place LIMIT 1;
    IF has_nul THEN
        found := decode(replace(replace(
            encode(found, 'escape'), '\357\277\277b', '\000'), '\357\277\277a', '\357\277\277'
        ), 'escape');
    END IF;
    RETURN found;
END $$;

-- `Hashes.tag`.
CREATE FUNCTION tag_hash(name text, content bytea) RETURNS bigint
LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
    SELECT ('x' || encode(substring(sha256(
        decode((SELECT m.value FROM meta AS m WHERE m.name = 'hash_key'), 'hex')
        || convert_to(tag_hash.name, 'UTF8') || '\x00' || content
    ), 1, 8), 'hex'))::bit(64)::bigint
$$;

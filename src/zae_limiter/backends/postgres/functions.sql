-- What clients may call. Each function takes one JSON text and answers with one that begins with the time of
-- the server in milliseconds and the counter of news. Nothing else of a store is open to them.
--
-- Whoever changes an item holds its lock until the end of the transaction. All locks of a call are taken
-- first, in the order of their numbers, so calls never wait for each other in a circle; whoever tidies up
-- only takes what is free. Rows are never waited for but by holders of their locks.

CREATE OR REPLACE FUNCTION @schema@.lock_of(pk text, sk text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(pk || E'\n' || sk, @seed@);

CREATE OR REPLACE FUNCTION @schema@.answer(said text) RETURNS text
LANGUAGE sql VOLATILE
RETURN '[' || round(extract(epoch FROM clock_timestamp()) * 1000, 3)::text || ','
    || (SELECT counter FROM @schema@.news)::text || ',' || said || ']';

CREATE OR REPLACE FUNCTION @schema@.look() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = @schema@, pg_temp
RETURN @schema@.answer('{"version":@version@,"encoding":"' || current_setting('server_encoding')
    || '","channel":"@channel@","standby":' || pg_is_in_recovery()::text || '}');

-- Performs groups of writes, each group as a whole or not at all: {"w": milliseconds to wait for a lock,
-- "t": the time in milliseconds, "g": [[write]]}. A write has k (u, p, d, c: update, put, delete, check),
-- p and s (its key), x (whether the item must be there), c (a condition), v (an item, or what is set),
-- d (what is removed), a (what is added) and m (whether many depend on it).
-- It answers [held, image] for each write: a refused group's old images, an applied update's or check's new one;
-- and whether it has counted up the news itself.
--
-- To begin a statement costs more than to change a row. So one statement decides and changes all, or a round of
-- them: a round ends before a group with a key that the round has already, which has to see what became of that.
-- The plan may be older than the table is large, so it must use the index whatever the table was like then.
CREATE OR REPLACE FUNCTION @schema@.write(batch text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = @schema@, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    asked constant jsonb := batch::jsonb;
    groups constant jsonb := asked -> 'g';
    total constant integer := jsonb_array_length(groups);
    now_ms constant bigint := (asked ->> 't')::bigint;
    this_hour constant integer := (now_ms / @hour_ms@)::integer;
    first integer := 1;
    last integer := total;
    meets boolean;
    said text := '';
    of_round text;
    kept integer;
    told boolean := false;
    counted bigint;
BEGIN
    PERFORM set_config('lock_timeout', asked ->> 'w', true);
    SELECT count(pg_advisory_xact_lock(lock)) < sum(times) INTO meets FROM (
        SELECT lock_of(p, s) AS lock, count(*) AS times
        FROM jsonb_array_elements(groups) AS several, jsonb_to_recordset(several) AS (p text, s text)
        GROUP BY 1 ORDER BY 1
    ) AS in_order;
    WHILE first <= total LOOP
        IF meets THEN
            SELECT coalesce(min(g) - 1, total) INTO last FROM (
                SELECT g, lag(g) OVER (PARTITION BY p, s ORDER BY g) AS before
                FROM jsonb_array_elements(groups) WITH ORDINALITY AS one_group (several, g),
                    jsonb_to_recordset(several) AS (p text, s text)
                WHERE g >= first
            ) AS seen WHERE before < g;
        END IF;
        WITH decided AS (
            SELECT g, n, k, p, s, v, d, m, old, hour, is_known,
                bool_and(held) OVER (PARTITION BY g) AS done, held,
                CASE k WHEN 'u' THEN coalesce(old, '{}') - coalesce(d, '{}') || coalesce(change, '{}')
                    WHEN 'p' THEN v WHEN 'c' THEN old END AS new
            FROM jsonb_array_elements(groups) WITH ORDINALITY AS one_group (several, g)
            CROSS JOIN ROWS FROM (jsonb_to_recordset(several) AS (
                k text, p text, s text, x boolean, c text, v jsonb, d text[], a jsonb, m boolean
            )) WITH ORDINALITY AS one (k, p, s, x, c, v, d, a, m, n)
            LEFT JOIN LATERAL (
                SELECT body AS old, hour FROM items WHERE pk = p AND sk = s OFFSET 0
            ) AS item ON true
            CROSS JOIN LATERAL (
                SELECT jsonb_object_agg(name, value) AS change, bool_and(old ? name) AS is_known,
                    bool_and(value IS NOT NULL) AS fits
                FROM (
                    SELECT name, CASE WHEN a ? name AND old ? name THEN
                        CASE jsonb_typeof(old -> name) WHEN 'number'
                        THEN to_jsonb((old -> name)::numeric + given::numeric) END
                    ELSE given END AS value
                    FROM jsonb_each(CASE k WHEN 'u' THEN coalesce(a, '{}') || coalesce(v, '{}') END)
                        AS told (name, given)
                ) AS each_name
            ) AS changed
            CROSS JOIN LATERAL (
                SELECT (x IS NULL OR x = (old IS NOT NULL)) AND fits IS NOT FALSE
                    AND (c IS NULL OR coalesce(coalesce(old, '{}') @@ c::jsonpath, false)) AS held
            ) AS conditions
            WHERE g BETWEEN first AND last
        ), judged AS (
            SELECT *, done AND k <> 'c' AS changes, k IN ('u', 'p') AND old IS NOT NULL AND (
                s <> '@state@' OR k = 'u' AND d IS NULL AND is_known AND hour = this_hour
                    AND NOT coalesce(v ?| '{parent_id,cascade,status}', false)
            ) IS TRUE AS is_plain FROM decided
        ), replaced AS (
            UPDATE items SET body = new FROM judged WHERE changes AND is_plain
                AND pk BETWEEN p AND p AND sk BETWEEN s AND s  -- `=` may read the index from end to end
        )
        SELECT string_agg(CASE n WHEN 1 THEN '],[' ELSE ',' END || CASE
                WHEN NOT done THEN '[' || held::integer || ',' || coalesce(old::text, 'null') || ']'
                WHEN k IN ('u', 'c') THEN '[1,' || coalesce(new::text, 'null') || ']'
                ELSE '[1,null]' END, '' ORDER BY g, n),
            count(keep(p, s, old, new, hour, this_hour, now_ms)) FILTER (WHERE changes AND NOT is_plain),
            told OR coalesce(bool_or(changes AND m), false)
        INTO of_round, kept, told FROM judged;
        said := said || of_round;  -- ],[[held, image],[held, image]],[[held, image]
        first := last + 1;
    END LOOP;
    IF told THEN
        UPDATE news SET counter = counter + 1 RETURNING counter INTO counted;
        PERFORM pg_notify('@channel@', counted::text);
    END IF;
    RETURN '[' || round(extract(epoch FROM clock_timestamp()) * 1000, 3)::text || ','
        || (SELECT counter FROM news)::text || ',[' || substr(said, 3) || left(']', total) || '],' || told::text || ']';
END $$;

-- Puts the image that a write left in its place, and marks a bucket in the change log when that is due:
-- before its first write of an hour, when it is made, and when more than its numbers changes.
-- What `write` replaces by itself is none of these.
CREATE OR REPLACE FUNCTION @schema@.keep(
    pk_ text, sk_ text, old jsonb, new jsonb, marked integer, this_hour integer, now_ms bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF sk_ = '@state@' THEN
        IF new IS NULL OR new @> '{"status": "deleted"}' THEN
            DELETE FROM @schema@.diary WHERE pk = pk_;
            DELETE FROM @schema@.changes WHERE pk = pk_;
            marked := NULL;
        ELSIF old IS NULL THEN
            -- What is made may have been used elsewhere before, so its first use here marks it again.
            INSERT INTO @schema@.diary (pk, at_ms) VALUES (pk_, now_ms);
            marked := NULL;
        ELSIF marked IS DISTINCT FROM this_hour OR @schema@.says_other_things(old, new) THEN
            INSERT INTO @schema@.diary (pk, image, at_ms) VALUES (pk_, old, now_ms);
            marked := this_hour;
        END IF;
    END IF;
    IF new IS NULL THEN
        DELETE FROM @schema@.items WHERE pk = pk_ AND sk = sk_;
    ELSIF old IS NULL THEN
        INSERT INTO @schema@.items (pk, sk, body, hour) VALUES (pk_, sk_, new, marked);
    ELSE
        UPDATE @schema@.items SET body = new, hour = marked WHERE pk = pk_ AND sk = sk_;
    END IF;
END $$;

-- Whether more than numbers changed: limits that come or go, another family.
CREATE OR REPLACE FUNCTION @schema@.says_other_things(old jsonb, new jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN old -> 'parent_id' IS DISTINCT FROM new -> 'parent_id'
    OR old -> 'cascade' IS DISTINCT FROM new -> 'cascade'
    OR ARRAY(SELECT jsonb_object_keys(old)) <> ARRAY(SELECT jsonb_object_keys(new));

-- The items of some keys, in order: [[pk, sk]].
CREATE OR REPLACE FUNCTION @schema@.read(keys text) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = @schema@, pg_temp
RETURN @schema@.answer('[' || (
    SELECT string_agg(coalesce(found.body::text, 'null'), ',' ORDER BY n)
    FROM jsonb_array_elements(keys::jsonb) WITH ORDINALITY AS asked (key, n)
    LEFT JOIN LATERAL (
        SELECT body FROM @schema@.items WHERE pk = key ->> 0 AND sk = key ->> 1 OFFSET 0
    ) AS found ON true
) || ']');

-- Rows of one partition: {"i": index, "p": partition, "f": first, "l": last, "b": backwards, "n": how many,
-- "a": [sort, pk, sk] behind which to begin, "c": a condition}. It answers [[sort, pk, sk, item]].
CREATE OR REPLACE FUNCTION @schema@.query(question text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = @schema@, pg_temp AS $$
DECLARE
    q constant jsonb := question::jsonb;
    prefix constant text := coalesce(q ->> 'i', '');
    backwards constant boolean := (q ->> 'b')::boolean;
    rows text;
BEGIN
    IF prefix NOT IN ('', 'gsi1', 'gsi2', 'gsi3', 'gsi4') THEN
        RAISE 'there is no index %', prefix USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format(
        'SELECT string_agg(jsonb_build_array(sort, pk, sk, body)::text, '','') FROM ('
        'SELECT %1$I AS sort, pk, sk, %3$s AS body FROM items '
        'WHERE %2$I = $1 AND %1$I >= $2 AND %1$I <= $3 %4$s %5$s '
        'ORDER BY %1$I %6$s, pk %6$s, sk %6$s LIMIT $4) AS page',
        prefix || 'sk', prefix || 'pk', CASE prefix WHEN '' THEN 'body' ELSE 'NULL::jsonb' END,
        CASE WHEN q ? 'a' THEN format('AND (%I, pk, sk) %s ($5, $6, $7)', prefix || 'sk',
            CASE WHEN backwards THEN '<' ELSE '>' END) END,
        CASE WHEN q ? 'c' THEN 'AND body @@ $8' END,
        CASE WHEN backwards THEN 'DESC' ELSE 'ASC' END
    ) INTO rows USING q ->> 'p', q ->> 'f', q ->> 'l', (q ->> 'n')::integer,
        q -> 'a' ->> 0, q -> 'a' ->> 1, q -> 'a' ->> 2, (q ->> 'c')::jsonpath;
    RETURN answer('[' || coalesce(rows, '') || ']');
END $$;

-- Drops some items whose time is over, and marks that nobody came for; what is in use is left for later.
-- {"t": the time in milliseconds, "n": how many}. It answers whether there may be more.
CREATE OR REPLACE FUNCTION @schema@.tidy(asked text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = @schema@, pg_temp AS $$
DECLARE
    now_ms constant bigint := (asked::jsonb ->> 't')::bigint;
    most constant integer := (asked::jsonb ->> 'n')::integer;
    -- A ttl has passed when its second lies wholly in the past.
    before constant bigint := ceil(now_ms / 1000.0);
    doomed record;
    gone jsonb;
    seen integer := 0;
    newest bigint;
BEGIN
    FOR doomed IN SELECT pk, sk FROM items WHERE ttl < before ORDER BY ttl LIMIT most LOOP
        seen := seen + 1;
        IF pg_try_advisory_xact_lock(lock_of(doomed.pk, doomed.sk)) THEN
            -- Somebody may have prolonged it since it was found.
            DELETE FROM items WHERE pk = doomed.pk AND sk = doomed.sk AND ttl < before RETURNING body INTO gone;
            IF FOUND AND doomed.sk = '@state@' AND NOT gone @> '{"status": "deleted"}' THEN
                INSERT INTO diary (pk, image, at_ms, gone) VALUES (doomed.pk, gone, now_ms, true);
            END IF;
        END IF;
    END LOOP;
    SELECT max(position) INTO newest FROM diary;
    FOR doomed IN SELECT DISTINCT pk FROM (
        SELECT pk FROM diary WHERE position <= newest - @marks_max@ ORDER BY position LIMIT most
    ) AS oldest LOOP
        -- Who loses a mark is marked again by its next write, for it may have been the only one.
        IF pg_try_advisory_xact_lock(lock_of(doomed.pk, '@state@')) THEN
            DELETE FROM diary WHERE pk = doomed.pk AND position <= newest - @marks_max@;
            UPDATE items SET hour = NULL WHERE pk = doomed.pk AND sk = '@state@';
        END IF;
    END LOOP;
    RETURN answer((seen = most)::text);
END $$;

-- What became of buckets between their marks, and of the last one until now.
CREATE OR REPLACE VIEW @schema@.became AS
SELECT position, pk, image, after, at_ms FROM (
    SELECT position, pk, image, at_ms, gone,
        CASE WHEN lead(position) OVER marks IS NOT NULL THEN lead(image) OVER marks
        ELSE (SELECT body FROM @schema@.items WHERE items.pk = diary.pk AND sk = '@state@') END AS after
    FROM @schema@.diary WINDOW marks AS (PARTITION BY pk ORDER BY position)
) AS spans
WHERE NOT gone AND after IS NOT NULL AND after IS DISTINCT FROM image;

-- The oldest entries of the change log; where there are none, the oldest marks are worked out first.
-- One reader at a time does that, so that positions appear in their order. It answers [entries, whether there
-- may be more in the marks].
CREATE OR REPLACE FUNCTION @schema@.log_read(asked text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = @schema@, pg_temp AS $$
DECLARE
    most constant integer := (asked::jsonb ->> 'n')::integer;
    positions constant text := pg_get_serial_sequence('changes', 'position');
    buckets text[];
    more boolean := false;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM changes) THEN
        PERFORM set_config('lock_timeout', asked::jsonb ->> 'w', true);
        PERFORM pg_advisory_xact_lock(lock_of('', ''));
        IF NOT EXISTS (SELECT 1 FROM changes) THEN
            buckets := ARRAY(SELECT DISTINCT pk FROM (
                SELECT pk FROM diary ORDER BY position LIMIT @marks_at_once@) AS oldest);
            PERFORM pg_advisory_xact_lock(lock) FROM (
                SELECT DISTINCT lock_of(pk, '@state@') AS lock FROM unnest(buckets) AS pk ORDER BY 1) AS in_order;
            -- Positions are never below the time in microseconds, for who counts goes on behind those it knows:
            -- they begin anew with a table that is made again, or that a crash has emptied.
            PERFORM setval(positions,
                greatest(nextval(positions), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint));
            INSERT INTO changes (pk, old, new, at_ms)
                SELECT pk, image, after, at_ms FROM became WHERE pk = ANY (buckets) ORDER BY position;
            DELETE FROM diary WHERE pk = ANY (buckets);
            UPDATE items SET hour = NULL WHERE pk = ANY (buckets) AND sk = '@state@' AND hour IS NOT NULL;
            more := cardinality(buckets) > 0;
        END IF;
    END IF;
    RETURN answer(jsonb_build_array((
        SELECT coalesce(jsonb_agg(jsonb_build_array(position, pk, old, new, at_ms) ORDER BY position), '[]')
        FROM (SELECT * FROM changes ORDER BY position LIMIT most) AS first
    ), more)::text);
END $$;

CREATE OR REPLACE FUNCTION @schema@.log_waits(asked text) RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = @schema@, pg_temp
RETURN @schema@.answer((
    EXISTS (SELECT 1 FROM @schema@.changes) OR EXISTS (SELECT 1 FROM @schema@.became)
)::text);

-- Drops entries up to a position; what somebody deletes at this moment is gone anyway.
CREATE OR REPLACE FUNCTION @schema@.log_trim(asked text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = @schema@, pg_temp AS $$
BEGIN
    DELETE FROM changes WHERE position IN (
        SELECT position FROM changes WHERE position <= (asked::jsonb ->> 'p')::bigint FOR UPDATE SKIP LOCKED);
    RETURN answer('null');
END $$;

-- The tables of a store. Items are one JSON object each; what is looked for stands in columns beside it,
-- which PostgreSQL fills from the body by itself, so that they can never say something else.
--
-- No index has a column that the use of a bucket changes. So such a write is a HOT update, if its page has
-- room: fillfactor leaves some, and the vacuum settings see to it that it is found again soon.

CREATE SCHEMA IF NOT EXISTS @schema@;

CREATE TABLE IF NOT EXISTS @schema@.items (
    pk text COLLATE "C" NOT NULL,
    sk text COLLATE "C" NOT NULL,
    body jsonb NOT NULL,
    hour integer,  -- in which a bucket was last marked for the change log
    gsi1pk text COLLATE "C" GENERATED ALWAYS AS (CASE WHEN jsonb_typeof(body -> 'GSI1PK') = 'string' AND jsonb_typeof(body -> 'GSI1SK') = 'string' THEN body ->> 'GSI1PK' END) STORED,
    gsi1sk text COLLATE "C" GENERATED ALWAYS AS (CASE WHEN jsonb_typeof(body -> 'GSI1PK') = 'string' AND jsonb_typeof(body -> 'GSI1SK') = 'string' THEN body ->> 'GSI1SK' END) STORED,
    gsi2pk text COLLATE "C" GENERATED ALWAYS AS (CASE WHEN jsonb_typeof(body -> 'GSI2PK') = 'string' AND jsonb_typeof(body -> 'GSI2SK') = 'string' THEN body ->> 'GSI2PK' END) STORED,
    gsi2sk text COLLATE "C" GENERATED ALWAYS AS (CASE WHEN jsonb_typeof(body -> 'GSI2PK') = 'string' AND jsonb_typeof(body -> 'GSI2SK') = 'string' THEN body ->> 'GSI2SK' END) STORED,
    gsi3pk text COLLATE "C" GENERATED ALWAYS AS (CASE WHEN jsonb_typeof(body -> 'GSI3PK') = 'string' AND jsonb_typeof(body -> 'GSI3SK') = 'string' THEN body ->> 'GSI3PK' END) STORED,
    gsi3sk text COLLATE "C" GENERATED ALWAYS AS (CASE WHEN jsonb_typeof(body -> 'GSI3PK') = 'string' AND jsonb_typeof(body -> 'GSI3SK') = 'string' THEN body ->> 'GSI3SK' END) STORED,
    gsi4pk text COLLATE "C" GENERATED ALWAYS AS (CASE WHEN jsonb_typeof(body -> 'GSI4PK') = 'string' AND jsonb_typeof(body -> 'GSI4SK') = 'string' THEN body ->> 'GSI4PK' END) STORED,
    gsi4sk text COLLATE "C" GENERATED ALWAYS AS (CASE WHEN jsonb_typeof(body -> 'GSI4PK') = 'string' AND jsonb_typeof(body -> 'GSI4SK') = 'string' THEN body ->> 'GSI4SK' END) STORED,
    ttl bigint GENERATED ALWAYS AS (
        CASE WHEN jsonb_typeof(body -> 'ttl') = 'number' AND abs((body -> 'ttl')::numeric) < 9e18
        THEN (body -> 'ttl')::bigint END
    ) STORED,
    PRIMARY KEY (pk, sk)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX IF NOT EXISTS items_gsi1 ON @schema@.items (gsi1pk, gsi1sk, pk, sk) WHERE gsi1pk IS NOT NULL;
CREATE INDEX IF NOT EXISTS items_gsi2 ON @schema@.items (gsi2pk, gsi2sk, pk, sk) WHERE gsi2pk IS NOT NULL;
CREATE INDEX IF NOT EXISTS items_gsi3 ON @schema@.items (gsi3pk, gsi3sk, pk, sk) WHERE gsi3pk IS NOT NULL;
CREATE INDEX IF NOT EXISTS items_gsi4 ON @schema@.items (gsi4pk, gsi4sk, pk, sk) WHERE gsi4pk IS NOT NULL;
CREATE INDEX IF NOT EXISTS items_ttl ON @schema@.items (ttl) WHERE ttl IS NOT NULL;

-- How often a record was changed on which many depend. One row.
CREATE TABLE IF NOT EXISTS @schema@.news (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    counter bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO @schema@.news (counter) VALUES (1) ON CONFLICT DO NOTHING;

-- The change log: what a bucket was before its first write of an hour, and what was worked out of that.
-- Positions begin at the time in microseconds: those of a table that was made again are larger.
CREATE  TABLE IF NOT EXISTS @schema@.diary (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pk text COLLATE "C" NOT NULL,
    image jsonb,
    at_ms bigint NOT NULL,
    gone boolean NOT NULL DEFAULT false
);
CREATE INDEX IF NOT EXISTS diary_of_bucket ON @schema@.diary (pk, position);
CREATE  TABLE IF NOT EXISTS @schema@.changes (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pk text COLLATE "C" NOT NULL,
    old jsonb,
    new jsonb NOT NULL,
    at_ms bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS changes_of_bucket ON @schema@.changes (pk);
SELECT setval(
    pg_get_serial_sequence('@schema@.changes', 'position'),
    greatest(
        nextval(pg_get_serial_sequence('@schema@.changes', 'position')),
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    )
);
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
RETURN @schema@.answer('{"version":1,"encoding":"' || current_setting('server_encoding')
    || '","channel":"@schema@_news","standby":' || pg_is_in_recovery()::text || '}');

-- Performs groups of writes, each group as a whole or not at all: {"w": milliseconds to wait for a lock,
-- "t": the time in milliseconds, "g": [[write]]}. A write has k (u, p, d, c: update, put, delete, check),
-- p and s (its key), x (whether the item must be there), c (a condition), v (an item, or what is set),
-- d (what is removed), a (what is added) and m (whether many depend on it).
-- It answers [held, image] for each write: a refused group's old images, an applied update's or check's new one;
-- and whether it has counted up the news itself.
CREATE OR REPLACE FUNCTION @schema@.write(batch text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = @schema@, pg_temp AS $$
DECLARE
    asked constant jsonb := batch::jsonb;
    now_ms constant bigint := (asked ->> 't')::bigint;
    this_hour constant integer := (now_ms / 3600000)::integer;
    several jsonb;
    w record;
    n integer;
    held boolean;
    all_held boolean;
    old jsonb;
    new jsonb;
    sums jsonb;
    marked integer;
    helds boolean[];
    olds jsonb[];
    news_ jsonb[];
    hours integer[];
    said text[] := '{}';
    of_group text[];
    told boolean := false;
    counted bigint;
BEGIN
    PERFORM set_config('lock_timeout', asked ->> 'w', true);
    PERFORM pg_advisory_xact_lock(lock) FROM (
        SELECT DISTINCT lock_of(one ->> 'p', one ->> 's') AS lock
        FROM jsonb_array_elements(asked -> 'g') AS one_group, jsonb_array_elements(one_group) AS one
        ORDER BY 1
    ) AS in_order;
    FOR several IN SELECT value FROM jsonb_array_elements(asked -> 'g') LOOP
        all_held := true;
        n := 0;
        FOR w IN SELECT * FROM jsonb_to_recordset(several)
            AS (k text, p text, s text, x boolean, c text, v jsonb, d text[], a jsonb, m boolean)
        LOOP
            n := n + 1;
            SELECT body, hour INTO old, marked FROM items WHERE pk = w.p AND sk = w.s;
            held := (w.x IS NULL OR w.x = (old IS NOT NULL))
                AND (w.c IS NULL OR coalesce(coalesce(old, '{}') @@ w.c::jsonpath, false));
            new := old;
            IF w.k = 'u' THEN
                new := coalesce(old, '{}');
                IF w.a IS NOT NULL AND held THEN
                    SELECT bool_and(sum IS NOT NULL), jsonb_object_agg(name, sum) INTO held, sums FROM (
                        SELECT name, CASE coalesce(jsonb_typeof(old -> name), 'none')
                            WHEN 'number' THEN (old -> name)::numeric + amount::numeric
                            WHEN 'none' THEN amount::numeric END AS sum
                        FROM jsonb_each(w.a) AS added(name, amount)
                    ) AS added;
                    new := new || sums;
                END IF;
                IF w.d IS NOT NULL THEN
                    new := new - w.d;
                END IF;
                IF w.v IS NOT NULL THEN
                    new := new || w.v;
                END IF;
            ELSIF w.k = 'p' THEN
                new := w.v;
            ELSIF w.k = 'd' THEN
                new := NULL;
            END IF;
            all_held := all_held AND held;
            helds[n] := held;
            olds[n] := old;
            news_[n] := new;
            hours[n] := marked;
        END LOOP;
        n := 0;
        of_group := '{}';
        FOR w IN SELECT * FROM jsonb_to_recordset(several) AS (k text, p text, s text, m boolean) LOOP
            n := n + 1;
            IF all_held AND w.k <> 'c' THEN
                PERFORM keep(w.p, w.s, olds[n], news_[n], hours[n], this_hour, now_ms);
                told := told OR coalesce(w.m, false);
            END IF;
            of_group := of_group || CASE
                WHEN NOT all_held THEN '[' || helds[n]::integer || ',' || coalesce(olds[n]::text, 'null') || ']'
                WHEN w.k IN ('u', 'c') THEN '[1,' || coalesce(news_[n]::text, 'null') || ']'
                ELSE '[1,null]' END;
        END LOOP;
        said := said || ('[' || array_to_string(of_group, ',') || ']');
    END LOOP;
    IF told THEN
        UPDATE news SET counter = counter + 1 RETURNING counter INTO counted;
        PERFORM pg_notify('@schema@_news', counted::text);
    END IF;
    RETURN '[' || round(extract(epoch FROM clock_timestamp()) * 1000, 3)::text || ','
        || (SELECT counter FROM news)::text || ',[' || array_to_string(said, ',') || '],' || told::text || ']';
END $$;

-- Puts the image that a write left in its place, and marks a bucket in the change log when that is due:
-- before its first write of an hour, when it is made, and when more than its numbers changes.
CREATE OR REPLACE FUNCTION @schema@.keep(
    pk_ text, sk_ text, old jsonb, new jsonb, marked integer, this_hour integer, now_ms bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF sk_ = '#STATE' THEN
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
            IF FOUND AND doomed.sk = '#STATE' AND NOT gone @> '{"status": "deleted"}' THEN
                INSERT INTO diary (pk, image, at_ms, gone) VALUES (doomed.pk, gone, now_ms, true);
            END IF;
        END IF;
    END LOOP;
    SELECT max(position) INTO newest FROM diary;
    FOR doomed IN SELECT DISTINCT pk FROM (
        SELECT pk FROM diary WHERE position <= newest - 200000 ORDER BY position LIMIT most
    ) AS oldest LOOP
        -- Who loses a mark is marked again by its next write, for it may have been the only one.
        IF pg_try_advisory_xact_lock(lock_of(doomed.pk, '#STATE')) THEN
            DELETE FROM diary WHERE pk = doomed.pk AND position <= newest - 200000;
            UPDATE items SET hour = NULL WHERE pk = doomed.pk AND sk = '#STATE';
        END IF;
    END LOOP;
    RETURN answer((seen = most)::text);
END $$;

-- What became of buckets between their marks, and of the last one until now.
CREATE OR REPLACE VIEW @schema@.became AS
SELECT position, pk, image, after, at_ms FROM (
    SELECT position, pk, image, at_ms, gone,
        CASE WHEN lead(position) OVER marks IS NOT NULL THEN lead(image) OVER marks
        ELSE (SELECT body FROM @schema@.items WHERE items.pk = diary.pk AND sk = '#STATE') END AS after
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
    buckets text[];
    more boolean := false;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM changes) THEN
        PERFORM set_config('lock_timeout', asked::jsonb ->> 'w', true);
        PERFORM pg_advisory_xact_lock(lock_of('', ''));
        IF NOT EXISTS (SELECT 1 FROM changes) THEN
            buckets := ARRAY(SELECT DISTINCT pk FROM (
                SELECT pk FROM diary ORDER BY position LIMIT 200) AS oldest);
            PERFORM pg_advisory_xact_lock(lock) FROM (
                SELECT DISTINCT lock_of(pk, '#STATE') AS lock FROM unnest(buckets) AS pk ORDER BY 1) AS in_order;
            INSERT INTO changes (pk, old, new, at_ms)
                SELECT pk, image, after, at_ms FROM became WHERE pk = ANY (buckets) ORDER BY position;
            DELETE FROM diary WHERE pk = ANY (buckets);
            UPDATE items SET hour = NULL WHERE pk = ANY (buckets) AND sk = '#STATE' AND hour IS NOT NULL;
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
REVOKE ALL ON FUNCTION @schema@.look() FROM PUBLIC;
REVOKE ALL ON FUNCTION @schema@.write(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION @schema@.read(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION @schema@.query(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION @schema@.tidy(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION @schema@.log_read(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION @schema@.log_waits(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION @schema@.log_trim(text) FROM PUBLIC;

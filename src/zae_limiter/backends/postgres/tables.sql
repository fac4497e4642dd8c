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
    gsi1pk text COLLATE "C" GENERATED ALWAYS AS (@place GSI1 PK@) STORED,
    gsi1sk text COLLATE "C" GENERATED ALWAYS AS (@place GSI1 SK@) STORED,
    gsi2pk text COLLATE "C" GENERATED ALWAYS AS (@place GSI2 PK@) STORED,
    gsi2sk text COLLATE "C" GENERATED ALWAYS AS (@place GSI2 SK@) STORED,
    gsi3pk text COLLATE "C" GENERATED ALWAYS AS (@place GSI3 PK@) STORED,
    gsi3sk text COLLATE "C" GENERATED ALWAYS AS (@place GSI3 SK@) STORED,
    gsi4pk text COLLATE "C" GENERATED ALWAYS AS (@place GSI4 PK@) STORED,
    gsi4sk text COLLATE "C" GENERATED ALWAYS AS (@place GSI4 SK@) STORED,
    ttl bigint GENERATED ALWAYS AS (
        CASE WHEN jsonb_typeof(body -> 'ttl') = 'number' AND abs((body -> 'ttl')::numeric) < 9e18
        THEN (body -> 'ttl')::bigint END
    ) STORED,
    PRIMARY KEY (pk, sk)
) @items@;
@partitions@

-- How often a record was changed on which many depend. One row.
CREATE TABLE IF NOT EXISTS @schema@.news (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    counter bigint NOT NULL
) WITH (fillfactor = 50);
INSERT INTO @schema@.news (counter) VALUES (1) ON CONFLICT DO NOTHING;

-- The change log: what a bucket was before its first write of an hour, and what was worked out of that.
CREATE @unlogged@ TABLE IF NOT EXISTS @schema@.diary (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pk text COLLATE "C" NOT NULL,
    image jsonb,
    at_ms bigint NOT NULL,
    gone boolean NOT NULL DEFAULT false
);
CREATE @unlogged@ TABLE IF NOT EXISTS @schema@.changes (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pk text COLLATE "C" NOT NULL,
    old jsonb,
    new jsonb NOT NULL,
    at_ms bigint NOT NULL
);

-- `CREATE INDEX IF NOT EXISTS` locks out who writes before it looks. Clients are at work while a store is renewed.
DO $$ DECLARE
    missing record;
BEGIN
    FOR missing IN SELECT name, place FROM (VALUES
        ('items_gsi1', 'items (gsi1pk, gsi1sk, pk, sk) WHERE gsi1pk IS NOT NULL'),
        ('items_gsi2', 'items (gsi2pk, gsi2sk, pk, sk) WHERE gsi2pk IS NOT NULL'),
        ('items_gsi3', 'items (gsi3pk, gsi3sk, pk, sk) WHERE gsi3pk IS NOT NULL'),
        ('items_gsi4', 'items (gsi4pk, gsi4sk, pk, sk) WHERE gsi4pk IS NOT NULL'),
        ('items_ttl', 'items (ttl) WHERE ttl IS NOT NULL'),
        ('diary_of_bucket', 'diary (pk, position)'),
        ('changes_of_bucket', 'changes (pk)')
    ) AS indexes (name, place) WHERE to_regclass('@schema@.' || name) IS NULL LOOP
        EXECUTE format('CREATE INDEX IF NOT EXISTS %s ON @schema@.%s', missing.name, missing.place);
    END LOOP;
END $$;

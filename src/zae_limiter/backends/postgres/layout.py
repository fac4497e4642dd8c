"""Tables and functions of a store as statements: to make them, to renew them, to let somebody use them.

The text of both is in the ``.sql`` files beside this one. Whoever owns the schema runs them; clients only
ever call functions, which run as their owner with a pinned search path, so they need no right on any table.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from ...exceptions import ValidationError
from ...schema import sk_state
from ..change_log import HOUR_MS

LAYOUT_VERSION = 3
"""Counts up with every change of tables or functions."""

SCHEMA = "zae_limiter"
SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,49}")
MARKS_MAX = 200_000
"""How many marks are kept for a reader who does not come; then the oldest go."""
MARKS_AT_ONCE = 200
"""The buckets of so many marks are worked out in one transaction, so that nobody waits long for it."""

CALLED = "look() write(text) read(text) query(text) tidy(text) log_read(text) log_waits(text) log_trim(text)"

STORAGE = (
    "fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, "
    "autovacuum_vacuum_cost_delay = 0"
)
_PARTITIONS = """
CREATE UNLOGGED TABLE IF NOT EXISTS @schema@.buckets PARTITION OF @schema@.items FOR VALUES IN ('@state@')
    WITH (@storage@);
CREATE TABLE IF NOT EXISTS @schema@.records PARTITION OF @schema@.items DEFAULT;
"""
_PLACE = (
    "CASE WHEN jsonb_typeof(body -> '{0}PK') = 'string' AND jsonb_typeof(body -> '{0}SK') = 'string' "
    "THEN body ->> '{0}{1}' END"
)


def check_schema(name: str) -> str:
    """A schema's name that needs no quotes, and leaves room for a channel named after it."""
    if not SCHEMA_NAME.fullmatch(name):
        raise ValidationError("schema", name, "use up to 50 small letters, digits and '_', no digit first")
    return name


def channel_of(schema: str) -> str:
    """Where changes are told that concern many."""
    return f"{schema}_news"


def create_sql(schema: str, *, unlogged: bool = False) -> str:
    """Everything a store is made of, as far as it is missing; functions become those of this version.

    With ``unlogged`` a crash of the server empties all buckets and the change log, and nothing else.
    """
    given = {
        "items": "PARTITION BY LIST (sk)" if unlogged else f"WITH ({STORAGE})",
        "partitions": _PARTITIONS if unlogged else "",
        "unlogged": "UNLOGGED" if unlogged else "",
    }
    return _filled("tables.sql", schema, given) + functions_sql(schema)


def functions_sql(schema: str) -> str:
    revoked = "".join(f"REVOKE ALL ON FUNCTION {schema}.{name} FROM PUBLIC;\n" for name in CALLED.split())
    return _filled("functions.sql", schema, {}) + revoked


def grants_sql(schema: str, role: str) -> str:
    """What lets a role use a store, and do nothing else with it."""
    quoted = '"' + role.replace('"', '""') + '"'
    called = "".join(f"GRANT EXECUTE ON FUNCTION {schema}.{name} TO {quoted};\n" for name in CALLED.split())
    return f"GRANT USAGE ON SCHEMA {schema} TO {quoted};\n{called}"


def drop_sql(schema: str) -> str:
    return f"DROP SCHEMA {schema} CASCADE"


def _filled(name: str, schema: str, given: dict[str, str]) -> str:
    text = files(__package__).joinpath(name).read_text("utf-8")
    seed = int.from_bytes(hashlib.sha256(schema.encode()).digest()[:8], signed=True)
    given = given | {
        "schema": check_schema(schema),
        "channel": channel_of(schema),
        "state": sk_state(),
        "storage": STORAGE,
        "seed": str(seed),
        "version": str(LAYOUT_VERSION),
        "hour_ms": str(HOUR_MS),
        "marks_max": str(MARKS_MAX),
        "marks_at_once": str(MARKS_AT_ONCE),
    }
    text = re.sub(r"@place (\w+) (\w+)@", lambda found: _PLACE.format(*found.groups()), text)
    for _ in range(2):  # what is put in may have names in it
        text = re.sub(r"@(\w+)@", lambda found: given[found[1]], text)
    return text

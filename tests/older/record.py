"""Records what older releases leave in a table: ``python -m tests.older.record``, after ``make engines``."""

import json
import secrets

from tests.engines import dynamodb_local
from tests.older.releases import RECORDED, VERSIONS, ask, rows_of


def record(version: str) -> None:
    table = f"recorded-{secrets.token_hex(4)}"
    ask(version, table, "fill")
    rows = [{"key": list(key), **item} for key, item in sorted(rows_of(table).items())]
    lines = [json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows]
    (RECORDED / f"{version}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    dynamodb_local.isolate_from_aws()
    RECORDED.mkdir(exist_ok=True)
    for version in VERSIONS:
        record(version)

"""Records what older releases leave in a table: ``python -m tests.older.record [NAME…]``.

Run ``make engines`` before. Without a name all are recorded.
"""

import json
import secrets
import sys

from tests.engines import dynamodb_local
from tests.older.releases import PROGRAMS, RECORDED, RECORDINGS, ask, rows_of


def record(name: str) -> None:
    table = f"recorded-{secrets.token_hex(4)}"
    ask(name.partition("-")[0], table, "fill", program=PROGRAMS[name])
    rows = [{"key": list(key), **item} for key, item in sorted(rows_of(table).items())]
    lines = [json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows]
    (RECORDED / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    dynamodb_local.isolate_from_aws()
    RECORDED.mkdir(exist_ok=True)
    for name in sys.argv[1:] or RECORDINGS:
        record(name)

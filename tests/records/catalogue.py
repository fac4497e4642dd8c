"""The table of records for the documentation, made by the code that writes the records.

Each row is a sample record with placeholders for its names. ``python -m tests.records.catalogue
FILE`` puts the table between the marks of a file; without a file it goes to standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from zae_limiter.engine.account import Account, Meter, Terms
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.posting import Posting
from zae_limiter.engine.seats import place_attributes
from zae_limiter.models import (
    AuditAction,
    AuditEvent,
    Entity,
    Limit,
    LimiterConfig,
    Namespace,
    OnUnavailable,
    UsageWindow,
    VersionRecord,
)
from zae_limiter.records.estimates import CallKind
from zae_limiter.records.items import (
    USAGE_PASSED,
    audit_item,
    claim_item,
    config_item,
    entity_item,
    namespace_item,
    usage_counter,
    usage_row,
    version_item,
)
from zae_limiter.records.leases import LeaseRow, lease_item, lease_key
from zae_limiter.records.once import OnceRequest, once_item
from zae_limiter.records.providers import ProviderRecord, provider_item, provider_key
from zae_limiter.records.reports import ProcessReport, report_item, report_key
from zae_limiter.repository_protocol import Item, Key, Put
from zae_limiter.schema import (
    BOOKED,
    BOOKED_SINCE,
    FORGIVEN,
    HOLDS,
    INDEXES,
    LIFE,
    audit_key,
    booking_attributes,
    bucket_key,
    claim_key,
    entity_config_key,
    entity_configs_key,
    entity_key,
    gsi3_pk_entity_config,
    namespace_key,
    nsid_key,
    once_key,
    resource_config_key,
    system_config_key,
    version_key,
    within_namespace,
)

NS, ID, RES, PARENT = "{ns}", "{id}", "{resource}", "{parent}"
LIMIT = Limit("LIMIT", 1, 1, 1)
START, END = "<!-- records: made by python -m tests.records.catalogue -->", "<!-- end of records -->"


class Sample(NamedTuple):
    """One kind of record, with placeholders for names."""

    kind: str
    key: Key
    item: Item


def samples() -> list[Sample]:
    """Every kind of record as it is written."""
    config = LimiterConfig((LIMIT,), OnUnavailable.BLOCK, config_version=1, cascade=True)
    system = LimiterConfig((LIMIT,), OnUnavailable.BLOCK, True, True, 1, cascade=True)
    own = {"GSI3PK": gsi3_pk_entity_config(NS, RES), "GSI3SK": ID}
    event = AuditEvent("{ulid}", "", AuditAction.LIMITS_SET, ID, "", RES)
    usage, row = usage_row(NS, ID, RES, UsageWindow.HOURLY, 0)
    passed: Item = {USAGE_PASSED: {}}
    space = namespace_item(Namespace("{name}", NS, created_at="", deleted_at=""))
    levels: tuple[tuple[str, Key, LimiterConfig, Item], ...] = (
        ("system config", system_config_key(NS), system, {}),
        ("resource config", resource_config_key(NS, RES), config, {"resource": RES}),
        ("entity config", entity_config_key(NS, ID, RES), config, {"resource": RES, **own}),
    )
    count_key, claim = entity_configs_key(NS, RES), claim_key(NS, "entity", ID, RES)
    return [
        Sample("entity", entity_key(NS, ID), _entity()),
        Sample("bucket shard", *_bucket()),
        *(
            Sample(kind, key, {**config_item(said), "born": "", **beside, **within_namespace(NS, key)})
            for kind, key, said, beside in levels
        ),
        Sample("usage", usage, {**row, usage_counter("{limit}"): 1, "total_events": 1, "ttl": 1, **passed}),
        Sample("audit event", audit_key(NS, ID, "{ulid}"), audit_item(NS, event, 1)),
        Sample(
            "entities with limits of their own",
            count_key,
            {"entities": 1, "resource": RES, **within_namespace(NS, count_key)},
        ),
        Sample("estimate", *_estimate()),
        Sample("report", *_report()),
        Sample("lease", *_lease()),
        Sample("claim", claim, {**claim_item(NS, claim, "entity", ID, RES), "born": ""}),
        Sample("provider", provider_key(NS, ID, RES), _provider()),
        Sample("key of a verb", once_key(NS, "{key}"), once_item(NS, OnceRequest("", {}, "{key}"), {}, 1)),
        Sample("namespace by name", namespace_key("{name}"), space),
        Sample("namespace by id", nsid_key(NS), space),
        Sample("version", version_key(), version_item(VersionRecord("", "", "", "", ""))),
    ]


def table() -> str:
    """The records in the syntax of the documentation."""
    lines = ["| record | PK | SK | attributes | indexes |", "|---|---|---|---|---|"]
    for kind, key, item in samples():
        places = [
            f"{index}: `{_plain(item[f'{index}PK'])}` · `{_plain(item[f'{index}SK'])}`"
            for index in INDEXES
            if item.get(f"{index}PK") is not None
        ]
        own = [_plain(name) for name, value in item.items() if value is not None and name[:3] != "GSI"]
        row = (kind, f"`{_plain(key.partition)}`", f"`{_plain(key.sort)}`", f"`{', '.join(own)}`")
        lines.append(f"| {' | '.join((*row, '<br>'.join(places)))} |")
    return "\n".join(lines)


def renewed(text: str) -> str:
    """A document with the table as it is now between its marks."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the document has no lines {START!r} and {END!r}")
    return f"{before}{START}\n{table()}\n{END}{after}"


def _entity() -> Item:
    return {**entity_item(NS, Entity(ID, "", PARENT, True, {}, "")), "children": 1}


def _lease() -> tuple[Key, Item]:
    row = LeaseRow(lease_id="{lease}", owner="", said="", began_ms=0, expires_ms=0)
    entries = {"GSI2PK": f"{NS}/LEASES#{{place}}", "GSI2SK": "{due_ms}"}
    return lease_key(NS, "{lease}"), {**lease_item(NS, row), "ended_ms": 0, **entries}


def _provider() -> Item:
    said = ProviderRecord("")._asdict()
    return provider_item(NS, provider_key(NS, ID, RES), said, 1)


def _bucket() -> tuple[Key, Item]:
    key = bucket_key(NS, ID, RES, 0)
    account = Account(key, NS, ID, RES, Terms.of([LIMIT], 1, 7), PARENT, True, Meter.LIMIT)
    write = write_for(account, Posting(need={LIMIT.name: LIMIT.capacity_milli}, hold=1), None, 0)
    assert isinstance(write, Put), "a bucket that is not there is put there"
    item = {"hold_{place}" if name in HOLDS else name: value for name, value in write.item.items()}
    item[FORGIVEN] = {}  # which a bucket gets only when callers disagree
    item |= dict.fromkeys((BOOKED, BOOKED_SINCE, *booking_attributes(LIMIT.name)), 0)  # while somebody waits
    item[f"{place_attributes(LIMIT.name)[0][:-1]}{{place}}"] = 0  # of a limit of concurrency
    item[LIFE] = ""  # which it gets only when its entity was deleted before
    return Key(key.partition.removesuffix("0") + "{shard}", key.sort), item


def _estimate() -> tuple[Key, Item]:
    row, besides = CallKind("", 1, 900).row(NS, 0)
    partition = row.key.partition.rpartition("#")[0]
    return Key(f"{partition}#{{place}}", "#ESTIMATE#{since}"), {
        **besides,
        "n{bin}": 1,
        "GSI4SK": f"{partition}#{{place}}",
    }


def _report() -> tuple[Key, Item]:
    key = Key(report_key(NS, 0).partition, "#REPORT#{place}")
    return key, report_item(NS, 0, ProcessReport("", "", 0, 0, 0, 0, 0, 0))


def _plain(value: object) -> str:
    """Placeholders where the sample had to use a name, a number or an instant."""
    text = str(value).replace(LIMIT.name, "{limit}").replace("1970-01-01T00:00:00Z", "{window_key}")
    text = text.replace("#hourly#", "#{window}#")
    return text.removesuffix("#0") + "#{shard}" if text.endswith("#0") else text


def main(arguments: Sequence[str]) -> None:
    if not arguments:
        sys.stdout.write(f"{table()}\n")
        return
    document = Path(arguments[0])
    document.write_text(renewed(document.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The contract as a table: every public name with its signature, made from the code itself.

``python -m tests.contract.contract`` writes ``docs/contract.md`` anew. The test compares the two, so that no
name vanishes and no signature changes unless somebody looks at the difference.
"""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import zae_limiter
from zae_limiter.acquisition import Acquisition
from zae_limiter.joint import JointAcquisition
from zae_limiter.sync_lease import SyncAcquisition

PAGE = Path(__file__).resolve().parents[2] / "docs" / "contract.md"

CLASSES = (
    *("RateLimiter", "SyncRateLimiter", "Lease", "SyncLease", "JointLease", "SyncJointLease"),
    *("Repository", "SyncRepository", "RepositoryBuilder", "SyncRepositoryBuilder"),
    *("StackManager", "SyncStackManager"),
)
INTERNAL = {
    *("colour", "writer", "plan", "renewed", "notice_changes", "plans"),
    *("is_moved", "is_moved_by_now", "moved", "notice_families"),
    *("policy_when_down", "check_switches_when_down"),
}
"""Public by spelling, for the package's own modules."""

MODULES = {
    "zae_limiter.bucket": (
        "refill_bucket try_consume force_consume calculate_retry_after calculate_time_until_available"
        " calculate_available build_limit_status would_refill_satisfy"
    ),
    "zae_limiter.schema": (
        "pk_system pk_resource pk_entity pk_bucket pk_audit sk_meta sk_state sk_config sk_usage sk_audit"
        " sk_version sk_namespace sk_nsid gsi1_pk_parent gsi1_sk_child gsi2_pk_resource gsi2_sk_bucket"
        " gsi3_pk_entity gsi3_sk_bucket gsi3_pk_entity_config parse_bucket_pk"
    ),
    "zae_limiter.naming": (
        "validate_entity_id validate_resource validate_limit_name validate_stack_name validate_namespace"
    ),
    "zae_limiter.version": "check_compatibility parse_version",
    "zae_limiter.config_cache": "ConfigCache",
    "zae_limiter.infra.discovery": "list_deployed",
    "zae_limiter_aggregator.handler": "handler",
    "zae_limiter_aggregator.processor": (
        "aggregate_bucket_states try_refill_bucket try_proactive_shard propagate_shard_count extract_deltas"
        " update_snapshot process_stream_records"
    ),
}
"""The functions of modules that are part of the contract."""

VARIABLES = (
    ("`ZAEL_NAMESPACE`", "the namespace, unless one is named"),
    ("`ZAEL_STACK`", "the DynamoDB table, unless a store or a stack is named"),
    ("`ZAE_LIMITER_STORE`", "the URL of the store, unless one is named; before `ZAEL_STACK`"),
)


def signature_of(value: Any) -> str:
    """A signature in one line, without the modules of its types."""
    try:
        text = str(inspect.signature(value))
    except ValueError:
        return "(…)"
    text = re.sub(r"<(?:_Unset\.)?UNSET: 'unset'>|<_Unset\.UNSET: 'unset'>", "UNSET", text)
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    text = re.sub(r"<[A-Za-z]+\.([A-Z_]+): [^>]*>", r"\1", text)
    text = re.sub(r"<(?:function|bound method) [^=]*? at 0x[0-9a-f]+>+", "…", text)
    return text.replace("'", "").replace("|", "\\|")


def members_of(owner: type) -> Iterator[tuple[str, str]]:
    """The public members of a class with what a caller writes, in the order of their names."""
    for name in sorted(dir(owner)):
        if name.startswith("_") or name in INTERNAL:
            continue
        value = inspect.getattr_static(owner, name)
        found = getattr(owner, name)
        if isinstance(value, property):
            returned = inspect.signature(value.fget).return_annotation if value.fget else ""
            yield (
                name,
                f"property: {signature_of(value.fget).rpartition('-> ')[2]}" if returned else "property",
            )
        elif inspect.iscoroutinefunction(found):
            yield name, f"async {signature_of(found)}"
        elif callable(found):
            yield name, signature_of(found)
        elif type(value).__name__ == "_Option":
            yield name, "(value) -> the builder"
        elif type(value).__name__ == "member_descriptor" or isinstance(value, bool):
            yield name, "attribute"


def options_of(owner: type) -> Iterator[tuple[str, str]]:
    """The options of a builder, which are methods of an instance."""
    for name in sorted(vars(owner.__mro__[1])):
        if not name.startswith("_") and type(vars(owner.__mro__[1])[name]).__name__ == "_Option":
            yield name, "(value) -> the builder"


def rows_of(name: str) -> Iterator[tuple[str, str]]:
    owner = getattr(zae_limiter, name)
    if "Builder" in name:
        yield from options_of(owner)
        yield "build", f"{'' if name.startswith('Sync') else 'async '}{signature_of(owner.build)}"
        return
    yield from members_of(owner)


def model_row(name: str) -> str:
    value = getattr(zae_limiter, name)
    if inspect.isfunction(value):
        return signature_of(value)
    if not inspect.isclass(value):
        return "text"
    if issubclass(value, Enum):
        return ", ".join(str(member.value) for member in value)
    parts = [] if issubclass(value, BaseException) else [signature_of(value).removesuffix(" -> None")]
    if issubclass(value, BaseException):
        parts.append(" < ".join(kind.__name__ for kind in value.__mro__ if issubclass(kind, Exception))[:90])
        parts.append(signature_of(value.__init__).removesuffix(" -> None"))
    also = [member for member, _ in members_of(value) if member not in getattr(value, "__slots__", ())]
    if issubclass(value, BaseException):
        also = [member for member in also if member not in dir(Exception)]
    return "; ".join([*parts, *([f"also {', '.join(also)}"] if also else [])])


def page() -> str:
    """The whole table."""
    lines = [
        "# The contract",
        "",
        "Every public name with its signature, made from the code by `python -m tests.contract.contract`.",
        "A test compares this page with the code, so a name that vanishes or changes is seen. What",
        "differs from the established package on purpose is in [migrating](migrating.md).",
    ]
    for name in CLASSES:
        lines += ["", f"## {name}", "", "| name | how it is called |", "|---|---|"]
        lines += [f"| `{member}` | `{how}` |" for member, how in rows_of(name)]
    lines += ["", "## What acquire returns", "", "| name | how it is called |", "|---|---|"]
    for kind in (Acquisition, JointAcquisition, SyncAcquisition):
        is_async = "async " if inspect.iscoroutinefunction(kind.open) else ""
        lines.append(f"| `{kind.__name__}.open` | `{is_async}{signature_of(kind.open)}` |")
    lines += ["", "## Models, errors and other names", "", "| name | what it is made of |", "|---|---|"]
    rest = [name for name in zae_limiter.__all__ if name not in CLASSES and name != "__version__"]
    lines += [f"| `{name}` | `{model_row(name)}` |" for name in rest]
    lines += ["", "## Functions of modules", "", "| name | how it is called |", "|---|---|"]
    for module, names in MODULES.items():
        lines += [
            f"| `{module}.{name}` | `{signature_of(getattr(import_module(module), name))}` |"
            for name in names.split()
        ]
    lines += ["", "## Environment", "", "| variable | meaning |", "|---|---|"]
    lines += [f"| {variable} | {meaning} |" for variable, meaning in VARIABLES]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

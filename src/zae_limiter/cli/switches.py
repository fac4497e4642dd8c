"""``zae-limiter disable``, ``enable``, ``bypass`` and ``switches``: what is off, or past its limits."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal

from ..models import Bypass, LimiterConfig
from ..models.switches import ThrownSwitch
from ..records.belongings import has_belongings
from ..records.switching import switches_of
from ..runtime.colour import run_sync
from .nouns import option, together, verb
from .output import grid
from .session import (
    Session,
    confirmed,
    cursor_option,
    limit_option,
    make_sure,
    principal,
    with_existing,
    with_session,
)

_place = together(
    option("--entity --entity-id -e entity_id", "The entity; without it, everybody.", metavar="ID"),
    option("--resource -r", "The resource; without it, all of them.", metavar="NAME"),
)


@verb("disable", _place, confirmed, principal, with_session, meant="--resource --entity")
@option("--reason", "Why, in a few words; whoever is refused is told.", metavar="TEXT", required=True)
def disable(session: Session, reason: str, yes: bool, principal: str | None, **place: Any) -> None:
    """Refuse every acquire of an entity, on a resource, or of an entity on a resource.

    Without --entity and --resource everything is off. Nothing is taken, and limits stay as they are.
    """
    if not any(place.values()):
        make_sure(yes, "Disable everything?")
    remark_unknown(session, **place)
    session.repository.disable(**place, reason=reason, principal=principal)
    session.output.done(_data(session, place), f"disabled {_told(place)}: {reason}")
    _remark_delay(session, place["entity_id"])


@verb("enable", _place, principal, with_existing, meant="--resource --entity")
@option("--overrule", "On in any case, also where a broader level is off.", is_flag=True)
def enable(session: Session, overrule: bool, principal: str | None, **place: Any) -> None:
    """Take a switch away that disable or bypass has set; the very same one.

    Broader levels decide from then on; --overrule makes it go by its limits whatever they say.
    """
    changed = session.repository.enable(**place, overrule=overrule, principal=principal)
    session.output.done(
        _data(session, place), f"enabled {_told(place)}" if changed else f"{_told(place)} has no switch"
    )
    entity_id, resource = place["entity_id"], place["resource"]
    if entity_id is None or resource is None:
        return
    for bucket in session.repository.explain(entity_id, resource).buckets:
        if bucket.switch is not None and bucket.switch.disabled:
            where = f"it is still disabled for {bucket.entity_id!r} at the level {str(bucket.switch.level)!r}"
            session.output.remark(f"{where}; see: zae-limiter explain {entity_id} {resource}")


@verb("bypass", _place, confirmed, principal, with_session, meant="--resource --entity")
@option("--counted/--uncounted", "Charge what it uses all the same, or write nothing.", default=True)
def bypass(session: Session, counted: bool, yes: bool, principal: str | None, **place: Any) -> None:
    """Let every acquire pass, whatever the limits say.

    It is charged all the same, into debt; --uncounted writes nothing at all.
    """
    if not any(place.values()):
        make_sure(yes, "Let everything pass?")
    remark_unknown(session, **place)
    session.repository.bypass(**place, counted=counted, principal=principal)
    how = Bypass.COUNTED if counted else Bypass.UNCOUNTED
    session.output.done(_data(session, place), f"{_told(place)} goes past its limits, {how}")
    _remark_delay(session, place["entity_id"])


@verb("switches", limit_option, cursor_option, with_existing)
def switches(session: Session, limit: int, cursor: str | None) -> None:
    """List all switches: what is off, past its limits, or on in any case.

    Everything's comes first, then those of resources, then those of entities.
    """
    found, after = session.repository.list_switches(limit, cursor)
    rows = []
    for one in found:
        of = _told({"entity_id": one.entity_id, "resource": one.resource})
        since = None if one.since is None else f"{one.since[:19]}Z"
        rows.append((of, switch_text(one.disabled, one.bypass), since, one.by))
    session.output.show(
        {"switches": found, "cursor": after}, lambda: grid(["of", "switch", "since", "by"], rows)
    )
    if after is not None:
        session.output.remark(f"there are more: --cursor {after}")


def switches_of_entities(session: Session, entity_ids: Collection[str]) -> dict[str, list[ThrownSwitch]]:
    """The switches of some entities, by entity; those that have none are left out."""
    found: dict[str, list[ThrownSwitch]] = {}
    for one in run_sync(switches_of(session.repository._async._scope, entity_ids)):
        found.setdefault(str(one.entity_id), []).append(one)
    return found


def switches_text(thrown: Iterable[ThrownSwitch]) -> str:
    """The switches of one entity in a few words."""
    each = ((switch_text(one.disabled, one.bypass), one.resource) for one in thrown)
    return "; ".join(said if resource is None else f"on {resource}: {said}" for said, resource in each)


def switch_text(disabled: str | Literal[False] | None, bypass: Bypass | None) -> str:
    """A switch in a few words; empty if there is none."""
    if disabled is None:
        return "" if bypass is None else f"bypass {bypass}"
    return f"off: {disabled}" if disabled else "on"


def remark_unknown(session: Session, entity_id: str | None, resource: str | None) -> None:
    """Say that a name is new, which may be mistyped; entities and resources need not be recorded."""
    repository = session.repository
    unrecorded = entity_id is not None and repository.get_entity(entity_id) is None
    if unrecorded and not run_sync(has_belongings(repository._async._scope, str(entity_id))):
        session.output.remark(f"entity {entity_id!r} has no record, no limits and no buckets yet")
    if resource is None:
        return
    known = {*repository.list_resources_with_defaults(), *repository.list_resources_with_entity_configs()}
    if resource not in known:
        session.output.remark(
            f"resource {resource!r} has no limits of its own; see: zae-limiter resource list"
        )


def _remark_delay(session: Session, entity_id: str | None) -> None:
    """Say when others follow, unless it is at their next acquire, as it is with switches of entities."""
    if entity_id is None and not session.connection.tells_changes:
        seconds = session.connection.options.config_cache_ttl_seconds
        session.output.remark(f"other processes follow within {seconds:g} s, or their own config_cache_ttl")


def _told(place: dict[str, str | None]) -> str:
    entity_id, resource = place["entity_id"], place["resource"]
    if entity_id is None:
        return "everything" if resource is None else f"resource {resource!r}"
    return f"{entity_id!r}{'' if resource is None else f' on {resource!r}'}"


def _data(session: Session, place: dict[str, str | None]) -> dict[str, Any]:
    """What is stored now where a switch was thrown."""
    entity_id, resource = place["entity_id"], place["resource"]
    level = "entity" if entity_id is not None else "system" if resource is None else "resource"
    said = session.repository.get_config(level, entity_id, resource) or LimiterConfig()
    return {**place, "disabled": said.disabled, "bypass": said.bypass}

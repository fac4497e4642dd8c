"""``zae-limiter namespace``: tenants that share a store and never see each other.

These commands look at the registry of the store, so none of them needs a namespace to work in.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table

from ..models import Namespace
from .errors import NOT_FOUND, Failure
from .nouns import Noun
from .output import grid, record
from .session import Session, confirmed, make_sure, with_existing, with_session


@click.group(cls=Noun)
def namespace() -> None:
    """Tenants that share a store."""


@namespace.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@with_session
def register(session: Session, names: tuple[str, ...]) -> None:
    """Make namespaces. Those that exist stay as they are."""
    made = [one.namespace for one in session.namespaces.register_namespaces(names).values()]
    session.output.show(made, lambda: _table(made))


@namespace.command("list")
@with_existing
def list_(session: Session) -> None:
    """List the namespaces that are in use."""
    found = session.namespaces.list_namespaces()
    session.output.show(found, lambda: _table(found))


@namespace.command()
@click.argument("name")
@with_existing
def show(session: Session, name: str) -> None:
    """Show one namespace."""
    found = session.namespaces.get_namespace(name)
    if found is None:
        raise session.no_namespace(name)
    session.output.show(
        found,
        lambda: record(
            {
                "name": found.namespace_name,
                "id": found.namespace_id,
                "status": found.status,
                "created": found.created_at,
            }
        ),
    )


@namespace.command()
@click.argument("name")
@confirmed
@with_existing
def delete(session: Session, name: str, yes: bool) -> None:
    """Free a name. The data stays until it is recovered or purged."""
    if session.namespaces.get_namespace(name) is None:
        raise session.no_namespace(name)
    make_sure(yes, f"Delete namespace {name!r}? Its data can be recovered until it is purged.")
    gone = session.namespaces.delete_namespace(name)
    if gone is None:  # somebody else was faster
        raise session.no_namespace(name)
    session.output.done(
        gone,
        f"freed the name {name!r}; this brings it back: zae-limiter namespace recover -- {gone.namespace_id}",
    )


@namespace.command()
@click.argument("namespace_id")
@with_existing
def recover(session: Session, namespace_id: str) -> None:
    """Give a deleted namespace its name back.

    An id that begins with a dash is written after two dashes: recover -- -x3b...
    """
    back = session.namespaces.recover_namespace(namespace_id).namespace
    session.output.done(back, f"recovered namespace {back.namespace_name!r}")


@namespace.command()
@with_existing
def orphans(session: Session) -> None:
    """List what was deleted and is not purged."""
    found = session.namespaces.list_orphan_namespaces()
    session.output.show(found, lambda: _table(found))


@namespace.command()
@click.argument("namespace_id")
@confirmed
@with_existing
def purge(session: Session, namespace_id: str, yes: bool) -> None:
    """Delete all data of a deleted namespace for good.

    An id that begins with a dash is written after two dashes: purge -- -x3b...
    """
    name = _deleted_name(session, namespace_id)
    make_sure(yes, f"Delete all data of namespace {name!r} ({namespace_id}) for good?")
    items = session.namespaces.purge_namespace(namespace_id)
    session.output.done(
        {"namespace_id": namespace_id, "items": items},
        f"purged namespace {name!r} ({namespace_id}): {items} items are gone",
    )


def _deleted_name(session: Session, namespace_id: str) -> str:
    """What a namespace was called; whoever means one that is in use or not there is not even asked."""
    for one in session.namespaces.list_orphan_namespaces():
        if one.namespace_id == namespace_id:
            return one.namespace_name
    for one in session.namespaces.list_namespaces():
        if one.namespace_id == namespace_id:
            delete_it = f"zae-limiter namespace delete {one.namespace_name}"
            raise Failure(f"namespace {one.namespace_name!r} is in use; delete it first", delete_it)
    orphans = "zae-limiter namespace orphans"
    raise Failure(f"no deleted namespace has the id {namespace_id!r}", orphans, NOT_FOUND)


def _table(namespaces: Sequence[Namespace]) -> Table:
    return grid(
        ["name", "id", "status", "created", "deleted"],
        [(n.namespace_name, n.namespace_id, n.status, n.created_at, n.deleted_at) for n in namespaces],
    )

"""``zae-limiter namespace``: tenants that share a store and never see each other.

These commands look at the registry of the store, so none of them needs a namespace to work in.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..models import Namespace
from .errors import NOT_FOUND, Failure
from .nouns import Noun
from .output import grid, record
from .session import Session, confirmed, make_sure, with_existing, with_session

namespace: Noun = Noun("namespace", help="Tenants that share a store.")


def _show(session: Session, found: Sequence[Namespace]) -> None:
    rows = [(n.namespace_name, n.namespace_id, n.status, n.created_at, n.deleted_at) for n in found]
    session.output.show(found, lambda: grid(["name", "id", "status", "created", "deleted"], rows))


@namespace.verb("register", click.argument("names", nargs=-1, required=True, metavar="NAME..."), with_session)
def register(session: Session, names: tuple[str, ...]) -> None:
    """Make namespaces. Those that exist stay as they are."""
    _show(session, [one.namespace for one in session.namespaces.register_namespaces(names).values()])


@namespace.verb("list", with_existing)
def list_(session: Session) -> None:
    """List the namespaces that are in use."""
    _show(session, session.namespaces.list_namespaces())


@namespace.verb("show", click.argument("name"), with_existing)
def show(session: Session, name: str) -> None:
    """Show one namespace."""
    found = session.namespaces.get_namespace(name)
    if found is None:
        raise session.no_namespace(name)
    about = (found.namespace_name, found.namespace_id, found.status, found.created_at)
    fields = dict(zip(("name", "id", "status", "created"), about, strict=True))
    session.output.show(found, lambda: record(fields))


@namespace.verb("delete", click.argument("name"), confirmed, with_existing)
def delete(session: Session, name: str, yes: bool) -> None:
    """Free a name. The data stays until it is recovered or purged."""
    if session.namespaces.get_namespace(name) is None:
        raise session.no_namespace(name)
    make_sure(yes, f"Delete namespace {name!r}? Its data can be recovered until it is purged.")
    gone = session.namespaces.delete_namespace(name)
    if gone is None:  # somebody else was faster
        raise session.no_namespace(name)
    recover = f"zae-limiter namespace recover -- {gone.namespace_id}"
    session.output.done(gone, f"freed the name {name!r}; this brings it back: {recover}")


@namespace.verb("recover", click.argument("namespace_id"), with_existing)
def recover(session: Session, namespace_id: str) -> None:
    """Give a deleted namespace its name back.

    An id that begins with a dash is written after two dashes: recover -- -x3b...
    """
    back = session.namespaces.recover_namespace(namespace_id).namespace
    session.output.done(back, f"recovered namespace {back.namespace_name!r}")


@namespace.verb("orphans", with_existing)
def orphans(session: Session) -> None:
    """List what was deleted and is not purged."""
    _show(session, session.namespaces.list_orphan_namespaces())


@namespace.verb("purge", click.argument("namespace_id"), confirmed, with_existing)
def purge(session: Session, namespace_id: str, yes: bool) -> None:
    """Delete all data of a deleted namespace for good.

    An id that begins with a dash is written after two dashes: purge -- -x3b...
    """
    what = f"namespace {_deleted_name(session, namespace_id)!r} ({namespace_id})"
    make_sure(yes, f"Delete all data of {what} for good?")
    items = session.namespaces.purge_namespace(namespace_id)
    session.output.done(
        {"namespace_id": namespace_id, "items": items}, f"purged {what}: {items} items are gone"
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

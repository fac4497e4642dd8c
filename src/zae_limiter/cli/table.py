"""``zae-limiter table``: a DynamoDB table alone, where no stack can be deployed or none is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from ..backends import open_backend
from ..exceptions import InfrastructureNotFoundError, without_secrets
from ..naming import validate_namespace
from ..records.connection import Connection, Options
from ..repository import Repository
from ..runtime.colour import run_sync
from ..runtime.world import World
from ..schema import REGISTRY
from ..sync import SyncRepository
from .errors import Failure
from .nouns import Noun, option
from .session import Session, confirmed, make_sure, stack_around, stack_or_none, with_existing, with_session

if TYPE_CHECKING:
    from ..backends.postgres import PostgresBackend


@click.group(cls=Noun)
def table() -> None:
    """A DynamoDB table with nothing around it.

    For a DynamoDB by itself, and for those who deploy by other means. `deploy` makes a table with an
    aggregator, alarms and policies.
    """


@table.verb("create", with_session)
@option("--unlogged", "On PostgreSQL: faster buckets that a crash of the server empties.", is_flag=True)
@option("--print-sql", "On PostgreSQL: print the statements instead, for who may run them.", is_flag=True)
@option("--role", "With --print-sql: let this role use the store, and do nothing else.", metavar="ROLE")
def create(session: Session, unlogged: bool, print_sql: bool, role: str | None) -> None:
    """Make the table with its indexes, unless it is there, and register a namespace.

    On PostgreSQL it is a schema with tables and functions, for which the user of the URL must be allowed to
    make one. Clients only need what --print-sql grants.
    """
    if session.is_postgres:
        _create_schema(session, unlogged, print_sql, role)
        return
    if unlogged or print_sql or role:
        raise click.UsageError("--unlogged, --print-sql and --role are about stores on PostgreSQL")
    namespace = validate_namespace(session.namespace_name)
    with _unopened(session) as (name, repository):
        made = not _is_there(repository)
        if made:
            repository.create_table()
    session.namespaces.register_namespace(namespace)
    data = {"table": name, "created": made, "namespace": namespace}
    session.output.done(data, f"{'created' if made else 'there is already a'} table {name!r}")


@table.verb("upgrade", with_session)
def upgrade(session: Session) -> None:
    """Bring tables and functions of a store on PostgreSQL up to this version, while it is in use."""
    from ..backends.postgres.layout import LAYOUT_VERSION
    from ..backends.postgres.owner import layout_version
    from ..backends.postgres.trouble import missing

    if not session.is_postgres:
        raise click.UsageError(
            "only stores on PostgreSQL have functions; zae-limiter upgrade is for the rest"
        )
    with _schema(session) as backend:
        before = layout_version(backend.address)
        if before is None:
            raise InfrastructureNotFoundError(missing(backend.address.place))
        if before < LAYOUT_VERSION:
            run_sync(backend.create_table())
    data = {"schema": backend.address.schema, "from": before, "to": LAYOUT_VERSION}
    changed = f"layout {before} became {LAYOUT_VERSION}"
    session.output.done(
        data, changed if before < LAYOUT_VERSION else f"nothing to do: it has layout {before}"
    )


def _create_schema(session: Session, unlogged: bool, print_sql: bool, role: str | None) -> None:
    from ..backends.postgres.layout import create_sql, grants_sql
    from ..backends.postgres.owner import layout_version

    namespace = validate_namespace(session.namespace_name)
    with _schema(session) as backend:
        schema, place = backend.address.schema, backend.address.place
        if print_sql:
            click.echo(create_sql(schema, unlogged=unlogged) + (grants_sql(schema, role) if role else ""))
            return
        if role:
            raise click.UsageError("--role prints what to grant: give --print-sql as well")
        made = layout_version(backend.address) is None
        if made:
            run_sync(backend.create_table(unlogged=unlogged))
    session.namespaces.register_namespace(namespace)
    data = {"schema": schema, "created": made, "namespace": namespace}
    session.output.done(data, f"{'created' if made else 'there is already a store in'} {place}")


@contextmanager
def _schema(session: Session) -> Iterator[PostgresBackend]:
    from ..backends.postgres import PostgresBackend

    backend = open_backend(session.url, sync=True, world=World())
    assert isinstance(backend, PostgresBackend)
    try:
        yield backend
    finally:
        run_sync(backend.close())


@table.verb("delete", confirmed, with_existing)
def delete(session: Session, yes: bool) -> None:
    """Delete the table with all namespaces and all data in it.

    The table of a stack is not deleted: delete the stack before. On PostgreSQL the whole schema goes.
    """
    if session.is_postgres:
        with _schema(session) as backend:
            make_sure(yes, f"Drop {backend.address.place} with all namespaces and all data in it?")
            run_sync(backend.delete_table())
        session.output.done({"deleted": backend.address.schema}, f"dropped {backend.address.place}")
        return
    with _unopened(session) as (name, repository):
        if not _is_there(repository):
            raise InfrastructureNotFoundError(
                f"table {name!r} does not exist in this region and account, so nothing was deleted"
            )
        with stack_around(session) as manager:
            stack = stack_or_none(manager)
        if stack is not None:
            raise Failure(
                f"table {name!r} belongs to a stack of that name; nothing was deleted",
                f"zae-limiter delete --name {name} deletes the stack and keeps the table",
            )
        make_sure(yes, f"Delete table {name!r} with all namespaces and all data in it?")
        repository.delete_table()
    session.output.done({"deleted": name}, f"deleted table {name!r}")


@contextmanager
def _unopened(session: Session) -> Iterator[tuple[str, SyncRepository]]:
    """The name of the table, which need not be there, and what can make and delete it."""
    if not session.is_dynamodb:
        store = without_secrets(session.url)
        raise click.UsageError(f"{store} has no table; name one of DynamoDB's with --name")
    world = World()
    backend = open_backend(session.url, sync=True, world=world)
    try:
        connection = Connection(backend, world, Options(), session.url)
        yield urlsplit(session.url).netloc, SyncRepository(Repository(connection, REGISTRY, REGISTRY))
    finally:
        run_sync(backend.close())


def _is_there(repository: SyncRepository) -> bool:
    """Whether the table is there; one that cannot be used is an error."""
    try:
        run_sync(repository._async._backend.setup())
    except InfrastructureNotFoundError:
        return False
    return True

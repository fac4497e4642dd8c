"""``zae-limiter table``: a DynamoDB table alone, where no stack can be deployed or none is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from .nouns import Noun
from .session import Session, confirmed, make_sure, stack_around, stack_or_none, with_existing, with_session


@click.group(cls=Noun)
def table() -> None:
    """A DynamoDB table with nothing around it.

    For a DynamoDB by itself, and for those who deploy by other means. `deploy` makes a table with an
    aggregator, alarms and policies.
    """


@table.verb("create", with_session)
def create(session: Session) -> None:
    """Make the table with its indexes, unless it is there, and register a namespace."""
    namespace = validate_namespace(session.namespace_name)
    with _unopened(session) as (name, repository):
        made = not _is_there(repository)
        if made:
            repository.create_table()
    session.namespaces.register_namespace(namespace)
    data = {"table": name, "created": made, "namespace": namespace}
    session.output.done(data, f"{'created' if made else 'there is already a'} table {name!r}")


@table.verb("delete", confirmed, with_existing)
def delete(session: Session, yes: bool) -> None:
    """Delete the table with all namespaces and all data in it.

    The table of a stack is not deleted: delete the stack before.
    """
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

"""Stacks on the emulator."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.dynamodb.tables import session
from tests.engines import emulator
from zae_limiter.infra.stack_manager import StackManager, SyncStackManager
from zae_limiter.models import StackOptions


def manager(sync: bool, name: str) -> StackManager:
    """The manager of a stack on the emulator, in one of the two colours, to be driven as it is."""
    return sync_manager(name)._async if sync else StackManager(name, **place(), session=session(False))


def sync_manager(name: str) -> SyncStackManager:
    return SyncStackManager(name, **place(), session=session(True))


def place() -> dict[str, str]:
    """Where the emulator is, as most of our functions take it."""
    return {"region": emulator.REGION, "endpoint_url": emulator.endpoint()}


@contextmanager
def deployed(options: StackOptions | None = None) -> Iterator[str]:
    """A stack on the emulator, which is gone in the end."""
    name = emulator.fresh_name()
    with sync_manager(name) as stack:
        stack.create(options)
        yield name
        if stack.describe() is not None:
            stack.delete()

"""A copy that kills itself at one of its writes: ``python -m tests.copying.doomed SOURCE TARGET CALLS``."""

import os
import random
import signal
import sys
from collections.abc import Sequence

from zae_limiter.backends import open_backend, store_world
from zae_limiter.exceptions import without_secrets
from zae_limiter.operate.copying import Copy, Store
from zae_limiter.operate.copying import copy as copying
from zae_limiter.repository_protocol import Backend, Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.testing.stores import Wrapper


class Doomed(Wrapper):
    """Kills its process at a call that writes, half done."""

    def __init__(self, inner: Backend, calls: int) -> None:
        super().__init__(inner)
        self._left, self._rng = calls, random.Random(calls)

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        self._left -= 1
        if self._left <= 0:
            await self.inner.write_each(writes[: self._rng.randrange(len(writes) + 1)])
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().write_each(writes)


def main(source: str, target: str, calls: str) -> None:
    copying.PAGE_ROWS = 5
    stores = []
    for url in (source, target):
        world = store_world(url, World())
        stores.append(Store(open_backend(url, sync=True, world=world), world, without_secrets(url)))
        run_sync(stores[-1].backend.setup())
    stores[1] = stores[1]._replace(backend=Doomed(stores[1].backend, int(calls)))
    copy = Copy(*stores)
    run_sync(copy.check(write=True))
    for space in run_sync(copy.namespaces()):
        run_sync(copy.carry(run_sync(copy.look(space))))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Threads that wait for one bucket, under a clock that the test moves."""

import dataclasses
import math
import threading
from queue import SimpleQueue

from tests.flow.clients import RESOURCE, Store
from tests.patience import PATIENCE_SECONDS
from zae_limiter import Limit, SyncRateLimiter, SyncRepository

ONE = Limit.per_second("rps", 1)
NAMES = [f"waiter-{number}" for number in range(6)]


def test_threads_begin_in_the_order_of_asking(store: Store) -> None:
    """Each begins at its turn and nobody at another's, though who asked last looks at the clock first."""
    said, begun = SimpleQueue[str](), list[str]()
    wakes = {name: threading.Semaphore(0) for name in NAMES}

    def nap(seconds: float) -> None:
        del seconds
        name = threading.current_thread().name
        said.put(name)
        assert wakes[name].acquire(timeout=PATIENCE_SECONDS)

    def job() -> None:
        with limiter.acquire("vendor", RESOURCE, {"rps": 1}, [ONE], wait=math.inf):
            begun.append(threading.current_thread().name)
        said.put("done")

    world = dataclasses.replace(store.clock.world, nap=nap)
    with SyncRateLimiter(SyncRepository.over(store.open_backend(sync=True), world=world)) as limiter:
        with limiter.acquire("vendor", RESOURCE, {"rps": 1}, [ONE]):
            pass
        threads = [threading.Thread(target=job, name=name, daemon=True) for name in NAMES]
        for thread in threads:
            thread.start()
            assert said.get(timeout=PATIENCE_SECONDS) == thread.name
        for turn in range(len(NAMES)):
            store.clock.advance(1)
            for name in reversed(NAMES[turn:]):
                wakes[name].release()
                said.get(timeout=PATIENCE_SECONDS)  # it began, or naps on
            assert begun == NAMES[: turn + 1]
        for thread in threads:
            thread.join()

"""The sync twins: complete, alike, and at home in threads, in event loops and after a fork."""

# Blocks that fail under a lease are what is tested here, and they hold more than one statement.
# ruff: noqa: PT012

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from tests.flow.clients import RESOURCE, Store, rpm, tpm
from tests.patience import PATIENCE_SECONDS
from zae_limiter import (
    JointLease,
    Lease,
    LeaseExpiredError,
    Limit,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    StackManager,
    SyncJointLease,
    SyncLease,
    SyncRateLimiter,
    SyncRepository,
    SyncStackManager,
)
from zae_limiter.acquisition import Acquisition
from zae_limiter.joint import JointAcquisition
from zae_limiter.repository_protocol import Backend, Item, Key
from zae_limiter.runtime.colour import Colour, ForkSafe
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.sync_lease import SyncAcquisition, SyncJointAcquisition
from zae_limiter.testing import Fault, FaultyBackend
from zae_limiter.testing.stores import Wrapper

T = TypeVar("T")

WORKER = Path(__file__).with_name("worker.py")
THREADS = 16

TWINS: list[tuple[type, type]] = [
    (Repository, SyncRepository),
    (RateLimiter, SyncRateLimiter),
    (Lease, SyncLease),
    (JointLease, SyncJointLease),
    (StackManager, SyncStackManager),
]

SEAMS = {
    *("colour", "is_moved", "is_moved_by_now", "moved", "notice_changes", "notice_families"),
    *("check_switches_when_down", "plan", "policy_when_down", "renewed"),
}
"""What the layers of the package ask of a repository; users have no business with it."""

PASSED_ON = {
    "create_entity get_entity update_entity delete_entity get_children list_entities",
    "set_system_defaults get_system_defaults delete_system_defaults",
    "set_resource_defaults get_resource_defaults delete_resource_defaults list_resources_with_defaults",
    "set_limits get_limits delete_limits list_entities_with_custom_limits list_resources_with_entity_configs",
    "get_config set_config resolve_limits invalidate_config_cache get_cache_stats",
    "get_audit_events get_usage_snapshots get_usage_summary get_resource_capacity",
}


def public(cls: type) -> list[str]:
    return [name for name in dir(cls) if not name.startswith("_") and name not in SEAMS]


PAIRS = [(a, s, name) for a, s in TWINS for name in public(a)]
IDS = [f"{a.__name__}.{name}" for a, _, name in PAIRS]


@pytest.mark.parametrize(("cls", "twin", "name"), PAIRS, ids=IDS)
def test_every_public_name_has_a_twin(cls: type, twin: type, name: str) -> None:
    """A method has a method with the same parameters, result and words, a property a property."""
    assert hasattr(twin, name), f"{twin.__name__} lacks {name}"
    here, there = inspect.getattr_static(cls, name), inspect.getattr_static(twin, name)
    if isinstance(here, property):
        assert isinstance(there, property)
        return
    assert isinstance(here, classmethod) == isinstance(there, classmethod)
    mine, its = getattr(cls, name), getattr(twin, name)
    assert not inspect.iscoroutinefunction(its)
    expected, found = inspect.signature(mine), inspect.signature(its)
    assert list(found.parameters.values()) == list(expected.parameters.values())
    if isinstance(here, classmethod) or (cls, name) == (Repository, "namespace"):
        return
    if name == "acquire":
        assert (expected.return_annotation, found.return_annotation) == ("Acquisition", SyncAcquisition)
    elif name == "part":
        assert (expected.return_annotation, found.return_annotation) == ("LeasePart", SyncLease)
    else:
        assert found.return_annotation == expected.return_annotation
    assert its.__doc__ == (mine.__doc__ or "").replace("async with ", "with ").replace("await ", "")


@pytest.mark.parametrize(("cls", "twin"), TWINS, ids=lambda cls: cls.__name__)
def test_twins_have_nothing_of_their_own(cls: type, twin: type) -> None:
    """What the sync side offers, the async side offers too, and what the layers ask for only that one has."""
    assert set(public(twin)) <= set(public(cls))
    assert [name for name in SEAMS if not hasattr(Repository, name) or hasattr(SyncRepository, name)] == []


def test_missing_twin_is_seen() -> None:
    """The completeness test can fail: for a missing method, other parameters, and a coroutine."""

    class Incomplete:
        pass

    class Different:
        def consume(self, amount: int) -> None:
            """Take more."""

    for twin in (Incomplete, Different, Lease):
        with pytest.raises(AssertionError):
            test_every_public_name_has_a_twin(Lease, twin, "consume")


def test_the_limiter_passes_on_what_it_should() -> None:
    """The repository's entity, limit, default, audit and usage methods, as they are."""
    for name in " ".join(PASSED_ON).split():
        passed, own = getattr(RateLimiter, name), getattr(Repository, name)
        assert inspect.signature(passed) == inspect.signature(own)
        assert passed.__wrapped__ is own


def test_what_is_passed_on_arrives() -> None:
    """Positional and named arguments, results and errors."""
    with SyncRateLimiter.open("memory://") as limiter:
        limiter.create_entity("key-1", name="One")
        assert limiter.get_entity("key-1") == limiter.repository.get_entity("key-1")
        limiter.set_limits("key-1", [Limit.per_minute("rpm", 3)], resource="gpt-4")
        assert limiter.resolve_limits("key-1", "gpt-4")[0] == [Limit.per_minute("rpm", 3)]
        limiter.invalidate_config_cache("key-1")
        assert limiter.get_cache_stats().size > 0


@pytest.mark.parametrize(
    ("cls", "twin"),
    [*TWINS[:2], (Acquisition, SyncAcquisition), (JointAcquisition, SyncJointAcquisition)],
    ids=lambda cls: cls.__name__,
)
def test_context_managers(cls: type, twin: type) -> None:
    """What is entered with ``async with`` there is entered with ``with`` here, and with nothing else."""
    assert hasattr(cls, "__aenter__")
    assert hasattr(cls, "__aexit__")
    assert hasattr(twin, "__enter__")
    assert hasattr(twin, "__exit__")
    assert not hasattr(twin, "__aenter__")


@pytest.fixture
def limiter(store: Store) -> Iterator[SyncRateLimiter]:
    """A sync limiter over the store."""
    repository = SyncRepository.over(store.open_backend(sync=True), world=store.clock.world)
    with SyncRateLimiter(repository) as it:
        yield it


def take(limiter: SyncRateLimiter, amount: int, *limits: Limit) -> bool:
    try:
        with limiter.acquire("key", RESOURCE, {"rpm": amount}, list(limits) or None):
            return True
    except RateLimitExceeded:
        return False


def used(limiter: SyncRateLimiter, entity_id: str = "key") -> dict[str, int]:
    states = limiter.repository.get_bucket(entity_id, RESOURCE)
    return {state.limit_name: state.total_consumed_milli // 1000 for state in states}


def test_life_of_a_lease(limiter: SyncRateLimiter) -> None:
    """All that a lease can do, without an event loop."""
    limits = [rpm(10), tpm(100)]
    with limiter.acquire("key", RESOURCE, {"rpm": 2, "tpm": 50}, limits) as lease:
        assert isinstance(lease, SyncLease)
        assert not lease.degraded
        lease.consume(rpm=3)
        lease.adjust({"tpm": 20})
        lease.release(rpm=1)
        with pytest.raises(RateLimitExceeded):
            lease.consume(rpm=10)
        assert lease.consumed == {"rpm": 4, "tpm": 70}
    assert used(limiter) == {"rpm": 4, "tpm": 70}
    with pytest.raises(LeaseExpiredError):
        lease.adjust(rpm=1)
    assert limiter.available("key", RESOURCE, limits) == {"rpm": 6, "tpm": 30}
    assert limiter.time_until_available("key", RESOURCE, {"rpm": 6}, limits) == 0
    assert limiter.check_availability("key", RESOURCE, {"rpm": 6}, limits).is_available
    assert limiter.is_available()
    assert limiter.refunds_lost == 0


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_exception_gives_everything_back(limiter: SyncRateLimiter, kind: type[BaseException]) -> None:
    """A sync block that fails has cost nothing, and the exception goes on."""
    with pytest.raises(kind), limiter.acquire("key", RESOURCE, {"rpm": 2}, [rpm(10)]) as lease:
        lease.consume(rpm=3)
        raise kind
    assert used(limiter) == {"rpm": 0}


def test_records(limiter: SyncRateLimiter) -> None:
    """The sync repository keeps the same records."""
    repository = limiter.repository
    repository.set_system_defaults([rpm(10)])
    repository.create_entity("parent")
    repository.create_entity("key", parent_id="parent", cascade=True)
    with limiter.acquire("key", RESOURCE, {"rpm": 4}):
        pass
    assert (used(limiter), used(limiter, "parent")) == ({"rpm": 4}, {"rpm": 4})
    assert [entity.entity_id for entity in repository.get_children("parent")] == ["key"]
    assert repository.get_cache_stats().size > 0
    other = repository.namespace(repository.register_namespace("other").namespace_name)
    assert isinstance(other, SyncRepository)
    assert (other.namespace_name, other.get_entity("key")) == ("other", None)


@pytest.mark.parametrize("speculative_writes", [True, False])
def test_open(tmp_path: Path, speculative_writes: bool) -> None:
    """A URL is enough; the file holds what was taken when it is opened again."""
    url = f"sqlite:///{tmp_path}/limits.db"
    for expected in (1, 2):
        with SyncRateLimiter.open(url, speculative_writes=speculative_writes) as limiter:
            assert take(limiter, 1, rpm(10, 1, 10**6))
            assert used(limiter) == {"rpm": expected}
    with SyncRepository.connect(store=url) as repository:
        assert repository.store == url


async def test_inside_a_running_event_loop(store: Store) -> None:
    """Sync calls work where a loop is running already, beside async ones on the same store."""
    asyncio.get_running_loop()
    client = await store.client()
    repository = SyncRepository.over(store.open_backend(sync=True), world=store.clock.world)
    with SyncRateLimiter(repository) as limiter:
        for _ in range(5):
            await client.take("key", {"rpm": 1}, rpm(10))
            assert take(limiter, 1, rpm(10))
        assert not take(limiter, 1, rpm(10))
    await client.refused("key", {"rpm": 1}, rpm(10))
    assert await store.used("key") == 10


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads that interrupt each other all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], T]) -> list[T]:
    """What the same work brings in many threads that start together."""
    start = threading.Barrier(THREADS)

    def one(number: int) -> T:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(one, range(THREADS)))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("speculative_writes", [True, False], ids=["speculative", "transacted"])
def test_threads_admit_exactly_the_capacity(store: Store, speculative_writes: bool) -> None:
    """Sixteen threads on one bucket, cold at first: together they get what one would have got."""
    repository = SyncRepository.over(store.open_backend(sync=True), world=store.clock.world)
    repository.set_system_defaults([rpm(100)])
    with SyncRateLimiter(repository, speculative_writes) as limiter:

        def attempts(number: int) -> int:
            del number
            return sum(take(limiter, 1) for _ in range(10))

        assert sum(in_threads(attempts)) == 100
        assert used(limiter) == {"rpm": 100}
        store.clock.advance(6)
        assert sum(in_threads(attempts)) == 10


@pytest.mark.usefixtures("impatient")
def test_leases_in_threads_do_not_mix(limiter: SyncRateLimiter) -> None:
    """Threads that adjust, consume and fail on one bucket each settle their own account."""

    def work(number: int) -> int:
        cost = 0
        for turn in range(6):
            try:
                with limiter.acquire("key", RESOURCE, {"rpm": 10}, [rpm(10_000)]) as lease:
                    lease.consume(rpm=number + 1)
                    lease.adjust(rpm=turn - 5)
                    if turn == 3:
                        raise KeyError
                cost += lease.consumed["rpm"]
            except KeyError:
                pass
        return cost

    cost = sum(in_threads(work))
    assert used(limiter) == {"rpm": cost}


@pytest.mark.usefixtures("impatient")
def test_threads_charge_child_and_parent(limiter: SyncRateLimiter) -> None:
    """Cascades from many threads, for several children of one parent: the parent admits its capacity."""
    repository = limiter.repository
    repository.set_system_defaults([rpm(50)])
    repository.create_entity("parent")
    for number in range(4):
        repository.create_entity(f"child-{number}", parent_id="parent", cascade=True)

    def attempts(number: int) -> int:
        admitted = 0
        for _ in range(8):
            try:
                with limiter.acquire(f"child-{number % 4}", RESOURCE, {"rpm": 1}):
                    admitted += 1
            except RateLimitExceeded:
                pass
        return admitted

    assert sum(in_threads(attempts)) == 50
    assert used(limiter, "parent") == {"rpm": 50}
    assert sum(used(limiter, f"child-{number}").get("rpm", 0) for number in range(4)) == 50


def test_threads_share_what_is_made_on_demand() -> None:
    """A resource that each process makes for itself is made once for all its threads, however they race."""
    making = threading.Barrier(THREADS)

    def make() -> object:
        making.wait()
        return object()

    shared = ForkSafe(make)
    assert len(set(in_threads(lambda _: shared.get()))) == 1
    assert shared.get() is shared.peek()


def forked(url: str, threads: int, children: int) -> tuple[int, int, list[int]]:
    """What a process that forks took itself, what its store has given out, how its children ended."""
    command = [sys.executable, str(WORKER), "fork", url, str(threads), str(children)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    mine, stored, *codes = map(int, done.stdout.split())
    return mine, stored, codes


@pytest.mark.parametrize("threads", [0, 3])
def test_after_fork_on_sqlite(tmp_path: Path, threads: int) -> None:
    """Children go on with the limiter of their parent, on the same file, while its threads are busy."""
    mine, stored, codes = forked(f"sqlite:///{tmp_path}/limits.db", threads, 4)
    assert codes == [0] * 4
    assert stored == mine + 4


def test_after_fork_in_memory() -> None:
    """A child has a copy of its own: it can go on, and its parent does not see it."""
    mine, stored, codes = forked("memory://", 0, 4)
    assert codes == [0] * 4
    assert stored == mine


class Suspending(Wrapper):
    """A store whose driver waits on an event loop."""

    @property
    def colour(self) -> Colour:
        return Asyncio()

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        await asyncio.sleep(0)
        return await super().batch_get(keys)


def test_store_that_suspends_is_an_error(store: Store) -> None:
    """A sync twin over a store that was opened for async says what is wrong, and nothing hangs."""
    with pytest.raises(RuntimeError, match="needs a backend that was opened for sync"):
        SyncRepository.over(Suspending(store.open_backend(sync=True)))


def test_policy_in_sync(store: Store) -> None:
    """A degraded lease is a sync lease like any other, and a question about the store is answered."""
    faulty = FaultyBackend(store.open_backend(sync=True))
    with SyncRateLimiter(SyncRepository.over(faulty, world=store.clock.world)) as limiter:
        faulty.always = Fault.UNREACHABLE
        with limiter.acquire("key", RESOURCE, {"rpm": 1}, [rpm(10)], "allow") as lease:
            assert isinstance(lease, SyncLease)
            assert lease.degraded
            lease.consume(rpm=20)
            lease.adjust(rpm=3)
            lease.release(rpm=1)
            assert lease.consumed == {"rpm": 23}
        with pytest.raises(LeaseExpiredError):
            lease.adjust(rpm=1)
        assert not limiter.is_available(timeout=PATIENCE_SECONDS)
        faulty.always = None
        assert limiter.is_available(timeout=PATIENCE_SECONDS)


class Stuck(Wrapper):
    """A store whose driver blocks until it is let go."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.free = threading.Event()
        self.free.set()

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        assert self.free.wait(PATIENCE_SECONDS)
        return await super().batch_get(keys)


def test_is_available_honours_its_timeout(store: Store) -> None:
    """A driver that blocks does not block the question."""
    stuck = Stuck(store.open_backend(sync=True))
    with SyncRateLimiter(SyncRepository.over(stuck, world=store.clock.world)) as limiter:
        stuck.free.clear()
        try:
            assert not limiter.is_available(timeout=0.05)
        finally:
            stuck.free.set()
        assert limiter.is_available(timeout=PATIENCE_SECONDS)

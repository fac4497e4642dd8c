"""The buckets of one entity for those who acquire: a real one with ten tokens of each limit, and a plan."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.engine.fake_store import NOW, RATE
from zae_limiter import Limit, OnUnavailable, RateLimiterUnavailable
from zae_limiter.acquisition import Acquisition
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.config_cache import ConfigCache, Entry
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.plan import Plan
from zae_limiter.lease import Lease
from zae_limiter.repository_protocol import Changes, Item, Key, Outcome, Swap, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key, limit_attributes
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Wrapper

FRESH_MS = 60_000


def account_of(entity_id: str = "e", /, ttl_fills: int = 0, **more: Any) -> Account:
    terms = Terms({"a": RATE, "b": RATE}, 1, ttl_fills)
    return Account(bucket_key("ns", entity_id, "r"), "ns", entity_id, "r", terms, **more)


def image_of(a: int = 10_000, b: int = 10_000, /, **more: Any) -> dict[str, Any]:
    image: dict[str, Any] = {"rf": NOW, "cv": 1, "cascade": False}
    for name, tokens in (("a", a), ("b", b)):
        image |= zip(limit_attributes(name), (tokens, *RATE[:3], 0), strict=True)
    return image | more


class FakeBuckets(Wrapper):
    """What an acquire asks, and of whom: the store and the records in one.

    The plan was made from two records, of which one is fresh for longer than the other.
    """

    stack_name = "limits"

    def __init__(
        self,
        account: Account | None = None,
        image: dict[str, Any] | None = None,
        *parents: Account,
        at_once: bool = True,
        policy: OnUnavailable = OnUnavailable.BLOCK,
    ) -> None:
        account = account or account_of()
        self.clock, self.key, self.shelf = ManualClock(NOW), account.key, Shelf()
        super().__init__(MemoryBackend(self.clock.world, self.shelf))
        self.at_once = at_once
        self.cache = ConfigCache(FRESH_MS)
        self.entries = [Entry(None, NOW + FRESH_MS, 1), Entry(None, NOW + 2 * FRESH_MS, 1)]
        self.writer = BucketWriter(self, self.clock.world)
        self.made = Plan((account, *parents), policy, None, self.cache, self.entries)
        self.plans: OrderedDict[tuple[str, str], Plan] = OrderedDict({("e", "r"): self.made})
        self.swaps, self.sent, self.asked = 0, list[Any](), list[str]()
        self.reads = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.replies: list[Outcome] = []
        self.failure: RateLimiterUnavailable | None = None
        self.when_down = OnUnavailable.BLOCK
        self.is_moved = False
        self.holds(image_of() if image is None else image)

    def holds(self, image: dict[str, Any] | None) -> None:
        """Let the bucket be this, and let the process know it."""
        self.shelf.items.pop(self.key, None)
        if image is not None:
            self.shelf.items[self.key] = image
        self.writer.remember({self.key: image})

    @property
    def left(self) -> tuple[Any, Any]:
        item = self.shelf.items[self.key]
        return item["b_a_tk"], item["b_b_tk"]

    @property
    def work(self) -> tuple[int, int]:
        """How often an image was replaced at once, and how many writes were sent."""
        return self.swaps, len(self.sent)

    # The store.

    @property
    def swap(self) -> Swap | None:
        return self._swap if self.at_once else None

    @property
    def changes(self) -> Changes | None:
        return None

    news = None

    def _swap(self, *given: Any) -> Item | None:
        self.swaps += 1
        if self.failure is not None:
            raise self.failure
        return MemoryBackend(self.clock.world, self.shelf).swap(*given)

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        self.reads += 1
        return await super().batch_get(keys)

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        self.sent += [write.add.get("b_a_tk") for write in writes]  # type: ignore[union-attr]
        outcomes = self.replies or await super().write_each(writes)
        self.meanwhile()
        return outcomes

    # The records.

    async def notice_changes(self) -> None:
        raise AssertionError("this store does not tell of changes")

    async def plan(self, *asked: Any) -> Plan:
        assert asked[:2] == ("e", "r")
        self.asked.append("plan")
        if self.failure is not None:
            raise self.failure
        return self.made

    async def renewed(self, account: Account) -> Account:
        raise AssertionError(f"nobody changed the limits of {account.entity_id}")

    def moved(self, accounts: Sequence[Account], shards: Iterable[Account] = ()) -> list[Account]:
        del shards
        return [accounts[0]] if self.is_moved else []

    async def is_moved_by_now(self, *_: Any) -> bool:
        return False

    async def notice_families(self, moved: Iterable[Account]) -> None:
        self.asked += [f"family of {account.entity_id}" for account in moved]
        self.is_moved = False

    def check_switches_when_down(self, entity_id: str, resource: str) -> None:
        assert (entity_id, resource) == ("e", "r")

    def policy_when_down(self, entity_id: str, resource: str) -> OnUnavailable:
        assert (entity_id, resource) == ("e", "r")
        return self.when_down

    # Those who ask.

    def ask(
        self,
        needs: dict[str, int] | None = None,
        limits: tuple[Limit, ...] | None = None,
        on_unavailable: OnUnavailable | None = None,
        speculative: bool = True,
    ) -> Acquisition:
        lease = Lease(self, "e", "r", limits, on_unavailable, speculative)
        return Acquisition(lease, {"a": 2_000} if needs is None else needs)

    def enter(self, needs: dict[str, int] | None = None, /, **more: Any) -> Lease:
        return run_sync(self.ask(needs, **more).__aenter__())

"""The narrow waist: what the limiter asks of a store, as data.

A store holds flat items addressed by ``Key(partition, sort)``. It reads some keys, performs writes
that carry their own conditions, and queries one partition of itself or of an index. It knows
nothing of rate limiting: no arithmetic happens behind this line but adding and comparing integers.

``apply`` *is* the specification of a write. The embedded stores run it; the remote ones compile the
same data to their own language and are tested against it. A refusal is a value that holds the old
image. The only exception that comes out of a store is ``RateLimiterUnavailable``.

``None`` is not a value: setting an attribute to ``None`` removes it, and an attribute that is not
there equals ``None``. Stores may drop an item once its ``ttl`` (epoch seconds) has passed.

A store with a clock of its own tells its time with every reply, by ``observe`` of its world.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from .established import former_names
from .exceptions import RateLimiterUnavailable
from .models import BackendCapabilities
from .runtime.colour import Colour

Value: TypeAlias = str | int | float | bool | dict[str, Any] | list[Any] | None
Item: TypeAlias = Mapping[str, Value]

BATCH_KEYS_MAX = 100
TRANSACT_WRITES_MAX = 100
PAGE_ROWS_MAX = 1000
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Key(NamedTuple):
    partition: str
    sort: str


class Exists(NamedTuple):
    """The item is there."""

    def holds(self, item: Item | None) -> bool:
        return item is not None


class Absent(NamedTuple):
    """The item is not there."""

    def holds(self, item: Item | None) -> bool:
        return item is None


class Equal(NamedTuple):
    """The attribute has this value, of this type; ``None`` means it is not there."""

    attribute: str
    value: str | int | bool | None

    def holds(self, item: Item | None) -> bool:
        present = None if item is None else item.get(self.attribute)
        return present == self.value and type(present) is type(self.value)


class AtLeast(NamedTuple):
    """The attribute is of the same type, and not smaller. Strings compare by code point."""

    attribute: str
    amount: int | str

    def holds(self, item: Item | None) -> bool:
        present = None if item is None else item.get(self.attribute)
        return type(present) is type(self.amount) and present >= self.amount  # type: ignore[operator]


class AtMost(NamedTuple):
    """The attribute is of the same type, and not larger."""

    attribute: str
    amount: int | str

    def holds(self, item: Item | None) -> bool:
        present = None if item is None else item.get(self.attribute)
        return type(present) is type(self.amount) and present <= self.amount  # type: ignore[operator]


Condition: TypeAlias = Exists | Absent | Equal | AtLeast | AtMost
"""Each asks one question about the present image of an item."""


class Put(NamedTuple):
    """Replace the whole item."""

    key: Key
    item: Item
    when: tuple[Condition, ...] = ()


class Update(NamedTuple):
    """Add to integers and set attributes; no attribute in both.

    A missing item starts empty and a missing integer at 0. Adding to something that is no integer
    is refused like a condition that does not hold.
    """

    key: Key
    add: Mapping[str, int] = NOTHING
    set: Mapping[str, Value] = NOTHING
    when: tuple[Condition, ...] = ()


class Delete(NamedTuple):
    """Remove the item; removing what is not there succeeds."""

    key: Key
    when: tuple[Condition, ...] = ()


class Check(NamedTuple):
    """Change nothing, but let a transaction fail unless the conditions hold."""

    key: Key
    when: tuple[Condition, ...] = ()


Write: TypeAlias = Put | Update | Delete | Check


class Outcome(NamedTuple):
    """``item`` is the new image of an applied write and the old image of a refused one.

    A transaction is applied or refused as a whole; ``held`` tells which of its writes had their own
    conditions satisfied. Its images are promised only for the writes that were to blame: elsewhere
    ``item`` may be ``None``. ``failure`` stands for a store that did not answer: nothing is known
    then but what the failure says.
    """

    applied: bool
    item: Item | None
    held: bool = True
    failure: RateLimiterUnavailable | None = None


class Cursor(NamedTuple):
    """Where a page ended: the key of its last row and that row's place in the index."""

    key: Key
    sort: str


LAST = "\U0010ffff"  # sorts behind every character, so that ``prefix + LAST`` closes the range of a prefix


class Query(NamedTuple):
    """Rows of one partition in the order of their sort keys, ``first`` and ``last`` included.

    An ``index`` named ``X`` holds the items that have ``XPK`` and ``XSK``; it yields keys only, with
    empty items. ``when`` filters the rows of the table itself.
    """

    partition: str
    first: str = ""
    last: str = LAST
    index: str | None = None  # type: ignore[assignment]  # hides a tuple method nobody needs
    when: tuple[Condition, ...] = ()
    rows_max: int = 100
    backwards: bool = False
    after: Cursor | None = None

    def accepts(self, sort: str, key: Key) -> bool:
        """Whether a row is within the range and behind the cursor."""
        if not self.first <= sort <= self.last:
            return False
        if self.after is None:
            return True
        here, there = (sort, key), (self.after.sort, self.after.key)
        return here < there if self.backwards else here > there


class Row(NamedTuple):
    key: Key
    item: Item


class Page(NamedTuple):
    """Some rows, at most as many as asked for; there are no more only when ``after`` is ``None``."""

    rows: tuple[Row, ...]
    after: Cursor | None


class Swap(Protocol):
    """A verb that answers at once and without waiting, or not at all.

    It replaces integers of an item that is still exactly the image which this store last returned, and
    returns the new image; with ``changes``, only as long as that is still the number which the verb of
    this name tells. ``at_ms`` is when, by the clock of whoever asks. ``None`` means that nothing
    happened, for whatever reason: the other verbs tell.
    """

    def __call__(
        self,
        key: Key,
        image: Item,
        changed: Mapping[str, int],
        changes: int | None = None,
        at_ms: int | None = None,
        /,
    ) -> Item | None: ...


Changes: TypeAlias = Callable[[], Awaitable[int]]
"""Tells, for less than a read costs, a number: another one whenever somebody who does not write through this
very backend has changed a record that clients remember. While it stands, what was read since is right."""


News: TypeAlias = Callable[[], int]
"""Costs nothing: another number once this process has heard that limits changed on which many depend. That
takes a moment, or the next reply; so unlike ``Changes`` it is no promise."""


class Backend(Protocol):
    """A store, opened for one colour."""

    @property
    def capabilities(self) -> BackendCapabilities: ...

    @property
    def colour(self) -> Colour: ...

    async def setup(self) -> None:
        """Make the store usable, or say what is missing. Idempotent."""

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        """The items of any number of keys, in order."""

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        """Perform each write on its own. One that fails is an outcome with a ``failure``."""

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        """Perform all writes or none; no key twice."""

    async def query(self, query: Query) -> Page: ...

    async def close(self) -> None: ...

    @property
    def swap(self) -> Swap | None:
        """How this store replaces an image at once; ``None`` if it has to be waited for."""

    @property
    def changes(self) -> Changes | None:
        """How this store tells that somebody else changed a record; ``None`` if it cannot."""

    @property
    def news(self) -> News | None:
        """How this store lets clients hear of such changes; ``None`` if it does not."""


def apply(write: Write, item: Item | None) -> Outcome:
    """Decide one write against the present image of its item."""
    for condition in write.when:
        if not condition.holds(item):
            return Outcome(False, item, held=False)
    match write:
        case Update(add=add, set=set_):
            image = dict(item) if item is not None else {}
            for attribute, value in set_.items():
                if value is None:
                    image.pop(attribute, None)
                else:
                    image[attribute] = value
            for attribute, amount in add.items():
                assert attribute not in set_, f"{attribute} is both added to and set"
                present = image.get(attribute, 0)
                if type(present) is not int:
                    return Outcome(False, item, held=False)
                image[attribute] = present + amount
            return Outcome(True, image)
        case Put(item=new):
            return Outcome(True, {name: value for name, value in new.items() if value is not None})
        case Delete():
            return Outcome(True, None)
        case Check():
            return Outcome(True, item)


def apply_all(writes: Sequence[Write], items: Sequence[Item | None]) -> list[Outcome]:
    """Decide a transaction against the present images of its items."""
    assert len({write.key for write in writes}) == len(writes), "a transaction names no key twice"
    assert len(writes) <= TRANSACT_WRITES_MAX, f"{len(writes)} writes in one transaction"
    outcomes = [apply(write, item) for write, item in zip(writes, items, strict=True)]
    if all(outcome.applied for outcome in outcomes):
        return outcomes
    return [Outcome(False, item, held=o.held) for o, item in zip(outcomes, items, strict=True)]


if not TYPE_CHECKING:  # which is to see every name that is missing
    __getattr__ = former_names(__name__)

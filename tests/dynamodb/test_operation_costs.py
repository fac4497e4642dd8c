"""What each operation of the limiter costs on DynamoDB, as the engine counts it, against ``docs/costs.md``.

The engine reports nothing for a refused conditional write, which AWS bills as one unit, nor for keys of a
batch that are not there, which AWS bills as if they were small; both are counted here.
``UPDATE_DOCS=1`` writes the table anew.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from benchmarks.meter import missing_units
from tests.dynamodb.tables import make_table, session
from tests.engines import dynamodb_local
from zae_limiter import Demand, Entity, Limit, RateLimitExceeded, SyncLease, SyncRateLimiter, SyncRepository
from zae_limiter.backends.dynamodb import DynamoDBBackend
from zae_limiter.backends.dynamodb.boto import Access, BotocoreTransport
from zae_limiter.backends.dynamodb.expressions import Payload, Request, fields_of
from zae_limiter.backends.dynamodb.retries import Calls
from zae_limiter.backends.dynamodb.transport import ServiceError
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock, RecordingBackend

DOCS = Path(__file__).resolve().parents[2] / "docs" / "costs.md"
RESOURCE = "gpt-4"
LIMITS = [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 60_000)]
WRITES = ("PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems")


class Metered(BotocoreTransport):
    """A transport that keeps the bill of everything that goes through it."""

    def __init__(self) -> None:
        super().__init__(Access("eu-west-1", dynamodb_local.endpoint(), session=session(True)))
        self.calls: Counter[str] = Counter()
        self.units: Counter[str] = Counter()

    async def call(self, operation: str, payload: Request, timeout_ms: float) -> Payload:
        self.calls[operation] += 1
        asked = (
            payload
            if operation == "DescribeTable"
            else fields_of(payload) | {"ReturnConsumedCapacity": "INDEXES"}
        )
        try:
            reply = await super().call(operation, asked, timeout_ms)
        except ServiceError as error:
            if error.code == "ConditionalCheckFailedException":
                self.units["WCU"] += 1
            raise
        if operation == "BatchGetItem":
            self.units["RCU"] += missing_units(asked, reply)
        bills = reply.get("ConsumedCapacity", [])
        for bill in bills if isinstance(bills, list) else [bills]:
            kind = "WCU" if operation in WRITES else "RCU"
            self.units[kind] += bill["CapacityUnits"]
            for part in ("Table", "GlobalSecondaryIndexes"):
                for name, index in ({"table": bill[part]} if part == "Table" else bill.get(part, {})).items():
                    self.units[name if kind == "WCU" else "read"] += index["CapacityUnits"]
        return reply


class Client:
    """One process: its limiter, and what it has cost since ``measured`` began."""

    def __init__(self, table: str, clock: ManualClock) -> None:
        self.wire = Metered()
        self.record = RecordingBackend(DynamoDBBackend(Calls(table, self.wire, clock.world, 10_000)))
        self.repository = SyncRepository.over(self.record, world=clock.world)
        self.limiter = SyncRateLimiter(self.repository)

    def take(self, entity_id: str, amount: int = 1, adjust: int = 0) -> None:
        with self.limiter.acquire(entity_id, RESOURCE, {"rpm": amount, "tpm": 100}) as lease:
            lease.adjust(tpm=adjust)

    def refused(self, entity_id: str, amount: int = 61) -> None:
        with pytest.raises(RateLimitExceeded):
            self.take(entity_id, amount)

    def failing(self, entity_id: str) -> None:
        with pytest.raises(ZeroDivisionError), self.limiter.acquire(entity_id, RESOURCE, {"rpm": 1}):
            raise ZeroDivisionError


def clock_of(table: str) -> ManualClock:
    """A clock with dice of its own: the engine knows the tokens of transactions on all its tables."""
    return ManualClock(seed=int(table[-12:], 16))


class Cost(NamedTuple):
    operation: str
    round_trips: int
    requests: str
    rcu: float
    wcu: float
    places: str

    @property
    def row(self) -> str:
        return (
            f"| {self.operation} | {self.round_trips} | {self.requests} | {self.rcu:g} | {self.wcu:g} "
            f"| {self.places} |"
        )


def measured(name: str, client: Client, work: Callable[[], object]) -> Cost:
    client.record.forget()
    client.wire.calls.clear()
    client.wire.units.clear()
    work()
    return cost_of(name, client, client.record.round_trips)


def cost_of(name: str, client: Client, round_trips: int) -> Cost:
    """What has gone through a client since it was made or told to forget."""
    units = client.wire.units
    places = [
        f"{place} {units[place]:g}" for place in ("table", "GSI1", "GSI2", "GSI3", "GSI4") if units[place]
    ]
    requests = " + ".join(f"{count} {call}" for call, count in sorted(client.wire.calls.items()))
    return Cost(name, round_trips, requests or "none", units["RCU"], units["WCU"], ", ".join(places))


def starting_cost(name: str, client: Client, entity_id: str) -> Cost:
    """Opening and a first acquire, by a client that has only just been made; each request waits for one."""
    client.take(entity_id)
    return cost_of(name, client, client.wire.calls.total())


@pytest.fixture(scope="module")
def costs() -> dict[str, Cost]:
    """Every operation once, on one table, in the order of the documentation."""
    table = make_table()
    clock = clock_of(table)
    admin = Client(table, clock)
    admin.repository.set_resource_defaults(RESOURCE, LIMITS)
    admin.repository.create_entity("parent")
    for entity_id in ("child", "new-child"):
        admin.repository.create_entity(entity_id, parent_id="parent", cascade=True)

    def fresh() -> Client:
        return Client(table, clock)

    found = [measured("first acquire of an entity", cold := fresh(), lambda: cold.take("user"))]
    found.append(measured("acquire, warm", cold, lambda: cold.take("user")))
    cold.take("user", 57)
    clock.advance(2)
    found.append(measured("acquire, warm, needs what just accrued", cold, lambda: cold.take("user", 3)))
    found.append(measured("refusal", cold, lambda: cold.refused("user")))
    found.append(measured("refusal again within a second", cold, lambda: cold.refused("user")))
    clock.advance(3_600)
    cold.take("user")
    found.append(
        measured("acquire, cold process, existing bucket", other := fresh(), lambda: other.take("user"))
    )
    found.append(starting_cost("fresh process: open, and acquire of an existing bucket", fresh(), "user"))
    found.append(starting_cost("fresh process: open, and first acquire of an entity", fresh(), "newcomer"))
    found.append(measured("acquire + adjust", other, lambda: other.take("user", adjust=7)))
    found.append(measured("acquire + refund", other, lambda: other.failing("user")))
    found.append(measured("cascade, first acquire of both", kin := fresh(), lambda: kin.take("child")))
    found.append(measured("cascade, warm", kin, lambda: kin.take("child")))
    found.append(measured("cascade, warm, + adjust", kin, lambda: kin.take("child", adjust=7)))
    kin.take("parent", 50)
    found.append(measured("cascade, refused by the parent", kin, lambda: kin.refused("child", 30)))
    found.append(
        measured(
            "cascade, refused by the parent again within a second", kin, lambda: kin.refused("child", 30)
        )
    )
    found.append(measured("cascade, cold process", late := fresh(), lambda: late.take("child")))
    found += family_costs(table)
    found += joint_costs(fresh())
    found += waiting_costs(fresh())
    found += kind_costs(table)
    found += seat_costs(fresh(), clock)
    limiter, repository = late.limiter, late.repository
    found.append(measured("available", late, lambda: limiter.available("user", RESOURCE)))
    found.append(measured("create_entity", late, lambda: repository.create_entity("user")))
    found.append(measured("get_entity", late, lambda: repository.get_entity("user")))
    found.append(measured("set_limits", late, lambda: repository.set_limits("user", LIMITS, RESOURCE)))
    found.append(measured("get_limits", late, lambda: repository.get_limits("user", RESOURCE)))
    found.append(
        measured("resolve_limits, cached", late, lambda: repository.resolve_limits("user", RESOURCE))
    )
    found.append(measured("explain", late, lambda: repository.explain("user", RESOURCE)))
    found += operator_costs(late)
    found.append(
        measured("set_resource_defaults", late, lambda: repository.set_resource_defaults(RESOURCE, LIMITS))
    )
    found.append(measured("delete_limits", late, lambda: repository.delete_limits("user", RESOURCE)))
    return {cost.operation: cost for cost in found}


def operator_costs(client: Client) -> list[Cost]:
    """What operators do to a bucket that was used, and to one that was not; with a key somebody knows it."""
    verbs = client.repository
    client.take("user", 30)
    client.take("debtor", adjust=100_000)
    return [
        measured("top_up", client, lambda: verbs.top_up("user", RESOURCE, {"rpm": 3})),
        measured("top_up with a key", client, lambda: verbs.top_up("user", RESOURCE, {"rpm": 3}, "k-1")),
        measured("top_up again", client, lambda: verbs.top_up("user", RESOURCE, {"rpm": 3}, "k-1")),
        measured("reset", client, lambda: verbs.reset("user", RESOURCE)),
        measured("reset of a full bucket", client, lambda: verbs.reset("nobody", RESOURCE)),
        measured("forgive", client, lambda: verbs.forgive("debtor", RESOURCE)),
        measured("set_parent", client, lambda: verbs.set_parent("user", "parent")),
        measured("disable a resource", client, lambda: verbs.disable(resource=RESOURCE, reason="down")),
        measured("list_switches, of one", client, verbs.list_switches),
        measured("enable a resource", client, lambda: verbs.enable(resource=RESOURCE)),
        measured("bypass a resource", client, lambda: verbs.bypass(resource="search")),
    ]


def family_costs(table: str) -> list[Cost]:
    """A key under a user, a team and an organisation, by processes with a clock of their own."""
    clock = ManualClock(seed=int(table[-12:], 16) + 1)
    admin, client = Client(table, clock), Client(table, clock)
    chain = [("deep-org", None), ("deep-team", "deep-org"), ("deep-user", "deep-team")]
    for name, above in chain:
        admin.repository.create_entity(name, parent_id=above, cascade=above is not None)

    def make(name: str) -> Entity:
        return admin.repository.create_entity(name, parent_id="deep-user", cascade=True)

    make("deep-key")
    found = [measured("create_entity, fourth generation", admin, lambda: make("deep-key-2"))]
    for name, _ in (*chain, ("deep-key", "")):
        admin.take(name)
    found.append(measured("four generations, cold process", client, lambda: client.take("deep-key")))
    found.append(measured("four generations, warm", client, lambda: client.take("deep-key")))
    clock.advance(61)
    found.append(
        measured("four generations, when the cache has expired", client, lambda: client.take("deep-key"))
    )
    client.take("deep-org", 50)
    client.refused("deep-key", 30)  # by which it learns of what the other process held a while ago
    clock.advance(2)
    found.append(
        measured("four generations, refused by the top", client, lambda: client.refused("deep-key", 30))
    )
    return found


def joint_costs(client: Client) -> list[Cost]:
    """Several demands in one acquire: two resources of one entity, and two children of one parent."""
    client.repository.set_resource_defaults("search", LIMITS)
    resources = [Demand("both", RESOURCE, {"rpm": 1}), Demand("both", "search", {"rpm": 1})]
    siblings = [Demand(child, RESOURCE, {"rpm": 1}) for child in ("child", "new-child")]

    def take(demands: list[Demand], adjust: int = 0) -> None:
        with client.limiter.acquire(demands) as lease:
            for part in lease.parts:
                part.adjust(tpm=adjust)

    def refused() -> None:
        with pytest.raises(RateLimitExceeded):
            take([resources[0], Demand("both", "search", {"rpm": 61})])

    for demands in (resources, siblings):
        take(demands)
    return [
        measured("two resources at once, warm", client, lambda: take(resources)),
        measured("two resources at once, warm, + adjust of both", client, lambda: take(resources, 7)),
        measured("two resources at once, refused by one", client, refused),
        measured("two resources at once, refused again within a second", client, refused),
        measured("two children of a parent at once, warm", client, lambda: take(siblings)),
    ]


def seat_costs(client: Client, clock: ManualClock) -> list[Cost]:
    """Leases of a limit of concurrency beside the others; long ones are renewed by a timer."""
    limits = [*LIMITS, Limit.concurrent("parallel", 2, hold="40s")]
    needs = {"rpm": 1, "tpm": 100, "parallel": 1}

    def take() -> SyncLease:
        return client.limiter.acquire("seated", RESOURCE, needs, limits).open()

    def refused() -> None:
        with pytest.raises(RateLimitExceeded):
            take()

    def renew() -> None:
        run_sync(client.repository._async.writer.renewals.renew())

    take().commit()
    leases: list[SyncLease] = []
    found = [measured("acquire with a seat, warm", client, lambda: leases.append(take()))]
    leases.append(take())
    found.append(measured("no seat is free, refused", client, refused))
    clock.advance(20)
    found.append(measured("two leases that go on, renewed", client, renew))
    found.append(measured("the end of a lease with a seat", client, leases[0].commit))
    leases[1].commit()
    return found


def kind_costs(table: str) -> list[Cost]:
    """A limit of each kind beside the others, by a process with a clock of its own."""
    clock = ManualClock(seed=int(table[-12:], 16) + 2)
    client = Client(table, clock)
    phased = Limit.per_minute("rps", 60).during(f"{(clock.now_ms // 60_000 + 1) % 60} * * * *", 30)

    def take(limit: Limit) -> None:
        limits, needs = [*LIMITS, limit], {"rpm": 1, "tpm": 100, limit.name: 5}
        with client.limiter.acquire(limit.name, RESOURCE, needs, limits):
            pass

    def again(name: str, limit: Limit) -> Cost:
        return measured(name, client, lambda: take(limit))

    quota, soft = Limit.per_month("usd", 1_000, tz="Europe/Berlin"), Limit.per_day("words", 9).softly()
    session = Limit.session("msgs", 50, "30s")
    for limit in (quota, session, soft, phased):
        take(limit)
    found = [again("acquire of a quota, warm", quota), again("acquire beyond a soft limit, warm", soft)]
    clock.advance(50)
    found.append(again("acquire that begins a session window, warm", session))
    return [*found, again("acquire with a schedule, the first of a phase, warm", phased)]


def interrupted(seconds: float) -> None:
    raise KeyboardInterrupt(seconds)


def waiting_costs(client: Client) -> list[Cost]:
    """Who waits has the clock moved to its turn; who gives up is interrupted while it sleeps."""
    client.repository.create_entity("waiting-parent")
    client.repository.create_entity("waiting-child", parent_id="waiting-parent", cascade=True)
    client.repository.set_limits("waiting-parent", [Limit.per_minute("rpm", 6_000), LIMITS[1]], RESOURCE)
    client.take("waiting", 60)

    def wait(entity_id: str, seconds: float = 60) -> None:
        with client.limiter.acquire(entity_id, RESOURCE, {"rpm": 1, "tpm": 1}, wait=seconds):
            pass

    def refused() -> None:
        with pytest.raises(RateLimitExceeded):
            wait("waiting", 0.5)

    def given_up() -> None:
        writer = client.repository._async.writer
        impatient = replace(writer.world, nap=interrupted)
        with mock.patch.object(writer, "world", impatient), pytest.raises(KeyboardInterrupt):
            wait("waiting")

    found = [
        measured("wait for one's turn", client, lambda: wait("waiting")),
        measured("wait that would be too long, refused", client, refused),
        measured("wait that is given up", client, given_up),
    ]
    client.take("waiting-child", 60)
    return [*found, measured("cascade, wait for one's own limit", client, lambda: wait("waiting-child"))]


BUDGET = [
    ("acquire, warm", 1, "1 UpdateItem", 1.0),
    ("acquire, warm, needs what just accrued", 1, "1 UpdateItem", 1.0),
    ("refusal", 1, "1 UpdateItem", 1.0),
    ("refusal again within a second", 0, "none", 0.0),
    ("acquire, cold process, existing bucket", 2, "1 BatchGetItem + 1 UpdateItem", 1.0),
    ("first acquire of an entity", 2, "1 BatchGetItem + 1 PutItem", 4.0),
    ("acquire + adjust", 2, "2 UpdateItem", 2.0),
    ("cascade, warm", 1, "2 UpdateItem", 2.0),
    ("four generations, warm", 1, "4 UpdateItem", 4.0),
    ("cascade, refused by the parent", 2, "1 BatchGetItem + 1 UpdateItem", 1.0),
    ("cascade, refused by the parent again within a second", 0, "none", 0.0),
    ("two resources at once, warm", 1, "2 UpdateItem", 2.0),
    ("two resources at once, refused by one", 1, "1 UpdateItem", 1.0),
    ("two resources at once, refused again within a second", 0, "none", 0.0),
    ("two children of a parent at once, warm", 1, "3 UpdateItem", 3.0),
    ("wait for one's turn", 1, "1 UpdateItem", 1.0),
    ("wait that would be too long, refused", 1, "1 UpdateItem", 1.0),
    ("wait that is given up", 2, "2 UpdateItem", 2.0),
    ("acquire of a quota, warm", 1, "1 UpdateItem", 1.0),
    ("acquire beyond a soft limit, warm", 1, "1 UpdateItem", 1.0),
    ("acquire that begins a session window, warm", 1, "1 UpdateItem", 1.0),
    ("acquire with a schedule, the first of a phase, warm", 1, "1 UpdateItem", 1.0),
    ("acquire with a seat, warm", 1, "1 UpdateItem", 1.0),
    ("no seat is free, refused", 1, "1 UpdateItem", 1.0),
    ("two leases that go on, renewed", 1, "1 UpdateItem", 1.0),
    ("the end of a lease with a seat", 1, "1 UpdateItem", 1.0),
]


@pytest.mark.parametrize(
    ("operation", "round_trips", "requests", "wcu"), BUDGET, ids=[row[0] for row in BUDGET]
)
def test_the_budget_is_kept(
    costs: dict[str, Cost], operation: str, round_trips: int, requests: str, wcu: float
) -> None:
    """Round trips, requests and write units with all indexes, exactly."""
    cost = costs[operation]
    assert (cost.round_trips, cost.requests, cost.wcu) == (round_trips, requests, wcu)


def test_a_cold_cascade_takes_three_round_trips(costs: dict[str, Cost]) -> None:
    """The child with its config, the parent, and both writes together."""
    assert costs["cascade, cold process"].round_trips <= 3
    assert costs["cascade, first acquire of both"].round_trips <= 3


def test_the_documented_costs_are_the_measured_ones(costs: dict[str, Cost]) -> None:
    """The table in the documentation is generated from this test."""
    before, begin, rest = DOCS.read_text().partition("<!-- generated table -->\n")
    _, end, after = rest.partition("<!-- end of generated table -->\n")
    assert (begin, end) != ("", "")
    header = [
        "| operation | round trips | requests | RCU | WCU | written where |",
        "|---|---|---|---|---|---|",
    ]
    table = "\n".join([*header, *(cost.row for cost in costs.values())]) + "\n"
    text = before + begin + table + end + after
    if os.environ.get("UPDATE_DOCS"):
        DOCS.write_text(text)
    assert text == DOCS.read_text()


KINDS: dict[str, Callable[[str], Limit]] = {
    "limits": lambda name: Limit.per_minute(name, 10_000_000),
    "quotas": lambda name: Limit.per_month(name, 10_000_000, tz="Europe/Berlin", unit="usd_micro"),
    "windows": lambda name: Limit.session(name, 10_000_000, "5h"),
    "soft limits": lambda name: Limit.per_minute(name, 10_000_000).softly(),
    "schedules": lambda name: Limit.per_minute(name, 10_000_000).during("* 9-16 * * mon-fri", 600_000),
}


@pytest.mark.parametrize("kind", KINDS)
def test_how_many_limits_fit_into_one_write_unit(kind: str) -> None:
    """The documentation says from how many limits of a kind on a bucket costs two units a write."""
    table = make_table()
    clock = clock_of(table)
    client = Client(table, clock)
    fitting = 0
    for count in range(1, 33):
        limits = [KINDS[kind](f"limit-{n:02}") for n in range(count)]
        entity_id = f"project-{count:05}"
        amounts = {limit.name: 1_234 for limit in limits}
        with client.limiter.acquire(entity_id, RESOURCE, amounts, limits):
            pass
        client.wire.units.clear()
        with client.limiter.acquire(entity_id, RESOURCE, amounts, limits):
            pass
        if client.wire.units["WCU"] == 1.0:
            fitting = count
    assert f"up to {fitting} {kind}" in DOCS.read_text()


def test_how_many_limits_fit_beside_seats() -> None:
    """The same with a limit of concurrency among them that is always busy, so that it has all its places."""
    table = make_table()
    clock = clock_of(table)
    client = Client(table, clock)
    fitting = 0
    for count in range(1, 10):
        limits = [Limit.per_minute(f"limit-{n:02}", 10_000_000) for n in range(count)]
        limits.append(Limit.concurrent("parallel", 100, hold="80s"))
        amounts = {limit.name: 1 for limit in limits}
        for _ in range(12):
            with client.limiter.acquire(f"project-{count:05}", RESOURCE, amounts, limits):
                clock.advance(10)
        client.wire.units.clear()
        client.limiter.acquire(f"project-{count:05}", RESOURCE, amounts, limits).open().commit()
        if client.wire.units["WCU"] == 2.0:
            fitting = count
    assert f"up to {fitting} rates beside it" in DOCS.read_text()

"""The mutation check kills what it should, and can tell when nobody notices."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutation.mutations import (
    ROOT,
    TARGETS,
    Target,
    all_mutants,
    explained,
    outdated,
    sample,
    unexplained,
)
from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.proving import Yard

SOURCES = ROOT / "src"
PAGE = ROOT / "docs" / "mutation.md"
FATAL = (
    "zae_limiter.engine.bucket_writes._spend: when.append(as_believed) => pass",
    "zae_limiter.engine.bucket_writes._spend: when.append(AtLeast(tokens, need - gained)) => pass",
    "zae_limiter.engine.bucket_writes._give_back: -amount => amount",
    "zae_limiter.engine.law.balance: "
    "min(rate.capacity_milli, tokens_milli + gain(rate, origin_ms, now_ms)) => "
    "tokens_milli + gain(rate, origin_ms, now_ms)",
    "zae_limiter.engine.law.wait_ms: accrued(rate, now_ms) + deficit_milli => "
    "accrued(rate, now_ms) - deficit_milli",
    "zae_limiter.engine.law.accrued: t_ms * rate.refill_amount_milli // rate.refill_period_ms => "
    "-(-t_ms * rate.refill_amount_milli // rate.refill_period_ms)",
    "zae_limiter.engine.spent.spent: found - need < least => found - need <= least",
    "zae_limiter.engine.spent.spent: min(numbers[tokens] + gained, capacity) => "
    "max(numbers[tokens] + gained, capacity)",
)
EQUIVALENT = "zae_limiter.engine.law.gain: now_ms <= origin_ms => now_ms < origin_ms"
MUTANTS = {mutant.name: mutant for mutant in all_mutants(SOURCES)}


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    it = Yard(tmp_path_factory.mktemp("yard"))
    it.prepare()
    yield it
    it.close()


def cheaply(mutant: Mutant) -> Target:
    """Nothing but the tests that are named after the file."""
    path = Path(mutant.path).relative_to("zae_limiter")
    if ".spent: " in mutant.name:
        path = path.with_name("spent.py")
    if path.name == "law.py":
        path = Path("bucket.py")
    return Target(mutant.path, (), (f"tests/{path.with_name(f'test_{path.name}')}",))


@pytest.mark.parametrize("name", FATAL)
def test_fatal_mutant_is_killed(yard: Yard, name: str) -> None:
    """A change that no promise would survive is noticed by a test, which is named."""
    trial = yard.try_out(MUTANTS[name], cheaply(MUTANTS[name]))
    assert trial.verdict == "killed"
    assert trial.by.startswith("tests/")


def test_equivalent_mutant_survives(yard: Yard) -> None:
    """A change that changes nothing is reported as a survivor, so the verdicts mean something."""
    trial = yard.try_out(MUTANTS[EQUIVALENT], cheaply(MUTANTS[EQUIVALENT]))
    assert (trial.verdict, trial.by) == ("survived", "")
    assert EQUIVALENT in explained(PAGE.read_text())


def test_mutant_that_hangs_is_not_waited_for(yard: Yard, tmp_path: Path) -> None:
    """A mutant that never comes to an end is ended, and listed as such."""
    impatient = Yard(tmp_path, limit_seconds=3)
    impatient.base = yard.base
    mutant = MUTANTS[FATAL[0]]._replace(text="while True: pass")
    assert impatient.try_out(mutant, cheaply(mutant)).verdict == "hung"


def test_every_target_has_mutants_and_tests() -> None:
    """Files and tests that the table names are there; every mutant has a name of its own."""
    for target in TARGETS:
        assert any(mutant.path == target.path for mutant in MUTANTS.values()), target.path
        for test in (*target.first, *target.then):
            assert (ROOT / test.partition("::")[0]).exists(), test
    assert len(MUTANTS) == len(all_mutants(SOURCES))


def test_changes_by_hand_are_up_to_date() -> None:
    """What a planted change replaces is still there; otherwise change or drop it in the table."""
    assert outdated(SOURCES) == []


def test_sample_is_the_same_every_time() -> None:
    """A sample depends on names alone, and is spread over the files."""
    mutants = list(MUTANTS.values())
    assert sample(mutants, 60) == sample(mutants[::-1], 60)[::-1]
    assert len({mutant.path for mutant in sample(mutants, 60)}) > 8


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", {"a < b => a <= b"}),
        ("return a if not b else c", {"not b => b"}),
        ("x = min(a, b)", {"min(a, b) => max(a, b)"}),
        ("return a // b", {"a // b => -(-a // b)"}),
        ("return -(-a * b // c)", {"-(-a * b // c) => a * b // c", "-a => a"}),
        ("x.append(a)", {"x.append(a) => pass"}),
        ("x[a] = b", {"x[a] = b => pass"}),
        ("x = [Exists(), Equal(a, b)]", {"[Exists(), Equal(a, b)] => [Equal(a, b)]"}),
        ("return a and b", {"a and b => a", "a and b => b"}),
        ("del x[a], b", {"del x[a], b => pass"}),
        ("del a, b", set()),
        ("assert a < b, f'{a + b}'", set()),
        ("logger.warning(a + 1)", set()),
    ],
)
def test_operators(body: str, expected: set[str]) -> None:
    """Each operator does what it is for, and what speaks to people is left alone."""
    source = f"def f(a: int, b, c, x):\n    {body}\n"
    made = mutants_of("m.py", source)
    assert expected <= {f"{mutant.old} => {mutant.new}" for mutant in made}
    assert bool(expected) == bool(made)
    for mutant in made:
        compile(mutant.applied(source), "mutant", "exec")


def test_every_mutant_is_a_program() -> None:
    """No mutant is killed merely because it does not compile."""
    for mutant in sample(list(MUTANTS.values()), 100):
        compile(mutant.applied((SOURCES / mutant.path).read_text()), mutant.name, "exec")


def test_explanations_are_of_mutants_that_exist() -> None:
    """A survivor is explained as long as the code is there; when it has changed, so has the question."""
    stale = [name for name in explained(PAGE.read_text()) if name not in MUTANTS]
    assert stale == [], "take these rows out of docs/mutation.md"


def test_a_survivor_that_nobody_explains_is_told() -> None:
    """Only rows of the page count as an explanation."""
    page = "| `one => two` | it is the same |\n"
    assert unexplained(["one => two", "two => one"], page) == ["two => one"]

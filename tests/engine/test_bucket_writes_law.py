"""The law of a posting, for any bucket, belief and instant.

What a posting does to a bucket is computed here from the balance alone, without shapes, and compared
with what its write does.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.quotas import quota
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.bucket_view import has_terms, is_outdated, level
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.fitting import fitting
from zae_limiter.engine.law import Rate, balance, gain, retry_after_ms
from zae_limiter.engine.lifetime import lasts, prolong
from zae_limiter.engine.posting import Posting, merged
from zae_limiter.repository_protocol import Absent, Delete, Exists, Item, Write, apply
from zae_limiter.schema import (
    FORGIVEN,
    bucket_key,
    bucket_limit_names,
    forgiven,
    limit_attributes,
    number,
    rate_attributes,
    stored_rate,
)

KEY = bucket_key("ns", "e", "r")
NOW = 1_700_000_000_000

tokens = st.integers(1, 20) | st.integers(1, 10**9)
rates = st.builds(
    lambda capacity, amount, period: Rate(capacity * 1000, amount * 1000, period * 1000),
    tokens,
    tokens,
    st.sampled_from((1, 7, 60, 3600, 86_400)) | st.integers(1, 10**8),
) | st.builds(
    quota,
    tokens.map(lambda tokens: tokens * 1000),
    tokens.map(lambda tokens: tokens * 1000),
    st.sampled_from(("hour@UTC", "month@Europe/Berlin", "cron(*/7 * * * *)@UTC")),
)
versions = st.none() | st.integers(0, 3)
NAMES = ("a", "b", "a_tk")


def account(terms: Terms) -> Account:
    return Account(KEY, "ns", "e", "r", terms)


def rates_of(image: Item) -> dict[str, Rate]:
    return {
        name: rate for name in bucket_limit_names(image) if (rate := stored_rate(image, name)) is not None
    }


def balances(image: Item, now_ms: int) -> dict[str, int]:
    return {
        name: balance(rate, number(image, limit_attributes(name).tk), number(image, "rf"), now_ms)
        for name, rate in rates_of(image).items()
    }


def consumed(image: Item | None, name: str) -> int:
    return 0 if image is None else number(image, limit_attributes(name).tc)


@st.composite
def terms_of(draw: st.DrawFn, image: Item | None = None) -> Terms:
    """Terms under which a bucket might be used next: often its own."""
    held = {} if image is None else rates_of(image)
    names = draw(st.sets(st.sampled_from(NAMES), min_size=1))
    ours = {name: draw(rates if name not in held else st.just(held[name]) | rates) for name in sorted(names)}
    version = draw(versions if image is None else st.just(number(image, "cv")) | versions)
    # Whoever brings limits along and keeps buckets for ever has its own test below.
    return Terms(ours, version, draw(st.integers(1 if version is None else 0, 7)))


@st.composite
def images(draw: st.DrawFn) -> dict[str, Any]:
    """A bucket somebody left behind: full, overfilled, used or in debt; a ``ttl`` outlives its debts."""
    image: dict[str, Any] = {"rf": draw(st.integers(0, 10**4) | st.just(NOW)), "cv": draw(st.integers(0, 3))}
    full_ms = image["rf"]
    for name in sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1))):
        rate = draw(rates)
        held = draw(
            st.integers(-3 * rate.capacity_milli, 2 * rate.capacity_milli) | st.just(rate.capacity_milli)
        )
        used = draw(st.integers(0, 10**6))
        names = limit_attributes(name)
        image |= {names.tk: held, names.tc: used, **rate_attributes(name, rate)}
        full_ms = max(
            full_ms, image["rf"] + retry_after_ms(rate, held, image["rf"], rate.capacity_milli, image["rf"])
        )
    if draw(st.integers(0, 3)) == 0:
        image[FORGIVEN] = {name: draw(st.integers(1, 10**7)) for name in rates_of(image)}
    if draw(st.booleans()):
        image["ttl"] = -(-full_ms // 1000) + draw(st.integers(0, 10**4))
    return image


@st.composite
def instants(draw: st.DrawFn, image: Item | None, early: bool = True) -> int:
    """When somebody uses a bucket: around its origin, before it if ``early``, or long after."""
    origin = NOW if image is None else number(image, "rf")
    return origin + draw(st.integers(-5000 if early else 0, 5000) | st.integers(0, 10**9))


@st.composite
def postings(draw: st.DrawFn, terms: Terms, image: Item | None, now_ms: int) -> Posting:
    """A posting around what is there: just enough, just too much, or any amount."""

    def amount(name: str) -> st.SearchStrategy[int]:
        there = level(terms, name, image, now_ms).balance(now_ms)
        return st.sampled_from((there - 1, there, there + 1)) | st.integers(
            1, 2 * terms.rates[name].capacity_milli
        )

    def amounts() -> dict[str, int]:
        some = draw(st.sets(st.sampled_from(sorted(terms.rates))))
        return {name: max(1, draw(amount(name))) for name in sorted(some)}

    kinds = draw(st.sets(st.sampled_from(("need", "debit", "credit")), min_size=1))
    return Posting(**{kind: amounts() for kind in sorted(kinds)})


class Verdict(NamedTuple):
    """What the law says of a posting: the instant it takes effect, and what the bucket then holds."""

    at_ms: int
    rates: Mapping[str, Rate]
    balances: Mapping[str, int]


def spared(image: Item, name: str, now_ms: int) -> int:
    """What cuts have spared a limit, without what has flown over since."""
    rate, stored = rates_of(image)[name], number(image, limit_attributes(name).tk)
    flown_over = stored + gain(rate, number(image, "rf"), now_ms) - rate.capacity_milli
    return max(0, forgiven(image).get(name, 0) - max(0, flown_over))


def changed(held: int, before: Rate, after: Rate, made_up: int) -> int:
    """What the law makes of a balance when the numbers change."""
    difference = after.capacity_milli - before.capacity_milli
    if difference > 0:
        moved = held + difference - min(made_up, difference)
    else:
        moved = held + difference
    slower = Fraction(after.refill_amount_milli, after.refill_period_ms) < Fraction(
        before.refill_amount_milli, before.refill_period_ms
    )
    if difference >= 0 and not slower:
        return moved
    # A cut makes no debt, and debt that was there is not more than what a refill pays off before one token.
    return max(moved, 0 if held >= 0 else max(held, 1000 - after.capacity_milli))


def law(terms: Terms, posting: Posting, image: Item | None, now_ms: int) -> Verdict | None:
    """The bucket after a posting, or ``None`` if it must be refused."""
    if posting.need and is_outdated(terms, image):
        return None
    before = {} if image is None else rates_of(image)
    origin = now_ms if image is None else number(image, "rf")
    moves = image is None or (bool(posting.need) and not has_terms(image, terms))
    after = before
    renewed = image is not None and terms.version not in (None, image.get("cv"))
    if moves:
        after = dict(terms.rates) if renewed or image is None else {**before, **terms.rates}
    at_ms = max(now_ms, origin)
    held = {}
    for name, rate in after.items():
        if image is not None and name in before:
            found = balance(before[name], number(image, limit_attributes(name).tk), origin, at_ms)
            found = changed(found, before[name], rate, 0 if renewed else spared(image, name, at_ms))
            credit = posting.credit.get(name, 0)
        else:
            found, credit = rate.capacity_milli, 0  # there was nothing yet that a refund could go to
        need = posting.need.get(name, 0)
        if need and need > found:
            return None
        held[name] = min(rate.capacity_milli, found - need - posting.debit.get(name, 0) + credit)
    return Verdict(at_ms, after, held)


def check(write: Write, posting: Posting, terms: Terms, image: Item | None, now_ms: int) -> Item:
    """Apply a write that must be admitted, and compare what it leaves with the law."""
    outcome = apply(write, image)
    verdict = law(terms, posting, image, now_ms)
    assert outcome.applied
    assert outcome.item is not None
    assert verdict is not None, "more was admitted than was there"
    assert rates_of(outcome.item) == verdict.rates
    assert balances(outcome.item, verdict.at_ms) == verdict.balances
    for name in verdict.rates:
        fresh = image is None or name not in rates_of(image)
        taken = posting.need.get(name, 0) + posting.debit.get(name, 0)
        net = taken if fresh else taken - posting.credit.get(name, 0)
        before = 0 if fresh else consumed(image, name)
        assert consumed(outcome.item, name) - before == net
    return outcome.item


@given(st.none() | images(), st.data())
@settings(max_examples=100)
def test_a_write_does_what_the_law_says(image: Item | None, data: st.DataObject) -> None:
    """Shaped from the true image, a posting that is covered is admitted, one that is not is refused."""
    terms = data.draw(terms_of(image))
    now_ms = data.draw(instants(image))
    posting = data.draw(postings(terms, image, now_ms))
    write = write_for(account(terms), posting, image, now_ms)
    if write is None:  # moot: nothing is asked for, and of what is given nothing is there
        assert not posting.need
        held = () if image is None else rates_of(image)
        assert not any(name in held for name in (*posting.debit, *posting.credit))
    elif image is None and not posting.need and not posting.debit:
        assert not apply(write, None).applied, "a refund made a bucket"
    elif law(terms, posting, image, now_ms) is None:
        assert apply(write, image) == (False, image, False, None)
    else:
        check(write, posting, terms, image, now_ms)


@given(st.none() | images(), st.data())
@settings(max_examples=60)
def test_an_old_belief_never_admits_wrongly(believed: Item | None, data: st.DataObject) -> None:
    """A write shaped from an old image is either refused or does what the law says of the true one."""
    terms = data.draw(terms_of(believed))
    payer = account(terms)
    now_ms = data.draw(instants(believed))
    truth = believed
    for _ in range(data.draw(st.integers(1, 3))):
        others = terms if data.draw(st.booleans()) else data.draw(terms_of(truth))
        posting = data.draw(postings(others, truth, now_ms))
        theirs = write_for(account(others), posting, truth, now_ms + data.draw(st.integers(0, 100)))
        if theirs is not None and apply(theirs, truth).applied:
            truth = apply(theirs, truth).item
    need = {
        name: data.draw(st.integers(1, rate.capacity_milli)) for name, rate in sorted(terms.rates.items())
    }
    write = write_for(payer, Posting(need=need), believed, now_ms)
    assert write is not None
    if apply(write, truth).applied:
        check(write, Posting(need=need), terms, truth, now_ms)


@given(images(), st.data())
@settings(max_examples=60)
def test_a_rebase_keeps_what_was_consumed(image: Item, data: st.DataObject) -> None:
    """Under new numbers a bucket holds what the law makes of what it held, without what was just taken."""
    terms = data.draw(terms_of(image))
    assume(not has_terms(image, terms))
    now_ms = data.draw(instants(image, early=False)) + 1
    name = data.draw(st.sampled_from(sorted(terms.rates)))
    write = write_for(account(terms), Posting(need={name: 1}), image, now_ms)
    assert write is not None
    outcome = apply(write, image)
    assume(outcome.applied)
    assert outcome.item is not None
    before, after = balances(image, now_ms), balances(outcome.item, now_ms)
    renewed = terms.version not in (None, number(image, "cv"))
    for other, rate in terms.rates.items():
        found = rate.capacity_milli
        if other in before:
            made_up = 0 if renewed else spared(image, other, now_ms)
            found = changed(before[other], rates_of(image)[other], rate, made_up)
        assert after[other] == found - (other == name)
    assert renewed or number(outcome.item, "rf") != number(image, "rf"), "which numbers are meant"
    assert number(outcome.item, "rf") <= now_ms, "what has not accrued yet cannot be given out"
    assert number(outcome.item, "cv") == (number(image, "cv") if terms.version is None else terms.version)


# How long a bucket is kept.


def disappears_full(image: Item) -> bool:
    """Whether a bucket may be forgotten when its time has come: a new one starts full."""
    ttl_ms = number(image, "ttl") * 1000
    full = {name: rate.capacity_milli for name, rate in rates_of(image).items()}
    return "ttl" not in image or balances(image, ttl_ms) == full


@given(st.none() | images(), st.data())
@settings(max_examples=60)
def test_a_bucket_may_only_disappear_when_it_would_be_full(image: Item | None, data: st.DataObject) -> None:
    """After any posting, and the write that keeps a debt alive, ``ttl`` is not before the bucket is full."""
    assert image is None or disappears_full(image)
    terms = data.draw(terms_of(image))
    now_ms = data.draw(instants(image, early=False))
    for _ in range(data.draw(st.integers(1, 3))):
        posting = data.draw(postings(terms, image, now_ms))
        write = write_for(account(terms), posting, image, now_ms)
        outcome = apply(write if write is not None else Delete(KEY, (Exists(), Absent())), image)
        if outcome.applied:
            image = outcome.item
            assert image is not None
            assert disappears_full(image)
            if "ttl" in image and terms.version is not None:
                assert terms.ttl_fills or not posting.need, "limits of their own are kept for ever"
        now_ms += data.draw(st.integers(0, 10**7))


@given(images(), st.data())
@settings(max_examples=60)
def test_debts_that_add_up_are_kept_alive(image: Item, data: st.DataObject) -> None:
    """Two debits shaped from one image may outgrow its ``ttl`` together; ``prolong`` moves it."""
    terms = Terms(rates_of(image), number(image, "cv"), data.draw(st.integers(1, 7)))
    payer = account(terms)
    now_ms = data.draw(instants(image, early=False))
    name = data.draw(st.sampled_from(sorted(terms.rates)))
    debit = Posting(debit={name: data.draw(st.integers(1, 50 * terms.rates[name].capacity_milli))})
    write, item = write_for(payer, debit, image, now_ms), image
    assert write is not None
    for _ in range(2):
        outcome = apply(write, item)
        if outcome.applied:
            assert outcome.item is not None
            item = outcome.item
            rescue = prolong(terms, KEY, item, now_ms)
            assert rescue is None or not lasts(terms, item, now_ms), "a glance must not miss it"
            if rescue is not None:
                saved = apply(rescue, item)
                assert saved.applied
                assert saved.item is not None
                item = saved.item
    assert disappears_full(item)
    assert number(item, "ttl") >= number(image, "ttl")


def test_a_bucket_with_a_foreign_ttl_disappears_full_too() -> None:
    """One process keeps buckets for a while, another for ever: neither may lose what the other spent."""
    rate = Rate(10_000, 1000, 1000)
    image = {"rf": NOW, "cv": 1, "ttl": NOW // 1000 + 1}
    image |= dict(zip(limit_attributes("a"), (10_000, *rate[:3], 0), strict=True))
    write = write_for(account(Terms({"a": rate})), Posting(need={"a": 10_000}), image, NOW)
    assert write is not None
    outcome = apply(write, image)
    assert outcome.item is not None
    assert disappears_full(outcome.item)


# What a demand finds.


@given(st.none() | images(), st.data())
@settings(max_examples=60)
def test_a_level_is_what_the_next_write_finds(image: Item | None, data: st.DataObject) -> None:
    """A need is within the level exactly when the write of that need is applied."""
    terms = data.draw(terms_of(image).filter(lambda terms: not is_outdated(terms, image)))
    now_ms = data.draw(instants(image, early=False)) + 1
    name = data.draw(st.sampled_from(sorted(terms.rates)))
    need = data.draw(st.integers(1, 2 * terms.rates[name].capacity_milli))
    write = write_for(account(terms), Posting(need={name: need}), image, now_ms)
    assert write is not None
    admitted = apply(write, image).applied
    assert admitted is (level(terms, name, image, now_ms).balance(now_ms) >= need)
    assert fitting([Posting(need={name: need})], terms, image, now_ms) == [admitted]


@given(st.none() | images(), st.data())
@settings(max_examples=60)
def test_a_group_is_decided_in_the_order_of_arrival(image: Item | None, data: st.DataObject) -> None:
    """Those who fit, one after another, fit together; whoever did not would not have fitted alone then."""
    terms = data.draw(terms_of(image).filter(lambda terms: not is_outdated(terms, image)))
    now_ms = data.draw(instants(image, early=False)) + 1
    needs = st.dictionaries(st.sampled_from(sorted(terms.rates)), st.integers(1, 10**5), min_size=1)
    queue = [Posting(need=need) for need in data.draw(st.lists(needs, min_size=1, max_size=5))]
    item = image
    fits = []
    for posting in queue:
        write = write_for(account(terms), posting, item, now_ms)
        assert write is not None
        outcome = apply(write, item)
        fits.append(outcome.applied)
        if outcome.applied:
            item = outcome.item
            now_ms = max(now_ms, number(item or {}, "rf"))
    assume(now_ms == max(now_ms, number(image or {}, "rf") + 1))
    assert fitting(queue, terms, image, now_ms) == fits
    if any(fits):
        together = merged([posting for posting, fit in zip(queue, fits, strict=True) if fit])
        write = write_for(account(terms), together, image, now_ms)
        assert write is not None
        outcome = apply(write, image)
        assert outcome.applied
        assert outcome.item is not None
        assert item is not None
        assert balances(outcome.item, now_ms) == balances(item, now_ms)

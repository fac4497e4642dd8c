"""Manifests at random: few names, so that levels meet, and some that YAML takes for something else."""

from hypothesis import strategies as st

from tests import names
from zae_limiter import Bypass, Limit, LimiterConfig, OnUnavailable
from zae_limiter.models import PERIOD_SECONDS_MAX, TOKENS_MAX
from zae_limiter.models.accruals import period_seconds
from zae_limiter.operate.manifest import LevelAddress, Manifest
from zae_limiter.records.levels import governs

RESOURCES = ("gpt-4", "gpt-4.1", "openai/o1:mini", "on", "limits", "/v1/chat", "$x", "🦄")
ENTITIES = ("user-1", "007", "null", "a:b@c.d", "1e3", "2024-01-01", "capacity", "auth0|a b", "~", "<<", "🦄")
NAMES = ("rpm", "tpm", "y", "capacity", "t.p-m_1")

tokens = st.sampled_from((1, 60, 1_000_000, TOKENS_MAX)) | st.integers(1, TOKENS_MAX)
calendars = st.sampled_from(("month@Europe/Berlin", "day@UTC", "cron(0 6 * * 1)@America/New_York")).map(
    lambda accrual: (period_seconds(accrual), accrual)
)
SCHEDULES = ("600(* 9-16 * * mon-fri)@Europe/Berlin", "5:7(* * * * sat,sun);3(30 2 1 1 *)@UTC")
units = st.sampled_from((None, "usd_micro"))
limits = st.builds(
    lambda found, soft: tuple(
        Limit(name, *of[:5], soft=name in soft, schedule=of[5] if len(of) > 5 else None)
        for name, of in sorted(found.items())
    ),
    st.dictionaries(
        st.sampled_from(NAMES),
        st.tuples(tokens, tokens, st.sampled_from((1, 60)) | st.integers(1, PERIOD_SECONDS_MAX))
        | st.builds(lambda *given: (*given[:2], *given[2], given[3]), tokens, tokens, calendars, units)
        | st.tuples(tokens, tokens, st.just(60), st.none(), units, st.sampled_from(SCHEDULES))
        | st.integers(1, 100).map(lambda seats: (seats, seats, 300, "concurrent"))
        | st.integers(1, 100).map(lambda amount: (amount, amount, 18_000, "session")),
        max_size=3,
    ),
    st.sets(st.sampled_from(NAMES)),
)
policies = st.none() | st.sampled_from(OnUnavailable)
reasons = st.sampled_from(("maintenance until 15:00", "false", "on", "no: #one", " spaced ", "\u00fc"))
switches = st.fixed_dictionaries({}) | st.one_of(
    st.fixed_dictionaries({"disabled": reasons | st.just(False)}),
    st.fixed_dictionaries({"bypass": st.sampled_from(Bypass)}),
)
levels = st.builds(
    lambda limits, policy, cascade, switch: LimiterConfig(limits, policy, cascade=cascade, **switch),
    limits,
    policies,
    st.none() | st.booleans(),
    switches,
).filter(governs)
resources = st.sampled_from(RESOURCES) | names.resources
entities = st.sampled_from(ENTITIES) | names.entities
places = (
    st.just(LevelAddress("system"))
    | st.builds(LevelAddress, st.just("resource"), st.none(), resources)
    | st.builds(LevelAddress, st.just("entity"), entities, resources | st.just("_default_"))
)
wanted = st.dictionaries(places, levels, max_size=8)
manifests = st.builds(Manifest, wanted, st.none() | st.sampled_from(("team-a", "1.5", "no")))

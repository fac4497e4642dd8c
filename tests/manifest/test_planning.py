"""Wanted and stored make a plan, a plan makes steps: nothing here touches a store."""

from hypothesis import given
from hypothesis import strategies as st

from tests.manifest.wishes import levels, manifests, places
from zae_limiter import Limit, LimiterConfig
from zae_limiter.operate.manifest import Action, Manifest, Place
from zae_limiter.operate.manifest.model import Stored
from zae_limiter.operate.manifest.planning import Forget, Remove, Set, plan, revised, says_the_same, steps

RPM, TPM = Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 600)
A, B, C, D, E = (Place("resource", None, name) for name in "ABCDE")

lives = st.sampled_from((None, "life-1", "life-2"))
stores = st.dictionaries(places, st.builds(Stored, levels, lives), max_size=8)
claimed = st.dictionaries(places, st.sampled_from(("life-1", "life-2")), max_size=8)


def test_every_kind_of_change() -> None:
    """Made, changed, kept, deleted if it was ours, and left alone if it was not."""
    rpm, both = LimiterConfig((RPM,)), LimiterConfig((TPM, RPM))
    manifest = Manifest({A: rpm, B: rpm, C: both})
    stored = {
        B: Stored(both, "life-b"),
        C: Stored(LimiterConfig((RPM, TPM), strict_version=True, config_version=7), "life-c"),
        D: Stored(rpm, "life-d"),
        E: Stored(rpm, "life-e"),
    }
    made = plan(manifest, stored, {D: "life-d", E: "an earlier life"})
    assert [(change.action, change.place) for change in made.changes] == [
        (Action.CREATE, A),
        (Action.UPDATE, B),
        (Action.DELETE, D),
    ]
    assert made.counts == {"created": 1, "updated": 1, "deleted": 1, "unchanged": 1}
    assert made.lapsed == {E: "an earlier life"}
    everything = plan(manifest, stored, {D: "life-d"}, everything=True)
    assert [change.place for change in everything.changes if change.action is Action.LEAVE] == [E]
    assert everything.counts == made.counts


def test_steps_make_before_they_remove() -> None:
    """Limits that move from one level to another are there all the time."""
    rpm = LimiterConfig((RPM,))
    system = Place("system")
    made = plan(Manifest({A: rpm}), {system: Stored(rpm, "life")}, {system: "life", B: "gone"})
    assert [type(step) for step in steps(made)] == [Set, Remove, Forget]


@given(manifests, stores, claimed)
def test_a_plan_leads_to_what_is_wanted(
    manifest: Manifest, stored: dict[Place, Stored], claims: dict[Place, str]
) -> None:
    """Carried out, nothing is left to do, and nothing is gone but what an apply had made."""
    after, left = dict(stored), dict(claims)
    for step in steps(plan(manifest, stored, claims)):
        match step:
            case Set(place=place, config=config):
                if place not in after:
                    left[place] = "life-3"
                after[place] = Stored(config, after[place].born if place in after else "life-3")
            case Remove(place=place, born=born):
                assert after[place].born == born == left[place]
                del after[place], left[place]
            case Forget(place=place, born=born):
                assert left[place] == born
                del left[place]
    for place, config in manifest.levels.items():
        assert says_the_same(after[place].config, config)
    for place in stored.keys() - after.keys():
        assert claims[place] == stored[place].born
    for place in stored.keys() & after.keys() - manifest.levels.keys():
        assert after[place] == stored[place]
        assert claims.get(place) != stored[place].born or stored[place].born is None
    again = plan(manifest, after, left)
    assert again.is_empty
    assert steps(again) == []


@given(levels, levels)
def test_a_level_keeps_what_a_manifest_cannot_say(before: LimiterConfig, wanted: LimiterConfig) -> None:
    """The rest of the level stays as it is, and a level that is right already is left."""
    held = LimiterConfig(before.limits, before.on_unavailable, False, True, 5)
    after = revised(held, wanted)
    if after is None:
        assert says_the_same(before, wanted)
    else:
        assert says_the_same(after, wanted)
        assert (after.auto_update, after.strict_version, after.config_version) == (False, True, 5)

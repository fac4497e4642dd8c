"""Wanted and stored make a plan: nothing here touches a store."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.manifest.wishes import levels, manifests, places
from zae_limiter import Limit, LimiterConfig
from zae_limiter.operate.manifest import Action, LevelAddress, Manifest
from zae_limiter.operate.manifest.model import StoredLevel, plan, revised, says_the_same

RPM, TPM = Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 600)
A, B, C, D, E = (LevelAddress("resource", None, name) for name in "ABCDE")

lives = st.sampled_from((None, "life-1", "life-2"))
stores = st.dictionaries(places, st.builds(StoredLevel, levels, lives), max_size=8)
claimed = st.dictionaries(places, st.sampled_from(("life-1", "life-2")), max_size=8)


def test_every_kind_of_change() -> None:
    """Made, changed, kept, deleted if it was ours, and left alone if it was not."""
    rpm, both = LimiterConfig((RPM,)), LimiterConfig((TPM, RPM))
    manifest = Manifest({A: rpm, B: rpm, C: both})
    stored = {
        B: StoredLevel(both, "life-b"),
        C: StoredLevel(LimiterConfig((RPM, TPM), strict_version=True, config_version=7), "life-c"),
        D: StoredLevel(rpm, "life-d"),
        E: StoredLevel(rpm, "life-e"),
    }
    made = plan(manifest, stored, {D: "life-d", E: "an earlier life"})
    assert [(change.action, change.address) for change in made.changes] == [
        (Action.CREATE, A),
        (Action.UPDATE, B),
        (Action.DELETE, D),
    ]
    assert made.counts == {"created": 1, "updated": 1, "deleted": 1, "unchanged": 1}
    assert made.lapsed == {E: "an earlier life"}
    everything = plan(manifest, stored, {D: "life-d"}, everything=True)
    assert [change.address for change in everything.changes if change.action is Action.LEAVE] == [E]
    assert everything.counts == made.counts


def test_steps_make_before_they_remove() -> None:
    """Limits that move from one level to another are there all the time."""
    rpm = LimiterConfig((RPM,))
    system = LevelAddress("system")
    made = plan(Manifest({A: rpm}), {system: StoredLevel(rpm, "life")}, {system: "life", B: "gone"})
    assert [change.action for change in made.changes] == [Action.DELETE, Action.CREATE]
    assert [change.action for change in made.steps] == [Action.CREATE, Action.DELETE]
    assert made.lapsed == {B: "gone"}


def switch_of(level: StoredLevel | None) -> tuple[object, ...]:
    return (None, None) if level is None else (level.config.disabled, level.config.bypass)


@given(manifests, stores, claimed)
def test_a_plan_leads_to_what_is_wanted(
    manifest: Manifest, stored: dict[LevelAddress, StoredLevel], claims: dict[LevelAddress, str]
) -> None:
    """Carried out, nothing is left to do, and nothing is gone but what an apply had made."""
    after, left = dict(stored), dict(claims)
    planned = plan(manifest, stored, claims)
    for change in planned.steps:
        place = change.address
        if change.action is Action.DELETE:
            assert after[place].born == change.born == left[place]
            if change.after is None:
                del after[place], left[place]
            else:
                after[place] = StoredLevel(change.after, change.born)
        else:
            assert change.after is not None
            if place not in after:
                left[place] = "life-3"
            after[place] = StoredLevel(change.after, after[place].born if place in after else "life-3")
    for place, born in planned.lapsed.items():
        assert left[place] == born
        del left[place]
    for place, config in manifest.levels.items():
        assert revised(after[place].config, config) is None
        assert switch_of(after[place]) == switch_of(
            StoredLevel(config) if config.has_switch else stored.get(place)
        )
    for place in stored.keys() - after.keys():
        assert claims[place] == stored[place].born
    for place in stored.keys() - manifest.levels.keys():
        assert switch_of(after.get(place)) == switch_of(stored[place])
    for place in stored.keys() & after.keys() - manifest.levels.keys():
        if claims.get(place) == stored[place].born is not None:
            assert revised(after[place].config, LimiterConfig()) is None
        else:
            assert after[place] == stored[place]
    again = plan(manifest, after, left)
    assert (again.changes, again.lapsed) == ((), {})


@given(levels, levels)
def test_a_level_keeps_what_a_manifest_cannot_say(before: LimiterConfig, wanted: LimiterConfig) -> None:
    """The rest of the level stays as it is, and a level that is right already is left."""
    held = replace(before, auto_update=False, strict_version=True, config_version=5)
    after = revised(held, wanted)
    if not wanted.has_switch:
        wanted = replace(wanted, disabled=before.disabled, bypass=before.bypass)
    if after is None:
        assert says_the_same(before, wanted)
    else:
        assert says_the_same(after, wanted)
        assert (after.auto_update, after.strict_version, after.config_version) == (False, True, 5)

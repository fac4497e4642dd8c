"""Keys say exactly what they were made of, and bucket attributes are read back under any valid name."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import names as valid
from zae_limiter import naming, schema
from zae_limiter.engine.law import Rate
from zae_limiter.exceptions import ValidationError
from zae_limiter.models import NUMBER_MAX, PERIOD_SECONDS_MAX, BucketState, Limit
from zae_limiter.records.items import bucket_states, config_attributes, config_limits
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.schema import (
    BucketAddress,
    bucket_limit_names,
    limit_attributes,
    number,
    parse_bucket_pk,
    pk_bucket,
    starting,
    stored_rate,
    within_namespace,
)


def names(pattern: str) -> st.SearchStrategy[str]:
    return st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True)


NAMES = {
    "namespace": names(r"[A-Za-z0-9_-]{11}"),
    "entity": valid.entities,
    "audited": valid.entities | st.just("$SYSTEM") | valid.resources.map("$RESOURCE:{}".format),
    "resource": valid.resources,
    "level": valid.resources | st.just("_default_"),
    "name": names(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}"),
    "shard": st.integers(0, 31),
    "event": names(r"[0-9A-HJKMNP-TV-Z]{26}"),
    "window": st.sampled_from(("hourly", "daily", "monthly")),
    "window_key": st.sampled_from(("2024-01-01T14:00:00Z", "2024-01-01", "2024-01")),
}
limit_names = names(r"[A-Za-z][A-Za-z0-9_.\-]{0,63}").filter(lambda name: name != naming.WCU)

BUILDERS: dict[Callable[..., str], tuple[str, str]] = {
    # The text that each builder makes, and by which names its arguments go.
    schema.pk_system: ("{}/SYSTEM#", "namespace"),
    schema.pk_resource: ("{}/RESOURCE#{}", "namespace resource"),
    schema.pk_entity: ("{}/ENTITY#{}", "namespace entity"),
    schema.pk_bucket: ("{}/BUCKET#{}#{}#{}", "namespace entity resource shard"),
    schema.pk_audit: ("{}/AUDIT#{}", "namespace audited"),
    schema.sk_meta: ("#META", ""),
    schema.sk_state: ("#STATE", ""),
    schema.sk_config: ("#CONFIG#{}", "level"),
    schema.sk_entity_configs: ("#ENTITY_CONFIGS", ""),
    schema.sk_usage: ("#USAGE#{}#{}", "resource window_key"),
    schema.sk_audit: ("#AUDIT#{}", "event"),
    schema.sk_version: ("#VERSION", ""),
    schema.sk_namespace: ("#NAMESPACE#{}", "name"),
    schema.sk_nsid: ("#NSID#{}", "namespace"),
    schema.sk_claim: ("#CLAIM#{}#{}#{}", "name entity level"),
    schema.gsi1_pk_parent: ("{}/PARENT#{}", "namespace entity"),
    schema.gsi1_sk_child: ("CHILD#{}", "entity"),
    schema.gsi2_pk_resource: ("{}/RESOURCE#{}", "namespace resource"),
    schema.gsi2_sk_bucket: ("BUCKET#{}#{}", "entity shard"),
    schema.gsi2_sk_usage: ("USAGE#{}#{}#{}", "window window_key entity"),
    schema.gsi3_pk_entity_config: ("{}/ENTITY_CONFIG#{}", "namespace level"),
    schema.gsi3_pk_entity: ("{}/ENTITY#{}", "namespace entity"),
    schema.gsi3_sk_bucket: ("BUCKET#{}#{}", "resource shard"),
    schema.gsi3_pk_entities: ("{}/ENTITIES", "namespace"),
}

every_builder = pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)


def read_back(template: str, text: str) -> list[str]:
    """The parts of a key, cut where the template says; no part may hold a ``#``."""
    pattern = re.escape(template).replace(r"\{\}", "([^#]*?)").replace(r"\#", "#")
    found = re.fullmatch(pattern, text)
    assert found is not None, f"{text!r} does not look like {template!r}"
    return list(found.groups())


def test_the_table_of_builders_is_complete() -> None:
    """Every function that makes key text is in the table above."""
    made = {f for n, f in vars(schema).items() if re.match(r"(pk|sk|gsi\d_pk|gsi\d_sk)_", n)}
    assert made == set(BUILDERS)


@every_builder
@given(data=st.data())
@settings(max_examples=30)
def test_keys_are_read_back(build: Callable[..., str], data: st.DataObject) -> None:
    """For all valid names a key has the documented text, and its parts can be told apart again.

    So no two sets of names share a key.
    """
    template, arguments = BUILDERS[build]
    given_names = [data.draw(NAMES[argument]) for argument in arguments.split()]
    text = build(*given_names)
    assert text == template.format(*given_names)
    assert read_back(template, text) == [str(name) for name in given_names]


def test_records_of_the_whole_store() -> None:
    """They belong to no namespace, and each has a place of its own."""
    registry = {
        schema.version_key(): "#VERSION",
        schema.migration_key(): "#MIGRATION",
        schema.changes_key(): "#CHANGES",
        schema.namespace_key("a"): "#NAMESPACE#a",
        schema.nsid_key("a"): "#NSID#a",
        schema.checkpoint_key("a"): "#CHECKPOINT#a",
    }
    assert {key: key.sort for key in registry} == registry
    assert {key.partition for key in registry} == {"_/SYSTEM#"}


@given(*(NAMES[part] for part in ("namespace", "entity", "resource", "shard")))
@settings(max_examples=50)
def test_kinds_of_records_do_not_meet(namespace: str, entity: str, resource: str, shard: int) -> None:
    """Under one name an entity, a resource, a bucket, an audit trail and the system are different items."""
    keys = [
        schema.entity_key(namespace, entity),
        schema.entity_config_key(namespace, entity, resource),
        schema.entity_config_key(namespace, entity, naming.DEFAULT_RESOURCE),
        schema.resource_config_key(namespace, resource),
        schema.system_config_key(namespace),
        schema.bucket_key(namespace, entity, resource, shard),
        Key(schema.pk_audit(namespace, entity), schema.sk_audit("1")),
        Key(schema.pk_audit(namespace, schema.SYSTEM_AUDIT), schema.sk_audit("1")),
        Key(schema.pk_entity(namespace, entity), schema.sk_usage(resource, "2024-01")),
        Key(schema.pk_resource(namespace, resource), schema.sk_entity_configs()),
    ]
    assert len(set(keys)) == len(keys)
    assert all(key.partition.startswith(f"{namespace}/") and key.sort.startswith("#") for key in keys)
    for key in keys:
        assert within_namespace(namespace, key) == {"GSI4PK": namespace, "GSI4SK": key.partition}


@given(*(NAMES[part] for part in ("namespace", "entity", "resource", "shard")))
def test_a_bucket_key_is_parsed(namespace: str, entity: str, resource: str, shard: int) -> None:
    """``parse_bucket_pk`` reads what ``pk_bucket`` wrote, for every valid name."""
    address = BucketAddress(namespace, entity, resource, shard)
    assert parse_bucket_pk(pk_bucket(*address)) == address


pieces = st.sampled_from(
    (
        "ns",
        "/",
        "BUCKET",
        "#",
        "/BUCKET#",
        "0",
        "00",
        "07",
        "1",
        "a",
        "b",
        " ",
        "$SYSTEM",
        "_default_",
        "\n",
        "٣",
    )
)


@given(
    st.lists(pieces | valid.names, max_size=12).map("".join)
    | st.tuples(NAMES["namespace"], valid.names, valid.names, pieces).map(
        lambda parts: "{}/BUCKET#{}#{}#{}".format(*parts)
    )
)
def test_what_is_parsed_is_what_was_written(pk: str) -> None:
    """A text is the key of one bucket at most, and no other text is the key of that one."""
    try:
        address = parse_bucket_pk(pk)
    except ValidationError:
        return
    assert pk_bucket(*address) == pk


@given(st.tuples(*(NAMES[part] for part in ("namespace", "entity", "resource", "shard"))), st.data())
def test_a_bucket_key_is_the_key_of_nothing_else(address: tuple[Any, ...], data: st.DataObject) -> None:
    """No other names and no other kind of record have it, whatever separators the names hold."""
    pk = pk_bucket(*address)
    for build, (_, arguments) in BUILDERS.items():
        names_of_it = [data.draw(NAMES[argument]) for argument in arguments.split()]
        if build is pk_bucket:
            assert (build(*names_of_it) == pk) is (tuple(names_of_it) == address)
        else:
            assert build(*names_of_it) != pk


@given(NAMES["namespace"], NAMES["entity"], NAMES["resource"])
def test_keys_of_the_longest_names_fit(namespace: str, entity: str, resource: str) -> None:
    """DynamoDB takes 2,048 bytes in a partition key and 1,024 in a sort key."""
    for entity_id, of in ((entity, resource), ("🦄" * 125, "🦄" * 125), ("x" * 256, "é" * 250)):
        parts = {"entity": entity_id, "resource": of, "level": of, "namespace": "n" * 64, "shard": 31}
        parts |= {"audited": f"$RESOURCE:{of}", "name": "resource", "window": "monthly", "event": "0" * 26}
        parts |= {"window_key": "2024-01-01T14:00:00Z"}
        for build, (_, arguments) in BUILDERS.items():
            text = build(*(parts[argument] for argument in arguments.split()))
            bytes_max = 2048 if "pk_" in build.__name__ else 1024
            assert len(text.encode()) <= bytes_max, text
    assert naming.validate_entity_id(entity) == schema.entity_id_of(schema.entity_key(namespace, entity))


@pytest.mark.parametrize(
    "pk",
    [
        "",
        "ns",
        "ns/ENTITY#e",
        "ns/BUCKET",
        "ns/BUCKET#e",
        "ns/BUCKET#e#r",
        "ns/BUCKET#e#r#",
        "ns/BUCKET#e#r#x",
        "ns/BUCKET#e#r#-1",
        "ns/BUCKET#e#r#1.0",
        "ns/BUCKET#e#r#00",
        "ns/BUCKET#e#r#01",
        "ns/BUCKET#e#r#0#0",
        "ns/BUCKETS#e#r#0",
    ],
)
def test_what_is_no_bucket_key_is_not_parsed(pk: str) -> None:
    """The error shows the key and the form that was expected."""
    with pytest.raises(ValidationError) as caught:
        parse_bucket_pk(pk)
    form = "{namespace}/BUCKET#{entity}#{resource}#{shard}"
    assert str(caught.value) == f"invalid bucket key {pk!r}: expected {form!r}"


@pytest.mark.parametrize(
    ("prefix", "sort", "inside"),
    [
        ("#CONFIG#", "#CONFIG#gpt-4", True),
        ("#CONFIG#", "#CONFIG#", True),
        ("#CONFIG#", "#CONFIG#zzz\U0010fffe", True),
        ("#CONFIG#", "#CONFIG", False),
        ("#CONFIG#", "#CONFIG_VERSION", False),
        ("#USAGE#", "#USAGF", False),
        ("", "anything", True),
    ],
)
def test_a_prefix_is_a_range(prefix: str, sort: str, inside: bool) -> None:
    """``starting`` holds the sort keys that start so, and no others."""
    assert starting("p", prefix).accepts(sort, Key("p", sort)) is inside


# Limits in a bucket.

STRANGE_NAMES = [
    "a", "a_tk", "a_tk_tk", "a_cp", "tk", "cp", "b", "b_a", "b_a_tk", "ttl", "rf", "cv", "entity_id",
    "tokens.in", "a-b", "a.b", "A", "GSI2PK", "x" * 64,
]  # fmt: skip
BESIDE: Item = {
    "entity_id": "user-1",
    "resource": "gpt-4",
    "rf": 1000,
    "cv": 3,
    "ttl": 99,
    "shard_count": 1,
    "cascade": False,
    "GSI2PK": "x",
}


class Stored(NamedTuple):
    """One limit as a bucket stores it."""

    tk: int
    cp: int
    ra: int
    rp: int
    tc: int


tokens = st.integers(-NUMBER_MAX, NUMBER_MAX)
periods = st.integers(1, PERIOD_SECONDS_MAX * 1000)
numbers = st.builds(Stored, tokens, st.integers(0, 10**15), st.integers(1, 10**15), periods, tokens)


def image_of(limits: dict[str, Stored]) -> dict[str, Any]:
    image = dict(BESIDE)
    for name, stored in limits.items():
        image |= dict(zip(limit_attributes(name), stored, strict=True))
    return image


@given(st.dictionaries(limit_names | st.sampled_from(STRANGE_NAMES), numbers, max_size=8))
@settings(max_examples=50)
def test_a_bucket_gives_back_the_limits_it_was_given(limits: dict[str, Stored]) -> None:
    """Whatever valid names share a bucket, each keeps its five numbers and no other limit appears."""
    image = image_of(limits)
    assert len(image) == len(BESIDE) + 5 * len(limits)
    assert sorted(bucket_limit_names(image)) == sorted(limits)
    assert {name: stored_rate(image, name) for name in limits} == {
        n: Rate(*s[1:4]) for n, s in limits.items()
    }
    assert sorted(bucket_states(image), key=lambda state: state.limit_name) == [
        BucketState("user-1", "gpt-4", name, s.tk, 1000, s.cp, s.ra, s.rp, s.tc)
        for name, s in sorted(limits.items())
    ]


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_strange_names_share_a_bucket(name: str) -> None:
    """A name that looks like an attribute, ours or another limit's, is a name like any other."""
    stored = Stored(1, 2, 3, 4, 5)
    image = image_of({other: Stored(9, 9, 9, 9, 9) for other in STRANGE_NAMES} | {name: stored})
    assert Stored(*(image[attribute] for attribute in limit_attributes(name))) == stored
    assert sorted(bucket_limit_names(image)) == sorted(STRANGE_NAMES)
    assert {a: image[a] for a in BESIDE} == BESIDE


@pytest.mark.parametrize(
    "leftover",
    [
        {"b_x_tk": 1},
        {"b_x_cp": 1, "b_x_ra": 1, "b_x_rp": 1, "b_x_tc": 1},
        {"b_x_tk": 1.0, "b_x_cp": 1, "b_x_ra": 1, "b_x_rp": 1, "b_x_tc": 1},
        {"b_x_tk": True, "b_x_cp": 1, "b_x_ra": 1, "b_x_rp": 1, "b_x_tc": 1},
        {"b_x_tk": "1", "b_x_cp": 1, "b_x_ra": 1, "b_x_rp": 1, "b_x_tc": 1},
        {"b__tk": 1, "b__cp": 1, "b__ra": 1, "b__rp": 1, "b__tc": 1},
        {"b_tk": 1},
        {"x_tk": 1, "x_cp": 1, "x_ra": 1, "x_rp": 1, "x_tc": 1},
    ],
    ids=str,
)
def test_leftovers_are_no_limit(leftover: dict[str, Any]) -> None:
    """A limit that lacks a number, or has one that is none, is not there."""
    whole = Stored(1, 2, 3, 4, 5)
    assert bucket_limit_names({**image_of({"a": whole}), **leftover}) == ["a"]


@pytest.mark.parametrize("attribute", ["cp", "ra", "rp"])
@pytest.mark.parametrize("value", [None, "1", 1.0, True])
def test_half_a_rate_is_none(attribute: str, value: Any) -> None:
    """A rate needs all of its numbers."""
    image = image_of({"a": Stored(1, 2, 3, 4, 5)})
    image[f"b_a_{attribute}"] = value
    assert stored_rate(image, "a") is None


@pytest.mark.parametrize("attribute", ["ra", "rp"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_rate_divides_by_nothing_that_is_zero(attribute: str, value: int) -> None:
    """A stored refill of zero cannot be counted with, so it is no rate."""
    assert stored_rate({**image_of({"a": Stored(1, 2, 3, 4, 5)}), f"b_a_{attribute}": value}, "a") is None


@pytest.mark.parametrize(
    ("item", "found"), [({"n": 5}, 5), ({}, 7), ({"n": "5"}, 7), ({"n": 5.0}, 7), ({"n": True}, 7)]
)
def test_numbers_are_integers_or_the_default(item: Item, found: int) -> None:
    """What is no integer counts as not there."""
    assert number(item, "n", 7) == found


# Limits in a config record.

tokens = st.integers(1, 10**12)


@given(
    st.dictionaries(
        limit_names | st.sampled_from(STRANGE_NAMES), st.tuples(tokens, tokens, st.integers(1, 86400))
    )
)
@settings(max_examples=50)
def test_a_config_record_gives_back_its_limits(numbers_by_name: dict[str, tuple[int, int, int]]) -> None:
    """Under any valid names, in the order of the names, whatever stands beside them."""
    limits = [Limit(name, *of) for name, of in numbers_by_name.items()]
    beside: Item = {"on_unavailable": "allow", "config_version": 3, "resource": "gpt-4", "GSI4PK": "x"}
    item = {**beside, **config_attributes(limits)}
    assert len(item) == len(beside) + 3 * len(limits)
    assert config_limits(item) == tuple(sorted(limits, key=lambda limit: limit.name))


@pytest.mark.parametrize(
    "broken",
    [{"l_a_ra": None}, {"l_a_ra": "1"}, {"l_a_cp": 0}, {"l_a_rp": 1.0}, {"l_a_so": 2}, {"l_a_so": "1"}],
    ids=str,
)
def test_a_broken_limit_in_a_config_record_is_an_error(broken: dict[str, Any]) -> None:
    """A limit is not ignored because somebody misspelt it: that would lift it."""
    with pytest.raises(ValidationError, match="of 'a'"):
        config_limits({**config_attributes([Limit("a", 1, 1, 1)]), **broken})

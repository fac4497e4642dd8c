"""What somebody meets in Python who is new to it: forgotten words, swapped arguments, and help."""

import asyncio
import inspect
import pickle
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

from zae_limiter import (
    Limit,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.sync_lease import SyncAcquisition

RPM = Limit.per_minute("rpm", 60)


def test_help_of_acquire_tells_the_parameters_and_what_comes_of_it() -> None:
    """The sync one gives a sync acquisition, and every parameter is explained in both."""
    signature = inspect.signature(SyncRateLimiter.acquire)
    assert signature.return_annotation is SyncAcquisition
    assert list(signature.parameters) == list(inspect.signature(RateLimiter.acquire).parameters)
    for method in (RateLimiter.acquire, SyncRateLimiter.acquire):
        for name in set(signature.parameters) - {"self"}:
            assert f"- ``{name}``: " in (method.__doc__ or "")


class Name(str, Enum):  # noqa: UP042 - as many programs have it
    """Names as programs keep them; how such a member is formatted depends on the version of Python."""

    KEY = "key-1"
    TEAM = "team"
    MODEL = "gpt-4"
    LIMIT = "rpm"


@pytest.mark.parametrize("plain_first", [True, False])
def test_members_of_an_enumeration_are_the_names_that_they_are(
    plain_first: bool, sync_limiter: SyncRateLimiter
) -> None:
    """Whichever of a process comes first, a member is charged to the bucket of its text."""
    key, team, model, limit = (str.__str__(name) if plain_first else name for name in Name)
    sync_limiter.create_entity(team)
    sync_limiter.create_entity(key, parent_id=team, cascade=True)
    sync_limiter.set_resource_defaults(model, [Limit.per_hour(limit, 10)])
    for names in ((Name.KEY, Name.MODEL, Name.LIMIT), ("key-1", "gpt-4", "rpm")):
        with sync_limiter.acquire(names[0], names[1], {names[2]: 4}):
            pass
        assert sync_limiter.get_entity(names[0]) is not None
    with pytest.raises(RateLimitExceeded), sync_limiter.acquire("key-1", "gpt-4", {"rpm": 4}):
        pass
    assert sync_limiter.available("team", "gpt-4") == {"rpm": 2}


def test_an_acquire_that_was_not_entered_says_so() -> None:
    """Nothing was taken, and whoever takes it for a lease is told how to get one."""

    async def work() -> None:
        async with RateLimiter.open("memory://") as limiter:
            acquisition = limiter.acquire("key-1", "gpt-4", {"rpm": 2}, [RPM])
            assert repr(acquisition) == "<Acquisition of {'rpm': 2} by 'key-1' on 'gpt-4', not entered>"
            with pytest.raises(AttributeError, match=r"'consumed': enter it first, `async with limiter\.acq"):
                acquisition.consumed  # type: ignore[attr-defined]  # noqa: B018
            with pytest.raises(AttributeError, match=r"'_private'$"):
                acquisition._private  # type: ignore[attr-defined]  # noqa: B018
            async with acquisition:
                assert repr(acquisition).endswith(", entered>")

    asyncio.run(work())


def test_the_same_in_sync_code() -> None:
    """With the words of sync code."""
    with SyncRateLimiter.open("memory://") as limiter:
        acquisition = limiter.acquire("key-1", "gpt-4", {"rpm": 2}, [RPM])
        assert repr(acquisition) == "<SyncAcquisition of {'rpm': 2} by 'key-1' on 'gpt-4', not entered>"
        with pytest.raises(AttributeError, match=r"'adjust': enter it first, `with limiter\.acquire"):
            acquisition.adjust(rpm=1)  # type: ignore[attr-defined]
        with acquisition:
            pass


@pytest.mark.parametrize("limiter", [RateLimiter, SyncRateLimiter])
def test_an_acquire_that_nobody_enters_is_no_answer_and_warns(limiter: type) -> None:
    """Whoever forgets ``with`` would be limited by nothing, and not know."""
    if limiter is RateLimiter:
        opened: Any = RateLimiter(asyncio.run(Repository.open(store="memory://")))
    else:
        opened = SyncRateLimiter.open("memory://")
    acquisition = opened.acquire("key-1", "gpt-4", {"rpm": 2}, [RPM])
    with pytest.raises(TypeError, match=r"is no answer: enter it, `(async )?with limiter\.acquire"):
        bool(acquisition)
    told = r"of {'rpm': 2} by 'key-1' on 'gpt-4', not entered> took nothing: .*`\.open\(\)`, there `await`"
    with pytest.warns(RuntimeWarning, match=told):
        del acquisition


def test_a_limiter_that_was_not_opened_says_so() -> None:
    """Neither awaited nor entered; its URL is shown without secrets."""
    opening = RateLimiter.open("dynamodb://me:secret@limits?key=AKIA")
    assert repr(opening) == "<RateLimiter to be opened on 'dynamodb://…@limits?key=…': enter or await it>"
    with pytest.raises(AttributeError, match=r"'acquire': enter it first, `async with RateLimiter\.open"):
        opening.acquire  # type: ignore[attr-defined]  # noqa: B018
    assert repr(RateLimiter.open()) == "<RateLimiter to be opened: enter or await it>"


def test_a_builder_shows_what_it_was_told() -> None:
    """Without secrets, and without what may hold some."""
    builder = SyncRepository.builder().store("dynamodb://me:secret@limits").on_unavailable("allow")
    builder = builder.endpoint_url("http://me:secret@host").config_cache_ttl(5).tags({"token": "secret"})
    assert repr(builder.session(object())) == (
        "<SyncRepositoryBuilder told store='dynamodb://…@limits', on_unavailable='allow', "
        "endpoint_url='http://…@host', config_cache_ttl=5, tags=…, session=…>"
    )
    assert repr(Repository.builder()) == "<RepositoryBuilder told nothing>"


def test_a_builder_that_was_not_built_says_so() -> None:
    """In the words of its colour; what no repository has is just missing."""
    with pytest.raises(AttributeError, match=r"'set_limits': build it first, `await builder\.build\(\)`$"):
        Repository.builder().set_limits  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"'set_limits': build it first, `builder\.build\(\)`$"):
        SyncRepository.builder().set_limits  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"'frobnicate'$"):
        Repository.builder().frobnicate  # type: ignore[attr-defined]  # noqa: B018


SWAPPED: dict[str, Callable[[SyncRateLimiter], object]] = {
    "set_resource_defaults(resource, limits)": lambda limiter: limiter.set_resource_defaults(
        [RPM],  # type: ignore[arg-type]
        "gpt-4",  # type: ignore[arg-type]
    ),
    "set_limits(entity_id, limits, resource)": lambda limiter: limiter.set_limits(
        "key-1",
        "gpt-4",  # type: ignore[arg-type]
        [RPM],  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("order", SWAPPED)
def test_swapped_arguments_are_told(order: str) -> None:
    """With the order they have."""
    with SyncRateLimiter.open("memory://") as limiter, pytest.raises(ValidationError) as refused:
        SWAPPED[order](limiter)
    assert str(refused.value) == f"invalid limits 'gpt-4': the arguments are in another order: {order}"
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


FORMER_IN_SYNC: dict[str, Callable[[], object]] = {
    "SyncRateLimiter(name=)": lambda: SyncRateLimiter(name="limits"),  # type: ignore[arg-type]
    "SyncRateLimiter(auto_update=)": lambda: SyncRateLimiter(auto_update=True),  # type: ignore[arg-type]
    "SyncRepository.open(auto_update=)": lambda: SyncRepository.open(auto_update=True),  # type: ignore[call-arg]
    "SyncRepository()": lambda: SyncRepository("limits"),  # type: ignore[arg-type]
    "SyncRateLimiter()": lambda: SyncRateLimiter("limits"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", FORMER_IN_SYNC)
def test_what_sync_classes_say_names_sync_classes(call: str) -> None:
    """Nobody who writes sync code is sent to an async class, or told to await."""
    with pytest.raises((TypeError, ValidationError)) as refused:
        FORMER_IN_SYNC[call]()
    said = str(refused.value)
    assert "SyncRepository." in said
    assert "Repository." not in said.replace("SyncRepository.", "")
    assert "await" not in said

"""The tree of exceptions, what each carries, and what each says."""

import copy
import importlib
import json
import math
import pickle
import pkgutil
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import zae_limiter
from zae_limiter import exceptions
from zae_limiter.exceptions import (
    RETRY_NEVER_HEADER_SECONDS,
    ClosedError,
    DamagedRecordError,
    EntityConflictError,
    EntityError,
    EntityExistsError,
    EntityNotFoundError,
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    InvalidIdentifierError,
    InvalidNameError,
    LeaseExpiredError,
    NamespaceNotFoundError,
    NamespaceStateError,
    NoLimitsError,
    PermissionDenied,
    RateLimitError,
    RateLimiterUnavailable,
    RateLimitExceeded,
    ResourceDisabled,
    StackAlreadyExistsError,
    StackOperationError,
    SwitchedOff,
    ValidationError,
    VersionError,
    VersionMismatchError,
    ZAELimiterError,
)
from zae_limiter.models import Limit, LimitStatus

TREE: dict[type[Exception], set[type[Exception]]] = {
    ZAELimiterError: {
        RateLimitError,
        InfrastructureError,
        EntityError,
        VersionError,
        ClosedError,
        ValidationError,
    },
    RateLimitError: {RateLimitExceeded, SwitchedOff, LeaseExpiredError},
    SwitchedOff: {ResourceDisabled, PermissionDenied},
    InfrastructureError: {
        RateLimiterUnavailable,
        StackOperationError,
        StackAlreadyExistsError,
        InfrastructureNotFoundError,
        NamespaceNotFoundError,
        NamespaceStateError,
        DamagedRecordError,
    },
    EntityError: {EntityNotFoundError, EntityExistsError, EntityConflictError},
    VersionError: {VersionMismatchError, IncompatibleSchemaError},
    ValidationError: {InvalidIdentifierError, InvalidNameError, NoLimitsError},
}


def status(
    name: str = "tpm", wait: float = 12.3, *, entity_id: str = "user-1", requested: int = 5
) -> LimitStatus:
    limit = Limit(name, 100, 100, 60)
    return LimitStatus(entity_id, "gpt-4", name, limit, 3, requested, wait > 0, wait)


EVERY: list[ZAELimiterError] = [
    ZAELimiterError("said"),
    RateLimitError("said"),
    RateLimitExceeded([status(), status("rpm", 0.0)]),
    RateLimitExceeded([status(wait=math.inf, requested=101)]),
    LeaseExpiredError("user-1", "gpt-4"),
    SwitchedOff("user-1", "gpt-4", "maintenance", "system"),
    ResourceDisabled("user-1", "gpt-4", "maintenance", "resource"),
    PermissionDenied("user-1", "gpt-4", "unpaid", "entity_default"),
    PermissionDenied("user-1", "gpt-4", "unpaid", "entity", "team-1"),
    InfrastructureError("said"),
    RateLimiterUnavailable("said"),
    RateLimiterUnavailable("said", ambiguous=True),
    StackOperationError("said"),
    StackOperationError("said", ["Table (AWS::DynamoDB::Table) it exists"]),
    StackAlreadyExistsError("said"),
    InfrastructureNotFoundError("said"),
    NamespaceNotFoundError("said"),
    NamespaceStateError("said"),
    DamagedRecordError("entity 'a'", "it has no id"),
    EntityError("user-1", "it has children"),
    EntityNotFoundError("user-1"),
    EntityExistsError("user-1", "try another"),
    EntityConflictError("user-1", "version 1 was expected, 2 is stored"),
    VersionError("said"),
    VersionMismatchError("said"),
    IncompatibleSchemaError("said"),
    ClosedError("said"),
    ValidationError("capacity", 0, "it must be at least 1"),
    InvalidIdentifierError("entity_id", "a#b", "'#' is reserved"),
    NoLimitsError("user-1", "gpt-4"),
    InvalidNameError("resource", "a#b", "'#' is reserved"),
]


@pytest.mark.parametrize("parent", TREE, ids=lambda kind: kind.__name__)
def test_the_tree_is_the_documented_one(parent: type[Exception]) -> None:
    """Whoever catches a branch catches what the documentation draws under it, and no more."""
    defined = {kind for kind in vars(exceptions).values() if isinstance(kind, type)}
    assert {kind for kind in defined if parent in kind.__bases__} == TREE[parent]


def test_the_description_shows_the_whole_tree() -> None:
    """The docstring of the module names every exception, next to the one that it refines."""
    described = " ".join((exceptions.__doc__ or "").partition("tree.")[2].partition("Messages")[0].split())
    parents = re.split(r"\s*(\w+): ", described)[1:]
    found = {
        parent: set(named.split(", ")) for parent, named in zip(parents[::2], parents[1::2], strict=True)
    }
    assert found == {kind.__name__: {child.__name__ for child in TREE[kind]} for kind in TREE}


def test_nothing_is_raised_from_outside_the_tree() -> None:
    """Every exception of ours is in the tree; a manifest refines one, for it has many mistakes at once.

    So does whoever asks a service that an endpoint does not have, and a bucket that never holds still.
    """
    for module in pkgutil.walk_packages(zae_limiter.__path__, "zae_limiter."):
        if "dynamodb" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    pending, found = [ZAELimiterError], set()
    while pending:
        pending += (kind := pending.pop()).__subclasses__()
        found.add(kind)
    # Another package may refine them for its own use, and other tests may have imported it.
    ours = {kind for kind in found if kind.__module__.partition(".")[0] == zae_limiter.__name__}
    refined = {kind.__qualname__ for kind in ours if kind.__module__ != exceptions.__name__}
    assert refined == {"Contended", "ManifestError", "NotOffered"}


def test_the_samples_are_complete() -> None:
    """The table above holds every exception of the tree."""
    tree = {ZAELimiterError, *(child for children in TREE.values() for child in children)}
    assert {type(error) for error in EVERY} == tree


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_exception_crosses_processes(error: ZAELimiterError, protocol: int) -> None:
    """A pickled exception has the same type, message and data; a copied one too."""
    for other in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_bad_input_is_a_value_error() -> None:
    """Code that knows nothing of us may catch ``ValueError``."""
    assert issubclass(ValidationError, ValueError)
    assert not issubclass(RateLimitExceeded, ValueError)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RateLimitExceeded([status()]), "Rate limit exceeded for user-1/gpt-4: [tpm]. Retry after 12.3s"),
        (
            RateLimitExceeded([status("rpm", 1.0), status("ok", 0.0), status("tpm", 30.04)]),
            "Rate limit exceeded for user-1/gpt-4: [rpm, tpm]. Retry after 30.1s",
        ),
        (
            RateLimitExceeded([status(), status(wait=20.0, entity_id="org-1")]),
            "Rate limit exceeded for org-1/gpt-4: [tpm]. Retry after 20.0s",
        ),
        (
            RateLimitExceeded([status(), status("rpm", math.inf, requested=101)]),
            "Rate limit exceeded for user-1/gpt-4: [tpm, rpm]. It can never pass: "
            "101 of 'rpm' requested, its capacity is 100",
        ),
        (
            LeaseExpiredError("user-1", "gpt-4"),
            "the lease of 'user-1' on 'gpt-4' has ended; consume, adjust, settle and release before that",
        ),
        (EntityError("user-1", "it has children"), "entity 'user-1' cannot be changed; it has children"),
        (EntityNotFoundError("user-1"), "entity 'user-1' does not exist"),
        (EntityExistsError("user-1"), "entity 'user-1' already exists"),
        (
            ValidationError("capacity", 0, "it must be at least 1"),
            "invalid capacity 0: it must be at least 1",
        ),
        (
            ValidationError("metadata", "x" * 500, "too long"),
            f"invalid metadata '{'x' * 119}…: too long",
        ),
        (
            ValidationError("capacity", 10**5000, "too large"),
            "invalid capacity <int that cannot be shown>: too large",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_messages_show_the_value_and_the_way_out(error: Exception, message: str) -> None:
    """Each message is built in one place, from the data on the exception."""
    assert str(error) == message


def test_a_refusal_sorts_its_statuses() -> None:
    """``violations`` refused, ``passed`` did not, and the primary one has the longest wait."""
    statuses = (status("a", 1.0), status("b", 0.0), status("c", 7.25), status("d", 7.0))
    error = RateLimitExceeded(statuses)
    assert error.statuses == statuses
    assert [s.limit_name for s in error.violations] == ["a", "c", "d"]
    assert [s.limit_name for s in error.passed] == ["b"]
    assert (error.primary_violation, error.retry_after_seconds) == (statuses[2], 7.25)


def test_a_refusal_needs_somebody_who_refused() -> None:
    """A refusal without a violation is a mistake of ours, not an answer."""
    with pytest.raises(AssertionError):
        RateLimitExceeded([status(wait=0.0)])


@pytest.mark.parametrize(
    ("wait", "header"),
    [
        (0.001, "1"),
        (1.0, "1"),
        (1.001, "2"),
        (12.3, "13"),
        (86_400.0, "86400"),
        (math.inf, str(RETRY_NEVER_HEADER_SECONDS)),
    ],
)
def test_the_header_is_whole_seconds_rounded_up(wait: float, header: str) -> None:
    """A client that obeys ``Retry-After`` never comes too early; never is a year."""
    assert RateLimitExceeded([status(wait=wait)]).retry_after_header == header


def test_the_header_says_what_it_says_of_never() -> None:
    """The number of seconds is in its description."""
    assert f"``{RETRY_NEVER_HEADER_SECONDS}``" in (RateLimitExceeded.retry_after_header.__doc__ or "")


def test_a_refusal_for_logs() -> None:
    """``as_dict`` holds every limit that was checked and is plain JSON."""
    body = RateLimitExceeded([status(), status("rpm", 0.0)]).as_dict()
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    assert body == {
        "error": "rate_limit_exceeded",
        "message": "Rate limit exceeded for user-1/gpt-4: [tpm]. Retry after 12.3s",
        "retry_after_seconds": 12.3,
        "retry_after_ms": 12300,
        "limits": [
            {
                "entity_id": "user-1",
                "resource": "gpt-4",
                "limit_name": name,
                "capacity": 100,
                "refill_amount": 100,
                "refill_period_seconds": 60,
                "available": 3,
                "requested": 5,
                "exceeded": wait > 0,
                "retry_after_seconds": wait,
                "kind": "rate",
                "window_seconds": 60,
                "remaining": 3,
                "reset_after_seconds": 0.0,
                "next_after_seconds": 0.0,
                "reset_at_ms": 0,
            }
            for name, wait in (("tpm", 12.3), ("rpm", 0.0))
        ],
    }


def test_never_is_null() -> None:
    """JSON has no infinity: a wait without end is ``None``, in the body and in the limit."""
    body = RateLimitExceeded([status(wait=math.inf, requested=101)]).as_dict()
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    assert (body["retry_after_seconds"], body["retry_after_ms"]) == (None, None)
    assert body["limits"][0]["retry_after_seconds"] is None


@given(st.integers(1, 10**15))
@example(67_521_257_341)
def test_milliseconds_survive_the_detour_through_seconds(wait_ms: int) -> None:
    """Seconds are a float, but the milliseconds of the body are exactly those that were computed."""
    assert RateLimitExceeded([status(wait=wait_ms / 1000)]).as_dict()["retry_after_ms"] == wait_ms


@given(st.floats(1e-6, 1e9))
def test_milliseconds_are_never_too_few(wait: float) -> None:
    """Whatever seconds a status holds, the milliseconds cover them."""
    wait_ms = RateLimitExceeded([status(wait=wait)]).as_dict()["retry_after_ms"]
    assert wait_ms / 1000 >= wait > (wait_ms - 2) / 1000


def test_what_is_off_is_told_in_a_public_form_that_names_nobody() -> None:
    """The reason is for whoever is off; that a parent is, and why, is not for its children."""
    off = [one for one in EVERY if isinstance(one, SwitchedOff)]
    assert [str(one) for one in off] == [
        "'gpt-4' is disabled at the level 'system': maintenance",
        "'gpt-4' is disabled at the level 'resource': maintenance",
        "'user-1' is disabled: unpaid",
        "'team-1', which 'user-1' is charged to, is disabled on 'gpt-4': unpaid",
    ]
    public = [json.dumps(one.public_dict()) for one in off]
    assert not any(name in told for told in public for name in ("user-1", "team-1"))
    assert ["unpaid" in told for told in public] == [False, False, True, False]
    full = [one.as_dict() for one in off]
    assert {one["entity_id"] for one in full} == {"user-1"}
    assert full[-1]["denied_id"] == "team-1"

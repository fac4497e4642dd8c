"""Everything that can be raised, in one tree.

    ZAELimiterError: RateLimitError, InfrastructureError, EntityError, VersionError, ClosedError,
        ValidationError
    RateLimitError: RateLimitExceeded, SwitchedOff, LeaseExpiredError
    SwitchedOff: ResourceDisabled, PermissionDenied
    InfrastructureError: RateLimiterUnavailable, StackOperationError, StackAlreadyExistsError,
        InfrastructureNotFoundError, NamespaceNotFoundError, NamespaceStateError, DamagedRecordError
    EntityError: EntityNotFoundError, EntityExistsError, EntityConflictError
    VersionError: VersionMismatchError, IncompatibleSchemaError
    ValidationError: NoLimitsError, InvalidIdentifierError, InvalidNameError

Messages show the value and the way out; the data is on the exception, so nobody has to parse text.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from .established import former_names

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from .models import LimitStatus

__all__ = [
    "ClosedError", "DamagedRecordError", "EntityConflictError", "EntityError", "EntityExistsError",
    "EntityNotFoundError", "IncompatibleSchemaError", "InfrastructureError", "InfrastructureNotFoundError",
    "InvalidIdentifierError", "InvalidNameError", "LeaseExpiredError", "NamespaceNotFoundError",
    "NamespaceStateError", "NoLimitsError", "PermissionDenied", "RateLimitError", "RateLimitExceeded",
    "RateLimiterUnavailable", "ResourceDisabled", "StackAlreadyExistsError", "StackOperationError",
    "SwitchedOff", "ValidationError", "VersionError", "VersionMismatchError", "ZAELimiterError",
]  # fmt: skip

RETRY_NEVER_HEADER_SECONDS = 365 * 24 * 3600
"""What ``Retry-After`` says of a request that can never pass: HTTP has no word for never."""


class ZAELimiterError(Exception):
    """Anything this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies have the same message and attributes, whatever the arguments were that these came from."""
        return type(self).__new__, (type(self), *self.args), vars(self)


class RateLimitError(ZAELimiterError):
    """The limiter itself said no."""


class RateLimitExceeded(RateLimitError):
    """At least one limit cannot cover the request now; nothing was consumed.

    ``statuses`` holds every limit that was checked, those of the parent included; ``entity_id`` is who asked,
    where that is known. Whoever asked is shown ``public_dict``; ``as_dict`` and the message are for logs.
    """

    def __init__(self, statuses: Sequence[LimitStatus], entity_id: str | None = None) -> None:
        for status in statuses:
            if status.exceeded:
                break
        else:
            raise AssertionError("a refusal needs a limit that refused")
        self.statuses: tuple[LimitStatus, ...] = tuple(statuses)
        self.entity_id = entity_id
        super().__init__(self.statuses)  # the message is made when somebody reads it

    @property
    def violations(self) -> list[LimitStatus]:
        """The limits that refused."""
        return [s for s in self.statuses if s.exceeded]

    @property
    def passed(self) -> list[LimitStatus]:
        """The limits that would have admitted the request."""
        return [s for s in self.statuses if not s.exceeded]

    @property
    def public_statuses(self) -> list[LimitStatus]:
        """The limits of whoever asked, which it may be told in full: in headers, for one."""
        return [s for s in self.statuses if s.entity_id == self.entity_id]

    @property
    def primary_violation(self) -> LimitStatus:
        """The limit with the longest wait."""
        return max(self.violations, key=lambda s: s.retry_after_seconds)

    @property
    def retry_after_seconds(self) -> float:
        """The shortest wait after which the request passes; ``inf`` if it exceeds a capacity."""
        return self.primary_violation.retry_after_seconds

    @property
    def retry_after_header(self) -> str:
        """Whole seconds to wait, rounded up, for HTTP's ``Retry-After``; never is a year, ``31536000``."""
        wait = self.retry_after_seconds
        return str(RETRY_NEVER_HEADER_SECONDS if math.isinf(wait) else math.ceil(wait))

    def as_dict(self) -> dict[str, Any]:
        """All that is known, for logs: entities, parents, what they hold. A wait of ``None`` means never."""
        from .models.header_data import own_limit  # which know these exceptions

        return self._told(str(self), [{"entity_id": s.entity_id, **own_limit(s)} for s in self.statuses])

    def public_dict(self) -> dict[str, Any]:
        """A body for an HTTP 429: what whoever asked may know. A wait of ``None`` means never.

        It names no entity. Of somebody else's limit, such as a parent's, that refused it tells name and wait.
        """
        from .models.header_data import others_limit, own_limit

        seen = [s for s in self.statuses if s.exceeded or s.entity_id == self.entity_id]
        limits = [own_limit(s) if s.entity_id == self.entity_id else others_limit(s) for s in seen]
        return self._told(self._message(public=True), limits)

    def _told(self, message: str, limits: list[dict[str, Any]]) -> dict[str, Any]:
        seconds = self.retry_after_seconds
        wait = None if math.isinf(seconds) else seconds
        wait_ms = None if wait is None else _whole_ms(wait)
        told = {"error": "rate_limit_exceeded", "message": message}
        return told | {"retry_after_seconds": wait, "retry_after_ms": wait_ms, "limits": limits}

    def __str__(self) -> str:
        return self._message(public=False)

    def _message(self, *, public: bool) -> str:
        worst = self.primary_violation
        names = ", ".join(dict.fromkeys(s.limit_name for s in self.violations))
        place = worst.resource if public else f"{worst.entity_id}/{worst.resource}"
        head = f"Rate limit exceeded for {place}: [{names}]."
        if math.isinf(worst.retry_after_seconds):
            never = f"{head} It can never pass: {worst.requested} of {worst.limit_name!r} requested, "
            if public and worst.entity_id != self.entity_id:
                return f"{never}which is more than it holds"
            return f"{never}its capacity is {worst.limit.capacity}"
        tenths = math.ceil(worst.retry_after_seconds * 10 - 1e-6)
        return f"{head} Retry after {tenths / 10:.1f}s"


class SwitchedOff(RateLimitError):
    """Somebody has switched off what was asked for; nothing was consumed, and waiting does not help.

    ``entity_id`` asked for the ``resource``; ``level`` says where the switch is, ``reason`` why it is off.
    Whoever asked is shown ``public_dict``; ``as_dict`` and the message are for logs.
    """

    error = "disabled"

    def __init__(self, entity_id: str, resource: str, reason: str, level: str) -> None:
        self.entity_id = entity_id
        self.resource = resource
        self.reason = reason
        self.level = level
        super().__init__(self._message())

    def _message(self) -> str:
        return f"{self.resource!r} is disabled at the level {str(self.level)!r}: {self.reason}"

    def as_dict(self) -> dict[str, Any]:
        """All that is known, for logs."""
        told = {"error": self.error, "message": str(self), "entity_id": self.entity_id}
        return told | {"resource": self.resource, "reason": self.reason, "level": str(self.level)}

    def public_dict(self) -> dict[str, Any]:
        """A body for an HTTP response: the resource and the reason, and nobody's name."""
        message = f"{self.resource} is disabled: {self.reason}"
        return {"error": self.error, "message": message, "resource": self.resource, "reason": self.reason}


class ResourceDisabled(SwitchedOff):
    """The resource, or everything, is off for everybody: an HTTP 503."""

    error = "resource_disabled"


class PermissionDenied(SwitchedOff):
    """An entity is off, on this resource or on all: an HTTP 403.

    ``denied_id`` is who is off: whoever asked, or a parent that it is charged to.
    """

    error = "permission_denied"

    def __init__(
        self, entity_id: str, resource: str, reason: str, level: str, denied_id: str | None = None
    ) -> None:
        self.denied_id: str = entity_id if denied_id is None else denied_id
        super().__init__(entity_id, resource, reason, level)

    def _message(self) -> str:
        asked = "" if self.denied_id == self.entity_id else f", which {self.entity_id!r} is charged to,"
        where = "" if self.level == "entity_default" else f" on {self.resource!r}"
        return f"{self.denied_id!r}{asked} is disabled{where}: {self.reason}"

    def as_dict(self) -> dict[str, Any]:
        """All that is known, for logs."""
        return super().as_dict() | {"denied_id": self.denied_id}

    def public_dict(self) -> dict[str, Any]:
        """A body for an HTTP 403; why a parent is off is told to that parent only."""
        told = {"error": self.error, "message": f"{self.resource} may not be used", "resource": self.resource}
        if self.denied_id != self.entity_id:
            return told
        return told | {"message": f"{told['message']}: {self.reason}", "reason": self.reason}


class LeaseExpiredError(RateLimitError):
    """A lease was used after it had ended, or where it is not held."""

    _ended = "has ended; consume, adjust, settle and release before that"

    def __init__(self, entity_id: str, resource: str, reason: str = _ended) -> None:
        self.entity_id = entity_id
        self.resource = resource
        self.reason = reason
        super().__init__(f"the lease of {entity_id!r} on {resource!r} {reason}")


class InfrastructureError(ZAELimiterError):
    """The store or the stack around it is the problem; ``stack_name`` names it where that is known."""

    def __init__(self, message: str, *, stack_name: str | None = None) -> None:
        self.stack_name = stack_name
        super().__init__(message)


class RateLimiterUnavailable(InfrastructureError):
    """The store did not answer in time, or could not be reached.

    ``ambiguous`` is true when a write was sent and its reply was lost: it may have been applied.
    ``misconfigured`` names what is set up wrong where waiting does not help: ``permission``,
    ``credentials``, ``table`` or ``file``. It is empty for an outage.
    ``impossible`` is true when the store answered that nobody can: nothing happened, and nothing ever will.
    ``entity_id`` and ``resource`` say whose acquire it was, if it was one.
    """

    def __init__(
        self,
        message: str,
        cause: BaseException | None = None,
        *,
        ambiguous: bool = False,
        misconfigured: str = "",
        impossible: bool = False,
    ) -> None:
        self.ambiguous = ambiguous
        self.misconfigured = misconfigured
        self.impossible = impossible
        self._given_cause = cause
        self.entity_id: str | None = None
        self.resource: str | None = None
        super().__init__(message)

    @property
    def cause(self) -> BaseException | None:
        """What went wrong on the way to the store, if that is known."""
        return self._given_cause or self.__cause__

    def about(self, entity_id: str, resource: str, stack_name: str | None) -> RateLimiterUnavailable:
        """The same, told to somebody: whose request it was, and of which store. Others may be told too."""
        told = self
        if self.entity_id is not None and (self.entity_id, self.resource) != (entity_id, resource):
            told = self._again()
        told.entity_id, told.resource, told.stack_name = entity_id, resource, stack_name
        return told

    def after_work(self, entity_id: str, resource: str) -> RateLimiterUnavailable:
        """The same, told to somebody whose work was admitted and is done."""
        what = f"the work of {shown(entity_id)} on {shown(resource)} is done, but not all it cost was stored"
        told = self._again()
        told.args = (f"{what}: {self}",)
        return told.about(entity_id, resource, self.stack_name)

    def _again(self) -> RateLimiterUnavailable:
        told = copy.copy(self)
        told.entity_id, told._given_cause = None, self.cause
        return told

    @property
    def denied(self) -> bool:
        """Whether the store answered that the caller may not do this."""
        return self.misconfigured == "permission"


class StackOperationError(InfrastructureError):
    """An operation on a stack failed, or AWS refused it.

    ``reasons`` are those of the resources that failed, the first cause first.
    """

    def __init__(self, message: str, reasons: Sequence[str] = (), *, stack_name: str | None = None) -> None:
        self.reasons: Final = tuple(reasons)
        super().__init__(message, stack_name=stack_name)

    @property
    def reason(self) -> str:
        """The first cause, as far as it is known."""
        return self.reasons[0] if self.reasons else str(self)


class StackAlreadyExistsError(InfrastructureError):
    """A stack of that name is already deployed."""


class InfrastructureNotFoundError(InfrastructureError):
    """The table or the stack does not exist."""


class NamespaceNotFoundError(InfrastructureError):
    """No namespace of that name is registered; ``namespace_name`` is what was asked for."""

    def __init__(self, message: str, *, namespace_name: str = "") -> None:
        self.namespace_name = namespace_name
        super().__init__(message)


class NamespaceStateError(InfrastructureError):
    """The namespace is not in the ``state`` that the operation needs."""

    def __init__(self, message: str, *, namespace_name: str = "", state: str = "") -> None:
        self.namespace_name = namespace_name
        self.state = state
        super().__init__(message)


class DamagedRecordError(InfrastructureError):
    """A stored record does not say what it has to: something else wrote it, or damaged it.

    ``record`` says which one, ``reason`` what is wrong with it.
    """

    def __init__(self, record: str, reason: str) -> None:
        self.record = record
        self.reason = reason
        super().__init__(f"the stored {record} cannot be read: {reason}")


class EntityError(ZAELimiterError):
    """Something about one entity; ``entity_id`` names it."""

    problem = "cannot be changed"

    def __init__(self, entity_id: str, detail: str = "") -> None:
        self.entity_id = entity_id
        self.detail = detail
        super().__init__(f"entity {entity_id!r} {self.problem}{f'; {detail}' if detail else ''}")


class EntityNotFoundError(EntityError):
    """No entity has that id."""

    problem = "does not exist"


class EntityExistsError(EntityError):
    """An entity of that id is there already."""

    problem = "already exists"


class EntityConflictError(EntityError):
    """Somebody else changed the entity since the version that the caller saw."""

    problem = "was changed meanwhile"


class VersionError(ZAELimiterError):
    """Client, schema and Lambda do not fit together; their versions are told where they are known."""

    def __init__(
        self,
        message: str,
        *,
        client_version: str | None = None,
        schema_version: str | None = None,
        lambda_version: str | None = None,
    ) -> None:
        self.client_version = client_version
        self.schema_version = schema_version
        self.lambda_version = lambda_version
        super().__init__(message)


class VersionMismatchError(VersionError):
    """This client and what is deployed differ in a way that must be resolved first."""

    can_auto_update = False
    """Whether opening the store again would resolve it by itself."""


class IncompatibleSchemaError(VersionError):
    """The stored schema cannot be used by this client at all."""

    migration_guide_url: str | None = None
    """Where it is explained; the message itself names what to run."""


class ClosedError(ZAELimiterError, RuntimeError):
    """A limiter or repository was used after it was closed: a mistake in the program, and no outage."""


_URLS = {"store", "endpoint_url"}
_TAKEN_FOR_URLS = {"namespace", "stack name"}
"""Where people write the URL of a store by mistake, with the password in it."""


class ValidationError(ZAELimiterError, ValueError):
    """A value was refused before it reached a store; ``field`` and ``value`` say which."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        if isinstance(value, str) and (field in _URLS or ("://" in value and field in _TAKEN_FOR_URLS)):
            value = without_secrets(value)
        self.field = field
        self.value = value
        self.reason = reason
        super().__init__(f"invalid {field} {shown(value)}: {reason}")


class NoLimitsError(ValidationError):
    """No level has limits for an entity and a resource, and the caller brought none along."""

    def __init__(self, entity_id: str, resource: str) -> None:
        self.entity_id = entity_id
        self.resource = resource
        told = (
            f"no limits are stored for {entity_id!r} on {resource!r} at any level; call set_system_defaults, "
        )
        told += "set_resource_defaults or set_limits, or pass limits= to this call"
        self.field: str = "limits"
        self.value: Final = None
        self.reason = told
        ZAELimiterError.__init__(self, told)


class InvalidIdentifierError(ValidationError):
    """An entity, parent or principal id is malformed."""


class InvalidNameError(ValidationError):
    """The name of a limit, resource, namespace or stack is malformed."""


def _whole_ms(seconds: float) -> int:
    """Milliseconds that are not less than the seconds; exact for seconds that came from milliseconds."""
    nearest = round(seconds * 1000)
    return nearest if nearest / 1000 >= seconds else nearest + 1


_PLAIN_OPTIONS = frozenset({"region", "timeout_ms", "pool", "transport", "schema", "listen", "sslmode"})
_USER, _NOBODY = re.compile(r"(^|//)[^/]*@"), r"\1…@"
_SERVER = re.compile(r"^((?:redis|valkey|postgres)[^/]*//).*@")
"""A password with a '/' or '?' in it ends before its '@' for a parser, and is one all the same."""


def without_secrets(url: str) -> str:
    """A URL as it may be shown: without user and password, and without what an unknown option says.

    >>> without_secrets("dynamodb://limits?region=eu-west-1&endpoint_url=http%3A%2F%2Fme%3Apass%40host&key=AKIA")
    'dynamodb://limits?region=eu-west-1&endpoint_url=http://…@host&key=…'
    """
    place, mark, query = _SERVER.sub(_NOBODY, url).partition("?")
    options = []
    for option in query.split("&"):
        name, given, value = option.partition("=")
        if name == "endpoint_url":
            from urllib.parse import unquote  # which a program that only catches does without

            value = _USER.sub(_NOBODY, unquote(value))
        elif value and name not in _PLAIN_OPTIONS:
            value = "…"
        options.append(f"{name}{given}{value}")
    return f"{_USER.sub(_NOBODY, place)}{mark}{'&'.join(options)}"


def is_user_cut(parts: SplitResult, known: Collection[str]) -> bool:
    """Whether user and password of a URL end at a sign that means something in URLs."""
    options = "&".join(one for one in parts.query.split("&") if one.partition("=")[0] not in known)
    return "@" not in parts.netloc and "@" in f"{parts.path}{options}{parts.fragment}"


USER_CUT = "in user and password write '/' as %2F, '?' as %3F, '#' as %23 and '@' as %40"


def shown(value: object, length_max: int = 120) -> str:
    """A value as a message shows it, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # such as an integer of more digits than Python is willing to print
        text = f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= length_max else f"{text[:length_max]}…"


if not TYPE_CHECKING:  # which is to see every name that is missing
    __getattr__ = former_names(__name__)

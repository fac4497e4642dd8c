"""What carries a request to DynamoDB and its answer back, and the ways in which that fails.

A transport sends once. It does not retry, because it cannot know whether sending again is harmless; that is
decided in ``retries``. (A request that was refused for its date it may date again.) It hands on the date of
every reply, by which a world learns DynamoDB's time.

    TransportError
    ├── ServiceError    DynamoDB answered with an error: nothing was applied
    ├── NoReply         no answer; ``ambiguous`` unless the request surely never arrived
    └── NotConfigured   credentials or region are missing: nothing was sent
"""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

from ...exceptions import RateLimiterUnavailable
from ...runtime.colour import Colour
from ...runtime.world import World
from .expressions import Payload, Request

MESSAGE_CHARS_MAX = 1_000
"""How much of what a server says is repeated; it may say anything."""


def codes(words: str) -> frozenset[str]:
    """Codes of DynamoDB's answers."""
    return frozenset(words.split())


TRANSIENT_CODES = codes(
    "LimitExceededException ProvisionedThroughputExceededException RequestLimitExceeded ThrottledException"
    " Throttling ThrottlingException TransactionConflictException TransactionInProgressException"
)
"""Answers that say "not now": the request was not carried out and may be sent again."""

NOT_FOUND = "ResourceNotFoundException"

IMPOSSIBLE_CODES = codes(
    "ItemCollectionSizeLimitExceeded ItemCollectionSizeLimitExceededException RequestEntityTooLarge"
    " SerializationException ValidationError ValidationException"
)
"""The request itself is wrong or too large: it was not carried out, and never will be."""

DENIED_CODES = codes("AccessDenied AccessDeniedException NotAuthorized UnauthorizedOperation")
"""The caller is known but may not do this."""

UNKNOWN_CALLER_CODES = codes(
    "ExpiredToken ExpiredTokenException IncompleteSignatureException InvalidAccessKeyId InvalidClientTokenId"
    " InvalidSignatureException MissingAuthenticationToken MissingAuthenticationTokenException"
    " SignatureDoesNotMatch UnrecognizedClientException"
)
"""The caller is not known at all, or no longer."""

CANCELLED = "TransactionCanceledException"
TRANSIENT_REASONS = codes("ProvisionedThroughputExceeded ThrottlingError TransactionConflict")


class TransportError(Exception):
    """A request that brought back no result."""

    transient = False
    """Whether it surely was not carried out and may well be in a moment."""
    ambiguous = False
    """Whether it may have been carried out."""


class ServiceError(TransportError):
    """DynamoDB refused; ``body`` is its whole answer."""

    def __init__(self, code: str, message: str, body: Payload | None = None) -> None:
        self.code = code
        self.message = message
        self.body: Final = body or {}
        self.transient = code in TRANSIENT_CODES
        self.reasons: list[dict[str, Any]] = []
        """Of a cancelled transaction, what became of each write."""
        if code == CANCELLED:
            self.reasons = list(self.body.get("CancellationReasons", ()))
            self.transient: bool = any(reason.get("Code") in TRANSIENT_REASONS for reason in self.reasons)
        super().__init__(f"{code}: {message}")


class NoReply(TransportError):
    """No answer came, or none that tells what happened."""

    def __init__(self, message: str, *, ambiguous: bool) -> None:
        self.ambiguous = ambiguous
        self.transient: bool = not ambiguous
        super().__init__(message)


class NotConfigured(TransportError):
    """There is nothing to sign with, or nowhere to send to."""


class Transport(Protocol):
    """A way to DynamoDB, opened for one colour."""

    @property
    def colour(self) -> Colour:
        """How the program around it waits."""
        ...

    @property
    def fanout(self) -> Colour:
        """How several calls wait for each other, and for nothing else; often just the ``colour``."""
        ...

    async def call(self, operation: str, request: Request, timeout_ms: float) -> Payload:
        """Send one request and return the answer, or raise a ``TransportError`` by the time given."""
        ...

    async def close(self) -> None: ...


def unreadable(error: Exception) -> NoReply:
    """An answer that its reader failed at is as good as none.

    Readers take what they need and check nothing twice; whatever a server has in store for them ends here:
    numbers without an end, texts that are lists, members that are missing.
    """
    found = f"{type(error).__name__}: {error}"[:MESSAGE_CHARS_MAX]
    unread = NoReply(f"the answer cannot be read: {found}", ambiguous=True)
    unread.__cause__ = error
    return unread


def refusal(status: int, code: str, message: str, body: Payload | None = None) -> TransportError:
    """The error that an HTTP answer other than 200 stands for.

    A server that broke while it worked on a request (5xx) may have finished it. An answer without a code is
    not DynamoDB's, and nobody knows whom its sender has asked.
    """
    message = discreet(message)[:MESSAGE_CHARS_MAX]
    is_broken = status >= 500 and code not in TRANSIENT_CODES
    if is_broken or status < 400 or not _CODE.fullmatch(code):
        return NoReply(f"HTTP {status} {code[:MESSAGE_CHARS_MAX]}: {message}", ambiguous=True)
    try:
        return ServiceError(code, message, body)
    except Exception as error:
        return unreadable(error)


_CODE = re.compile("[A-Za-z][A-Za-z0-9]*")
_USER = re.compile(r"//[^/\s]*@")
_REPEATED = re.compile(
    "the canonical string|the string-to-sign|authorization|aws4-hmac|credential=|x-amz-security-token", re.I
)


def without_user(message: str) -> str:
    """A message whose URLs show neither user nor password."""
    return _USER.sub("//…@", message)


def discreet(message: str) -> str:
    """A message up to where it repeats what a request was signed with: AWS does, token included."""
    found = _REPEATED.search(message)
    return message if found is None else f"{message[: found.start()].rstrip()} …"


def failure(error: TransportError, operation: str, table: str, *, ambiguous: bool) -> RateLimiterUnavailable:
    """The exception that leaves the store: DynamoDB's own words, and the way out.

    It is ``ambiguous`` if a write may have been applied, ``misconfigured`` if waiting does not help.
    """
    what, misconfigured = f"DynamoDB {operation} on table {table!r}", ""
    match error:
        case ServiceError(code=code) if code == NOT_FOUND:
            text, misconfigured = missing_table(table), "table"
        case ServiceError(code=code) if code in DENIED_CODES:
            misconfigured = "permission"
            text = f"{what} is not permitted: {error}; allow the caller dynamodb:{operation} on this table"
        case ServiceError(code=code) if code in UNKNOWN_CALLER_CODES:
            misconfigured = "credentials"
            text = f"{what} was not accepted from these credentials: {error}; renew or correct them"
        case ServiceError(transient=True):
            text = f"{what} was throttled until its deadline: {error}"
        case ServiceError():
            text = f"{what} was refused: {error}"
        case NotConfigured():
            text, misconfigured = f"{what} was not sent: {error}", "credentials"
        case TransportError(ambiguous=False):
            text = f"{what} was not sent: {error}"
        case _:
            text = f"{what} got no answer: {error}"
    impossible = isinstance(error, ServiceError) and not ambiguous and _is_impossible(error)
    return RateLimiterUnavailable(
        text, ambiguous=ambiguous, misconfigured=misconfigured, impossible=impossible
    )


def _is_impossible(error: ServiceError) -> bool:
    """Whether the same request can never succeed; a transaction cannot if one of its writes cannot."""
    codes = {error.code, *(reason.get("Code") for reason in error.reasons)}
    return not error.transient and not codes.isdisjoint(IMPOSSIBLE_CODES)


def missing_table(table: str) -> str:
    return (
        f"table {table!r} does not exist in this region and account; "
        f"deploy it with: zae-limiter deploy --name {table}, "
        f"or make the table alone with: zae-limiter table create --name {table}"
    )


COARSE_MS = 1_000
"""The ``Date`` of a reply is cut to the second."""

LITTLE_MS = 10
"""Replies of the same date that follow each other this closely have no more to say than the first."""


class Dates:
    """Tells a world the time that DynamoDB shows."""

    def __init__(self, world: World) -> None:
        self.ticks_ms: Final = world.ticks_ms
        self._observe = world.observe
        self._last: tuple[str | bytes, int | None, float] = ("", None, 0.0)

    def read(self, date: str | bytes | None, sent_ms: float) -> None:
        """Take the date of a reply to a request that was not sent before the tick ``sent_ms``."""
        if not date:
            return
        last, shown_s, told_ms = self._last
        if date != last:
            shown_s = seconds_of(date)
        elif sent_ms < told_ms + LITTLE_MS:
            return
        self._last = date, shown_s, sent_ms
        if shown_s is not None:
            self._observe(shown_s * 1000, shown_s * 1000 + COARSE_MS, sent_ms, self.ticks_ms())


UNTOLD = Dates(World())
"""Of a transport whose dates nobody wants to know."""


def seconds_of(date: str | bytes) -> int | None:
    """The second that a date of HTTP stands for, if it is one."""
    try:
        moment = parsedate_to_datetime(date if isinstance(date, str) else date.decode("latin-1"))
        return int(moment.timestamp()) if moment.tzinfo is not None else None
    except (ValueError, TypeError, OverflowError, IndexError):
        return None

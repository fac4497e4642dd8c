"""What carries a request to DynamoDB and its answer back, and the ways in which that fails.

A transport sends once. It does not retry, because it cannot know whether sending again is harmless; that is
decided in ``retries``. (A request that was refused for its date it may date again.)

    TransportError
    ├── ServiceError    DynamoDB answered with an error: nothing was applied
    ├── NoReply         no answer; ``ambiguous`` unless the request surely never arrived
    └── NotConfigured   credentials or region are missing: nothing was sent
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from ...runtime.colour import Colour
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
        self.code, self.message, self.body = code, message, body or {}
        self.transient = code in TRANSIENT_CODES
        self.reasons: list[dict[str, Any]] = []
        """Of a cancelled transaction, what became of each write."""
        if code == CANCELLED:
            self.reasons = list(self.body.get("CancellationReasons", ()))
            self.transient = any(reason.get("Code") in TRANSIENT_REASONS for reason in self.reasons)
        super().__init__(f"{code}: {message}")


class NoReply(TransportError):
    """No answer came, or none that tells what happened."""

    def __init__(self, message: str, *, ambiguous: bool) -> None:
        self.ambiguous, self.transient = ambiguous, not ambiguous
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

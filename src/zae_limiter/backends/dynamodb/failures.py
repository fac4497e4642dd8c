"""From what went wrong on the way to DynamoDB to what a caller can do about it. Pure.

Every message names the operation and the table, keeps DynamoDB's own words and ends with the way out. Where
waiting does not help, because DynamoDB or the table is not set up for this caller, that is said as well.
"""

from __future__ import annotations

from ...exceptions import RateLimiterUnavailable
from .transport import NotConfigured, ServiceError, TransportError, codes

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


def failure(error: TransportError, operation: str, table: str, *, ambiguous: bool) -> RateLimiterUnavailable:
    """The exception that leaves the store; ``ambiguous`` if a write may have been applied."""
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

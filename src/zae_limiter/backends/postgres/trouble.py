"""The ways in which a call of PostgreSQL fails, and what is said of each.

    Trouble
    ├── RolledBack     the server answered with an error: nothing of the call has happened
    ├── LostReply     no answer; ``ambiguous`` unless the call surely never arrived
    └── NobodyWaits    it was not sent, for there is nobody whom to tell

An error ends the transaction, and each call is one. But a server that *ends the connection* with its error
may have committed before, while it waited for a standby; that is no answer. What libpq says of a connection
has no code, so its words are looked at to tell a wrong password from a server that is away.
"""

from __future__ import annotations

import re

from ...exceptions import RateLimiterUnavailable

MESSAGE_CHARS_MAX = 500

TRANSIENT_CLASSES = ("40", "53", "55P", "57")
"""Conflicts, a lack of something, locks that others hold, a server that is told to stop: try again."""
READ_ONLY = "25006"
"""The server became a standby; a new connection may lead to the one that took its place."""
MISSING = frozenset({"3F000", "42883", "42P01", "3D000"})
DENIED = "42501"
UNKNOWN_CALLER = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist"
    r"|authentication failed|is not permitted to log in|no such user"
)
UNTRUSTED = {
    "certificate verify failed": "name whom to trust by sslrootcert=FILE",
    "does not match host name": "use a name that stands in it",
    "root certificate file": "name whom to trust by sslrootcert=FILE, or sslrootcert=system",
    "server does not support SSL": "turn TLS on at the server, or choose another sslmode",
}
"""Why there is no connection over TLS, in libpq's words, and the way out of each."""
NO_DATABASE = re.compile(r"database .* does not exist|no such database")
_NAME = re.compile(r'\b(user|role) "[^"]*"')
_SECRET = re.compile(r"//[^/\s@]*@|(password=)\S+", re.I)


class Trouble(Exception):
    """A call that brought back no result."""

    transient = False
    """Whether it surely was not carried out and may well be in a moment."""
    ambiguous = False
    """Whether it may have been carried out."""
    misconfigured = ""


class RolledBack(Trouble):
    """The server refused, and rolled back."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.transient: bool = code.startswith(TRANSIENT_CLASSES) or code == READ_ONLY
        super().__init__(f"{message} ({code})")


class LostReply(Trouble):
    """No answer came, or none that tells what happened."""

    def __init__(self, message: str, *, ambiguous: bool, misconfigured: str = "") -> None:
        self.ambiguous = ambiguous
        self.misconfigured = misconfigured
        self.transient: bool = not ambiguous and not misconfigured
        super().__init__(message)


class NobodyWaits(Trouble):
    """Everybody's time was over before there was a connection."""

    def __init__(self) -> None:
        super().__init__("nobody waits for it any more")


def no_connection(error: BaseException) -> LostReply:
    """What keeps a connection from being made: nothing was asked yet."""
    message = discreet(str(error))
    misconfigured = ""
    if way_out := _trust(message):
        misconfigured = "credentials"
        message = f"{message}; {way_out}"
    elif UNKNOWN_CALLER.search(message):
        misconfigured = "credentials"
    elif NO_DATABASE.search(message):
        misconfigured = "table"
    return LostReply(message, ambiguous=False, misconfigured=misconfigured)


def _trust(message: str) -> str:
    return next((way_out for said, way_out in UNTRUSTED.items() if said in message), "")


def discreet(message: str) -> str:
    """What a server or a driver says, in one line, not too long, without user and password."""
    return " ".join(_NAME.sub(r"\1 …", _SECRET.sub("…", message)).split())[:MESSAGE_CHARS_MAX]


def failure(error: Trouble, verb: str, place: str, *, ambiguous: bool) -> RateLimiterUnavailable:
    """The exception that leaves the store, and the way out."""
    what, misconfigured, impossible = f"PostgreSQL {verb} in {place}", error.misconfigured, False
    match error:
        case RolledBack(code=code) if code in MISSING:
            text, misconfigured = missing(place), "table"
        case RolledBack(code=code) if code == DENIED and verb == "table":
            misconfigured = "permission"
            text = f"{what} is not permitted: {error}; let an owner run: zae-limiter table create --print-sql"
        case RolledBack(code=code) if code == DENIED:
            misconfigured = "permission"
            text = (
                f"{what} is not permitted: {error}; zae-limiter table create --print-sql says what to grant"
            )
        case RolledBack(code=code) if code == READ_ONLY:
            text = f"{what} reached a standby: {error}; name all servers and target_session_attrs=read-write"
        case RolledBack(transient=True):
            text = f"{what} was put off until its deadline: {error}"
        case RolledBack(code=code):
            impossible = not ambiguous and code.startswith(("22", "23", "54"))
            text = f"{what} was refused: {error}"
        case _ if misconfigured == "credentials" and _trust(str(error)):
            text = f"{what} found no server to trust: {error}"
        case _ if misconfigured == "credentials":
            text = f"{what} was not accepted from this user: {error}; correct user and password"
        case _ if misconfigured == "table":
            text = f"{what} has no database: {error}; make it first, then: zae-limiter table create"
        case _ if not error.ambiguous:
            text = f"{what} was not sent: {error}"
        case _:
            text = f"{what} got no answer: {error}"
    return RateLimiterUnavailable(
        text, ambiguous=ambiguous, misconfigured=misconfigured, impossible=impossible
    )


def missing(place: str) -> str:
    return f"there is no store in {place}; make it with: zae-limiter table create --store URL"

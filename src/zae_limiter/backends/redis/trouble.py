"""The ways in which a request brings back no result, and the words in which users are told.

What surely was not carried out is ``transient``, if it may well be in a moment. What may have been carried
out is ``ambiguous``: a write of that kind is never sent again. Nothing here shows a user or a password.
"""

from __future__ import annotations

import re

from ...exceptions import RateLimiterUnavailable
from .resp import Refused

MESSAGE_CHARS_MAX = 500
"""How much of what a server says is repeated; it may say anything."""

NOT_NOW = frozenset(
    [
        "BUSY",
        "BUSYKEY",
        "CLUSTERDOWN",
        "FAILOVER",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "READONLY",
        "TRYAGAIN",
        "UNBLOCKED",
    ]
)
"""Refused before anything was done, and perhaps not by the next server, or in a moment."""
ELSEWHERE = frozenset(["CLUSTERDOWN", "MASTERDOWN", "MOVED", "READONLY", "UNBLOCKED", "FAILOVER"])
"""Somebody else is to be asked."""
CREDENTIALS = frozenset(["NOAUTH", "WRONGPASS"])
_INNER = re.compile(r"-?\b(OOM|READONLY|MISCONF|NOREPLICAS|NOPERM|MASTERDOWN|CLUSTERDOWN)\b")


class RedisTrouble(Exception):
    """A request that brought back no result."""

    def __init__(
        self,
        message: str,
        *,
        ambiguous: bool = False,
        transient: bool = False,
        elsewhere: bool = False,
        misconfigured: str = "",
        impossible: bool = False,
    ) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous
        self.transient = transient
        self.elsewhere = elsewhere
        self.misconfigured = misconfigured
        self.impossible = impossible

    def as_failure(self, where: str, *, is_write: bool) -> RateLimiterUnavailable:
        """The exception that leaves the store."""
        failure = RateLimiterUnavailable(
            f"Redis {where}: {self}",
            ambiguous=self.ambiguous and is_write,
            misconfigured=self.misconfigured,
            impossible=self.impossible,
        )
        failure.__cause__ = self
        return failure


def no_reply(why: str) -> RedisTrouble:
    """Something was sent, and nobody knows what became of it."""
    return RedisTrouble(f"no answer: {why}", ambiguous=True, elsewhere=True)


def not_sent(why: str) -> RedisTrouble:
    return RedisTrouble(f"nothing was sent: {why}", transient=True, elsewhere=True)


def unreadable(error: Exception) -> RedisTrouble:
    """An answer that its reader failed at is as good as none; whatever a server says ends here."""
    return RedisTrouble(f"the answer cannot be read: {type(error).__name__}: {error}", ambiguous=True)


def trouble_of(refused: Refused) -> RedisTrouble:
    """What a refusal of the server means."""
    code, said = refused.code, refused.message[:MESSAGE_CHARS_MAX]
    if code == "ERR" and (inner := _INNER.search(said)):
        code = inner[1]  # older servers hide the code of a command within a script
    if code in CREDENTIALS or "AUTH" in said[:60] or "invalid password" in said.lower():
        return RedisTrouble(
            "it does not accept these credentials; correct user and password in the URL",
            misconfigured="credentials",
        )
    if code == "NOPERM" or "can't run this command" in said:
        way_out = "allow the user what `zae-limiter` needs, see docs/redis.md"
        # Within a script it may have come after another write.
        return RedisTrouble(
            f"not permitted: {_without_names(said)}; {way_out}",
            misconfigured="permission",
            ambiguous="script" in said,
        )
    if code == "OOM":
        return RedisTrouble("it is out of memory, and nothing was written; give it more (maxmemory)")
    if code in NOT_NOW or code in ELSEWHERE:
        return RedisTrouble(f"not now: {said}", transient=True, elsewhere=code in ELSEWHERE)
    if code == "CROSSSLOT":
        return RedisTrouble(
            "a cluster cannot change two namespaces at once; use one namespace, or a single server",
            impossible=True,
        )
    return RedisTrouble(f"it refused: {said}", ambiguous=True)


def _without_names(said: str) -> str:
    """Newer servers name the user."""
    return re.sub(r"[Uu]ser (?!has no )\S+", "this user", said)

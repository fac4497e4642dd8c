"""Where a server is, and what it is told first on every connection."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from .trouble import RedisTrouble, not_sent

NO_CONNECTION = (OSError, ValueError, OverflowError)
"""What a library says that cannot connect, also when that is no name of a host, or no port."""

OTHER_NAME = (62, 64)
"""What OpenSSL calls a certificate that is for another host name, or for another IP address."""


class RedisAddress(NamedTuple):
    host: str
    port: int
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def trouble(self, error: Exception) -> RedisTrouble:
        """Why there is no connection."""
        if isinstance(error, ssl.SSLCertVerificationError):
            is_other = error.verify_code in OTHER_NAME
            way_out = "use a name that stands in it" if is_other else "give tls_ca=FILE"
            return RedisTrouble(
                f"the certificate of {self} is not trusted: {error.verify_message.rstrip('.')}; {way_out}",
                misconfigured="credentials",
            )
        return not_sent(f"cannot connect to {self}: {getattr(error, 'strerror', None) or error}")

    def too_late(self) -> RedisTrouble:
        """Why there is no connection yet, when there is no time left for one."""
        hint = "; if it does not speak TLS, use redis:// or its other port" if self.tls else ""
        return not_sent(f"{self} did not accept a connection in time{hint}")


class Login(NamedTuple):
    """Who connects, and to which of a server's databases."""

    username: str = ""
    password: str = ""
    database: int = 0

    def __repr__(self) -> str:
        return f"Login(database={self.database})"

    def commands(self) -> list[tuple[str, ...]]:
        given = [word for word in (self.username, self.password) if word]
        told: list[tuple[str, ...]] = [("AUTH", *given)] if self.password else []
        if self.database:
            told.append(("SELECT", str(self.database)))
        return told

"""How to reach DynamoDB: what a URL, a session and a ``Config`` ask for, and what none of them may have.

A user's own session and ``Config`` are honoured. What they cannot bring is a request that is sent twice:
a driver would repeat a write whose reply was lost, and report success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import botocore.session
from botocore.config import Config

# One attempt; the standard mode, because the legacy one has checks of its own that send again.
ONE_ATTEMPT = {"total_max_attempts": 1, "mode": "standard"}

CONNECT_SHARE = 0.45
"""Of the time for a call; two attempts to connect then leave too little for a third."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach DynamoDB; what is ``None`` comes from botocore's usual places.

    ``session`` is a boto3 or botocore session, ``config`` a botocore ``Config``.
    """

    region: str | None = None
    endpoint_url: str | None = None
    pool: int = 64
    timeout_ms: int = 1000
    session: Any = None
    config: Any = None

    @property
    def connect_timeout_s(self) -> float:
        """Connecting gives up first: a request that was never sent must not look like a lost reply."""
        return self.timeout_ms / 1000 * CONNECT_SHARE

    def client_config(self, defaults: Any) -> Any:
        """The user's wishes over our defaults, and what must not be wished away over both."""
        options = {
            "max_pool_connections": self.pool,
            "tcp_keepalive": True,
            # Our requests are built by code that is tested against the engine itself.
            "parameter_validation": False,
        }
        forced = Config(
            retries=ONE_ATTEMPT, connect_timeout=self.connect_timeout_s, read_timeout=self.timeout_ms / 1000
        )
        wished = defaults.merge(Config(**options))
        return (wished.merge(self.config) if self.config is not None else wished).merge(forced)

    def botocore_session(self) -> Any:
        """The session given, without boto3's shell, or a new one."""
        if self.session is None:
            return botocore.session.Session()
        return getattr(self.session, "_session", self.session)

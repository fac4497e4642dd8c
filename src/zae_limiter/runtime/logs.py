"""Where the package says what nobody was there to be told: loggers that a program may set."""

import logging

logger: logging.Logger = logging.getLogger("zae_limiter")
server_logger: logging.Logger = logging.getLogger("zae_limiter.server")

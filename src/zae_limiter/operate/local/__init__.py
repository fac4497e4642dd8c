"""A local AWS for development, without containers: ``zae-limiter local``.

``engines`` knows what can be started, ``process`` starts and ends it, ``service`` keeps track of it.
"""

from .engines import ENGINES, Engine
from .service import Running, Service, endpoint_on, environment, last_lines

__all__ = ["ENGINES", "Engine", "Running", "Service", "endpoint_on", "environment", "last_lines"]

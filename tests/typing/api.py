"""Uses the public API as callers do. Never run: the type checker reads it, so the types stay a promise."""

from collections.abc import Sequence

import zae_limiter

exported: Sequence[str] = zae_limiter.__all__

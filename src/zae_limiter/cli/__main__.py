"""``python -m zae_limiter.cli`` is ``zae-limiter``."""

from . import main

main()

"""``python -m zae_limiter`` is ``zae-limiter``."""

from .cli import main

main()

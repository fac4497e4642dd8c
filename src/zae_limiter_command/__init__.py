"""Where ``zae-limiter`` begins: outside of the package, so that Ctrl-C during its import is no traceback."""

from __future__ import annotations


def main() -> None:
    """Run the command that the arguments of this process ask for."""
    try:
        from zae_limiter.cli import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    main()

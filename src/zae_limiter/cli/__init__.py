"""The command line, ``zae-limiter``: one module for each noun, all of them thin.

Data goes to standard output, everything said about it to standard error. A command that lists finds
nothing and succeeds; a command that shows one thing fails when it is not there. Exit codes: 0 done,
1 error, 2 wrong usage, 3 AWS said no, 4 not found, 5 there is a difference (where --exit-code asked),
130 interrupted.

This module needs nothing but the standard library, so that it can say what is missing.
"""

from __future__ import annotations

import sys

NEEDED = frozenset({"click", "rich"})


def main() -> None:
    """Run the command that the arguments of this process ask for."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot write is shown with question marks, not as a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        from .app import program

        program.main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        print(f"error: the command line needs {error.name}, which is not installed", file=sys.stderr)
        print("hint: install this package with its extra: cli", file=sys.stderr)
        raise SystemExit(1) from None

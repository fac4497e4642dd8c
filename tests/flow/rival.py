"""Another process that asks for tokens when it is told to; run as ``rival.py <url>``.

It reads one order from each line and answers with one line: ``look entity resource`` asks what is there,
``ask entity resource amount`` takes some, ``back`` gives the last back as failed work does.
"""

import contextlib
import sys

from zae_limiter import RateLimitExceeded, SyncRateLimiter


class Failed(Exception):
    """The work that the tokens were taken for came to nothing."""


def serve(url: str) -> None:
    with SyncRateLimiter.open(url) as limiter, contextlib.ExitStack() as held:
        say("ready")
        for line in sys.stdin:
            verb, *given = line.split()
            if verb == "look":
                say(limiter.available(*given))
            elif verb == "back":
                with contextlib.suppress(Failed), held.pop_all():
                    raise Failed
                say("back")
            else:
                entity_id, resource, amount = given
                try:
                    held.enter_context(limiter.acquire(entity_id, resource, {"rpm": int(amount)}))
                    say("yes")
                except RateLimitExceeded as refusal:
                    say(f"no {refusal.retry_after_seconds}")


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.argv[1])

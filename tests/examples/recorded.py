"""An ASGI application with a log of who came, when, and what was answered: a line of JSON for each request.

``RECORDED`` names the application, as servers do, and ``ARRIVALS`` the file.
"""

import importlib
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

module, _, name = os.environ["RECORDED"].partition(":")
recorded = getattr(importlib.import_module(module), name)
arrivals = Path(os.environ["ARRIVALS"])
numbers = itertools.count()


def write(line: str) -> None:
    with arrivals.open("a") as file:
        file.write(line + "\n")


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        await recorded(scope, receive, send)
        return
    seen: dict[str, Any] = {"number": next(numbers), "path": scope["path"], "body": ""}
    seen["arrived"] = time.monotonic()

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [(name.decode(), value.decode()) for name, value in message["headers"]]
            seen.update(status=message["status"], headers=headers, answered=time.monotonic())
        seen["body"] += message.get("body", b"").decode("latin-1")
        await send(message)

    try:
        await recorded(scope, receive, sent)
    finally:
        write(json.dumps(seen))

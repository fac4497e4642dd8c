"""One application in three frameworks for gunicorn: its streams are paid by the byte, in one SQLite file."""

import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from tests.web.gunicorn_app import CHUNK, CHUNKS_MAX, FOLDER, LIMITS, STORE
from tests.web.limits import Bytes
from zae_limiter import RateLimiter, SyncRateLimiter
from zae_limiter.web import Rule, api_key

COST = {"rpm": 1, "tpm": 50, "parallel": 1}
METERED: Any = {"cost": COST, "entity": api_key(), "limits": LIMITS, "usage": Bytes}
RULES = [Rule("/plain", "api", **METERED)]
KIND = os.environ.get("FRAMEWORK", "")


def stream(name: str) -> Iterator[bytes]:
    made = 0
    try:
        while made < CHUNKS_MAX:
            made += 1
            yield CHUNK
            time.sleep(0.001)
    finally:
        unfinished = FOLDER / f"{name}.part"
        unfinished.write_text(str(made))
        unfinished.rename(FOLDER / name)


async def astream(name: str) -> AsyncIterator[bytes]:
    import asyncio
    from contextlib import closing

    with closing(stream(name)) as chunks:
        for chunk in chunks:
            yield chunk
            await asyncio.sleep(0.001)


def fastapi_app() -> Any:
    from fastapi import Depends, FastAPI
    from fastapi.responses import StreamingResponse

    from zae_limiter.web.fastapi import RouteLimits, limit

    app = FastAPI()
    RouteLimits(app, limiter=RateLimiter.open(STORE), rules=RULES)

    @app.get("/plain")
    async def plain() -> str:
        return "hi"

    @app.get("/{name}", dependencies=[Depends(limit("api", **METERED))])
    async def streaming(name: str) -> StreamingResponse:
        return StreamingResponse(astream(name))

    return app


def flask_app() -> Any:
    from flask import Flask, Response

    from zae_limiter.web.flask import RateLimits, limited

    app = Flask(__name__)
    RateLimits(app, limiter=lambda: SyncRateLimiter.open(STORE), rules=RULES)
    app.add_url_rule("/plain", "plain", lambda: "hi")
    app.add_url_rule("/<name>", "stream", limited("api", **METERED)(lambda name: Response(stream(name))))
    return app


urlpatterns: list[Any] = []


def django_app(is_async: bool) -> Any:
    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse, StreamingHttpResponse
    from django.urls import path

    from zae_limiter.web.django import limited

    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="x",
        MIDDLEWARE=["zae_limiter.web.django.DjangoRateLimitMiddleware"],
        ZAE_LIMITER={"limiter": STORE, "rules": RULES},
    )
    django.setup(set_prefix=False)
    chunks: Any = astream if is_async else stream
    streaming = limited("api", **METERED)(lambda _, name: StreamingHttpResponse(chunks(name)))
    urlpatterns.extend([path("plain", lambda _: HttpResponse("hi")), path("<name>", streaming)])
    return get_asgi_application() if is_async else get_wsgi_application()


MAKE = {
    "fastapi": fastapi_app,
    "flask": flask_app,
    "django wsgi": lambda: django_app(False),
    "django asgi": lambda: django_app(True),
}
app = MAKE[KIND]() if KIND else None

"""A Django site whose requests are limited: by rules for all views, and by a decorator at some of them.

    uvicorn examples.django_site.asgi:application
    gunicorn examples.django_site.wsgi:application

One setting says where limits are kept and what they are. Where Django awaits it is awaited, where Django
blocks it blocks; views know nothing of that.
"""

import os
from typing import Any

from django.core.management.utils import get_random_secret_key

from zae_limiter import Limit
from zae_limiter.web import Rule, client_address

SECRET_KEY = os.environ.get("SECRET_KEY") or get_random_secret_key()
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "examples.django_site.urls"
USE_TZ = True

KEYS = {"key-of-ada": "ada", "key-of-bob": "bob"}  # yours are in a database


def user_of(asked: Any) -> str | None:
    """Whose request it is; a key that is not ours is a 401."""
    return KEYS.get(asked.headers.get("x-api-key", ""))


MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "zae_limiter.web.django.DjangoRateLimitMiddleware",
]
ZAE_LIMITER = {
    "limiter": os.environ.get("STORE", "sqlite:///site.db"),
    "rules": [
        Rule("/api/*", "api", {"rpm": 1}, limits=[Limit.per_minute("rpm", 30)], entity=user_of),
        Rule("/*", "pages", {"rpm": 1}, limits=[Limit.per_minute("rpm", 60)]),
    ],
    "entity": client_address(),
}

"""Views of the site, plain and awaited; what is costly has limits of its own."""

import asyncio

from django.http import HttpRequest, HttpResponse, JsonResponse

from zae_limiter import Limit
from zae_limiter.web.django import limited

from .settings import user_of

REPORTS = [Limit.per_day("reports", 2)]
SEARCHES = [Limit.concurrent("searches", 4, hold="1m")]


def home(_request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@limited("reports", limits=REPORTS, entity=user_of)
def report(_request: HttpRequest) -> HttpResponse:
    """Two a day for each user, and each of them is a request to the API, too."""
    return JsonResponse({"pages": 12})


@limited("search", limits=SEARCHES, entity=user_of)
async def search(request: HttpRequest) -> HttpResponse:
    """Four at once for each user."""
    await asyncio.sleep(0.01)  # stands for your index
    return JsonResponse({"found": request.GET.get("q", "").split()})

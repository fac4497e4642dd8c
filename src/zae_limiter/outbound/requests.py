"""An adapter for ``requests`` whose requests wait for their turn."""

from __future__ import annotations

from typing import Any

from ..runtime.colour import run_sync
from .provider import LocalAnswer, Provider

try:
    import requests
    from requests.adapters import HTTPAdapter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError('requests is not installed; run: pip install "requests>=2.32"') from error

UNSENT = (requests.exceptions.ConnectTimeout,)
"""After these nothing was sent."""


class PacedAdapter(HTTPAdapter):
    """Sends each request at its turn: ``session.mount("https://api.example.com", adapter)``."""

    def __init__(self, provider: Provider, **options: Any) -> None:
        provider.check_colour(sync=True)
        self._provider = provider
        super().__init__(**options)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        lease = run_sync(self._provider.admit(request))
        if isinstance(lease, LocalAnswer):
            return _response(lease, request)
        try:
            response = super().send(request, *args, **kwargs)
        except BaseException as error:
            run_sync(self._provider.failed(lease, sent=not isinstance(error, UNSENT)))
            raise
        run_sync(self._provider.answered(lease, response.status_code, response.headers.items()))
        return response


def _response(answer: LocalAnswer, request: requests.PreparedRequest) -> requests.Response:
    response = requests.Response()
    response.status_code, response.request, response.url = answer.status, request, request.url or ""
    response.headers.update(answer.headers)
    response._content = answer.body
    return response

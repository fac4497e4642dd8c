"""An adapter for ``requests`` whose requests wait for their turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from io import BytesIO
from typing import Any

from ..exceptions import ValidationError
from ..runtime.colour import run_sync
from .provider import LocalAnswer, Provider, Told

try:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.exceptions import NewConnectionError
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError('requests is not installed; run: pip install "requests>=2.32"') from _error


class PacedAdapter(HTTPAdapter):
    """Sends each request at its turn: ``session.mount("https://api.example.com", adapter)``."""

    def __init__(self, provider: Provider, **options: Any) -> None:
        provider.check_colour(sync=True)
        self._provider = provider
        super().__init__(**options)
        retries = self.max_retries
        if any((retries.total, retries.connect, retries.read, retries.status, retries.other)):
            reason = "tries of its own would have no turn; send again what failed, through the session"
            raise ValidationError("max_retries", options.get("max_retries"), reason)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        library = _Requests(partial(super().send, request, *args, **kwargs))
        return run_sync(self._provider.exchange(library, request))


class _Requests:
    """What an exchange asks of the library, for one request with its options."""

    def __init__(self, sending: Callable[[], requests.Response]) -> None:
        self._sending = sending

    async def send(self, _: requests.PreparedRequest) -> requests.Response:
        return self._sending()

    def is_unsent(self, error: BaseException) -> bool:
        if isinstance(error, requests.exceptions.ConnectTimeout):
            return True
        reason = getattr(error.args[0], "reason", None) if error.args else None
        return isinstance(getattr(reason, "original_error", reason), NewConnectionError)  # of a proxy

    def local(self, request: requests.PreparedRequest, answer: LocalAnswer) -> requests.Response:
        response = requests.Response()
        response.status_code, response.request, response.url = answer.status, request, request.url or ""
        response.reason = HTTPStatus(answer.status).phrase  # `raise_for_status` says it
        response.headers.update(answer.headers)
        response.raw = BytesIO(answer.body)  # for whoever streams it
        return response

    def told(self, got: requests.Response) -> Told:
        return got.status_code, got.headers.items()

    async def close(self, got: requests.Response) -> None:
        got.close()

"""What an exchange asks of ``httpx`` and of ``httpx2``, by the same names, in either colour."""

from __future__ import annotations

from typing import Any

from .provider import LocalAnswer, Told


class LikeHttpx:
    """Sends through a transport of the library, async or sync; ``library`` is its module."""

    def __init__(self, inner: Any, library: Any, *, is_async: bool) -> None:
        self._inner, self._library, self._is_async = inner, library, is_async
        self._unsent = (library.ConnectError, library.ConnectTimeout, library.PoolTimeout)

    def is_unsent(self, error: BaseException) -> bool:
        """After these nothing was sent."""
        return isinstance(error, self._unsent)

    def local(self, request: Any, answer: LocalAnswer) -> Any:
        return self._library.Response(
            answer.status, headers=answer.headers, content=answer.body, request=request
        )

    def told(self, got: Any) -> Told:
        return got.status_code, got.headers.multi_items()

    async def send(self, request: Any) -> Any:
        if self._is_async:
            return await self._inner.handle_async_request(request)
        return self._inner.handle_request(request)

    async def close(self, got: Any) -> None:
        if self._is_async:
            await got.aclose()
        else:
            got.close()

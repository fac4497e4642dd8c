"""The page: static files that are part of the package, under ``/ui/``.

They tell nothing about limits: whoever may read those shows a token, and the page asks for data with the
cookie that it gets for it. Nothing is run that is not one of these files, and nothing is loaded from
anywhere else, which the policy below has browsers enforce.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ..state import ServerState
from .files import PageFile, page_files

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"


def routes(server: ServerState) -> list[BaseRoute]:  # noqa: ARG001 - files are the same whatever the server
    files = page_files()

    async def document(request: Request) -> Response:
        return response_of_file(request, files.document, ASK_AGAIN)

    async def asset(request: Request) -> Response:
        found = files.assets.get(request.path_params["path"])
        # Another digest is another version, whose files must not be mixed with these.
        if found is None or request.path_params["digest"] != files.digest:
            raise HTTPException(404, "there is no such file in this version of the page; load it again")
        return response_of_file(request, found, FOR_EVER)

    async def to_document(_: Request) -> Response:
        return RedirectResponse("ui/", 307)

    return [
        Route("/", to_document),
        Route("/ui", to_document),
        Route("/ui/", document),
        Route("/ui/assets/{digest}/{path:path}", asset),
    ]


def response_of_file(request: Request, file: PageFile, caching: str) -> Response:
    """A file, or that the browser has it already."""
    headers = {
        "cache-control": caching,
        "content-security-policy": POLICY,
        "etag": file.etag,
        "vary": "accept-encoding",
    }
    known = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
    if known & {file.etag, "*"}:
        return Response(None, 304, headers)
    body = file.body
    if file.gzipped is not None and accepts_gzip(request.headers.get("accept-encoding", "")):
        body, headers["content-encoding"] = file.gzipped, "gzip"
        headers["etag"] = f"W/{file.etag}"  # other bytes, the same meaning
    return Response(body, 200, headers, media_type=file.media_type)


def accepts_gzip(said: str) -> bool:
    """Whether a client takes what is compressed."""
    for one in said.lower().split(","):
        name, _, quality = one.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False

"""A route of Starlette that reads JSON and answers JSON, and does nothing else."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def answer(request: Request) -> JSONResponse:
    return JSONResponse({"told": (await request.json())["entity"]})


app = Starlette(routes=[Route("/bare", answer, methods=["POST"])])

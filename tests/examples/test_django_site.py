"""The Django site under ASGI and WSGI: the same answers, whether Django awaits or blocks."""

from pathlib import Path

import httpx
import pytest

from tests.examples.servers import GUNICORN, UVICORN, serving
from tests.patience import PATIENCE_SECONDS
from zae_limiter import Limit, SyncRateLimiter

ADA, BOB = {"x-api-key": "key-of-ada"}, {"x-api-key": "key-of-bob"}
SEATS = [Limit.concurrent("searches", 4, hold="1m")]


@pytest.mark.parametrize(("server", "kind"), [(UVICORN, "asgi"), (GUNICORN, "wsgi")], ids=["asgi", "wsgi"])
def test_a_site(server: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    """Rules bind all views, the decorator binds its own, plain and awaited; nobody is named."""
    store = f"sqlite:///{tmp_path}/site.db?timeout_ms=60000"
    app = f"examples.django_site.{kind}:application"
    with (
        serving(server, app, tmp_path, STORE=store) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as client,
    ):
        home = client.get("/")
        assert (home.status_code, home.text) == (200, "hello")
        assert home.headers["ratelimit"].startswith('"rpm";r=59;t=')

        nobody = [client.get("/api/report"), client.get("/api/search", headers={"x-api-key": "guess"})]
        assert [one.status_code for one in nobody] == [401, 401]

        reports = [client.get("/api/report", headers=ADA) for _ in range(3)]
        assert [one.status_code for one in reports] == [200, 200, 429]
        assert reports[0].json() == {"pages": 12}
        names = [part.split(";")[0] for part in reports[0].headers["ratelimit"].split(", ")]
        assert names == ['"rpm"', '"reports"']
        assert reports[2].json()["violated-policies"] == ["reports"]
        assert client.get("/api/report", headers=BOB).status_code == 200

        searches = [client.get("/api/search?q=red+fox", headers=ADA) for _ in range(5)]
        assert [one.status_code for one in searches] == [200] * 5
        assert searches[0].json() == {"found": ["red", "fox"]}
        assert '"searches";r=3' in searches[-1].headers["ratelimit"]

        lost = client.get("/api/nothing", headers=ADA)
        assert (lost.status_code, "ratelimit" in lost.headers) == (404, True)
        seen = [home, *nobody, *reports, *searches]
        said = [f"{one.headers} {one.text}".lower() for one in seen]
        words = ("key-of", "guess", "'ada'", "127.0.0.1", "namespace", "default")
        assert [(one, word) for one in said for word in words if word in one] == []
    with SyncRateLimiter.open(store) as limiter:
        assert limiter.available("ada", "search", SEATS) == {"searches": 4}

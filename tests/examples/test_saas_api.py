"""The SaaS API under gunicorn with two workers: plans, a quota on trial, a kill switch."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.examples.servers import GUNICORN, serving
from tests.patience import PATIENCE_SECONDS

TOKEN = "operator-secret"
ADMIN = {"x-admin-token": TOKEN}
ACME, GLOBEX = {"x-api-key": "key-of-acme"}, {"x-api-key": "key-of-globex"}
SEARCH, REPORT = "/api/search?q=red+fox", "/api/report?q=red+fox+den"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[httpx.Client]:
    settings = {"STORE": f"sqlite:///{tmp_path}/saas.db?timeout_ms=60000", "ADMIN_TOKEN": TOKEN}
    with (
        serving(GUNICORN, "examples.saas_api:app", tmp_path, **settings) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False) as client,
    ):
        yield client


def test_a_customer_from_trial_to_plan(api: httpx.Client) -> None:
    """Everybody is on the free plan; a quota on trial refuses nobody; another plan binds at once."""

    def ask(who: dict[str, str], path: str = SEARCH) -> httpx.Response:
        return api.get(path, headers=who)

    def put(path: str, **said: object) -> httpx.Response:
        answer = api.put(f"/admin/{path}", json=said, headers=ADMIN)
        assert answer.status_code == 200
        return answer

    seen = [ask({}), ask({"x-api-key": "key-of-nobody"})]
    assert [one.status_code for one in seen] == [401, 401]
    assert ask(ADMIN, "/admin/customers/acme").json() == {"rpm": 60, "calls": 10}
    guesses = {b"x-admin-token": "é".encode()}, {b"x-api-key": b"key-of-acme"}
    assert [api.get("/admin/customers/acme", headers=one).status_code for one in guesses] == [403, 403]

    # The quota of the free plan is hard: ten calls a month, over both workers.
    free = [ask(ACME) for _ in range(11)]
    seen += free
    assert [one.status_code for one in free] == [200] * 10 + [429]
    assert (free[0].json(), free[0].headers.get("x-over-limit")) == ({"found": ["red", "fox"]}, None)
    assert '"calls";r=9;' in free[0].headers["ratelimit"]
    assert (free[-1].json()["violated-policies"], free[-1].headers["x-should-retry"]) == (["calls"], "false")

    # On trial it is counted, and told.
    assert put("customers/acme", plan="free", trial=True).json()["calls"] == 0
    trial = [ask(ACME) for _ in range(3)]
    seen += trial
    assert [(one.status_code, one.headers.get("x-over-limit")) for one in trial] == [(200, "calls")] * 3
    assert "calls" not in trial[0].headers["ratelimit"]
    assert ask(ADMIN, "/admin/customers/acme").json()["calls"] == -3

    # Another plan binds at the next request, and what was used counts.
    assert put("customers/acme", plan="pro").json()["calls"] == 100_000 - 13
    seen.append(ask(ACME))
    assert (seen[-1].status_code, seen[-1].headers.get("x-over-limit")) == (200, None)

    # A report costs what it has pages, whatever was held for it.
    seen.append(ask(ACME, REPORT))
    assert (seen[-1].status_code, seen[-1].json()) == (200, {"pages": 3})
    assert '"calls";r=99976;' in seen[-1].headers["ratelimit"]
    assert ask(ADMIN, "/admin/customers/acme").json()["calls"] == 100_000 - 14 - 3

    # The switch stops one customer, then everybody, and lets them go on.
    put("switch", off=True, reason="unpaid", customer="acme")
    seen += [ask(ACME), ask(GLOBEX)]
    assert [one.status_code for one in seen[-2:]] == [403, 200]
    put("switch", off=True, reason="maintenance")
    seen += [ask(GLOBEX), ask(GLOBEX)]
    assert [one.status_code for one in seen[-2:]] == [503, 503]
    assert "maintenance" in seen[-1].json()["detail"]
    put("switch", off=False)
    put("switch", off=False, customer="acme")
    seen += [ask(ACME), ask(GLOBEX)]
    assert [one.status_code for one in seen[-2:]] == [200, 200]

    said = [f"{one.headers} {one.text}" for one in seen]
    assert [(one, word) for one in said for word in ("acme", "globex", TOKEN, "default") if word in one] == []

"""A SaaS API: customers on plans, a quota by the month that is tried before it bites, and a kill switch.

    ADMIN_TOKEN=… gunicorn --workers 4 examples.saas_api:app

Every customer has the plan "free" until an operator says otherwise. A quota on trial is counted and refuses
nobody: whoever is above it is told so in a header. All of it binds at the next request, in all workers.
"""

import hmac
import os
from typing import Any

from flask import Flask, Response, abort, g, jsonify, request

from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.web import Rule, SyncRequest
from zae_limiter.web.flask import RateLimits

STORE = os.environ.get("STORE", "sqlite:///saas.db")
ADMIN_TOKEN = os.environ.get("ADMIN_TOKEN", "")
CUSTOMERS = {"key-of-acme": "acme", "key-of-globex": "globex"}  # yours are in a database


def plan(rpm: int, calls: int) -> list[Limit]:
    """So many requests a minute, and so many a month, as months are in Berlin."""
    return [Limit.per_minute("rpm", rpm), Limit.per_month("calls", calls, tz="Europe/Berlin")]


PLANS = {"free": plan(rpm=60, calls=10), "pro": plan(rpm=600, calls=100_000)}


def customer(asked: SyncRequest) -> str | None:
    """Whose request it is; a key that is not ours is a 401."""
    return CUSTOMERS.get(asked.headers.get("x-api-key", ""))


app = Flask(__name__)
limiter = SyncRateLimiter.open(STORE)
limiter.set_resource_defaults("api", PLANS["free"])
rules = [
    Rule("/api/report", "api", {"rpm": 1, "calls": 10}),
    Rule("/api/*", "api", {"rpm": 1, "calls": 1}),
]
RateLimits(app, limiter=limiter, rules=rules, entity=customer)


@app.get("/api/search")
def search() -> dict[str, Any]:
    return {"found": request.args.get("q", "").split()}


@app.get("/api/report")
def report() -> dict[str, Any]:
    """Ten calls are held while it is made; it costs one for each page."""
    pages = len(request.args.get("q", "").split())
    g.lease.settle(calls=pages)
    return {"pages": pages}


@app.after_request
def tell_of_trials(response: Response) -> Response:
    """Tell a customer which limits would have refused the request, were they not on trial."""
    if "lease" in g and g.lease.exceeded:
        response.headers["X-Over-Limit"] = ", ".join(g.lease.exceeded)
    return response


@app.before_request
def admit_operators() -> None:
    """Operators have a token of their own; without one nobody is an operator."""
    if request.path.startswith("/admin/"):
        sent = request.headers.get("x-admin-token", "")
        if not ADMIN_TOKEN or not hmac.compare_digest(sent.encode(), ADMIN_TOKEN.encode()):
            abort(403)


@app.put("/admin/customers/<name>")
def put_on_plan(name: str) -> Response:
    """``{"plan": "pro", "trial": true}``: another plan, whose quota is on trial, or bites."""
    said = request.get_json()
    rate, quota = PLANS[said["plan"]] if said["plan"] in PLANS else abort(400, "no such plan")
    limiter.set_limits(name, [rate, quota.softly() if said.get("trial") else quota], "api", principal="admin")
    return look_at(name)


@app.get("/admin/customers/<name>")
def look_at(name: str) -> Response:
    """What is left of a customer's limits, below zero for what was taken on trial."""
    return jsonify(limiter.available(name, "api"))


@app.put("/admin/switch")
def switch() -> dict[str, Any]:
    """``{"off": true, "reason": "…"}`` stops the API at once, or with ``"customer"`` one of its customers."""
    said = request.get_json()
    if said["off"]:
        limiter.disable(entity_id=said.get("customer"), resource="api", reason=said["reason"])
    else:
        limiter.enable(entity_id=said.get("customer"), resource="api")
    return {"off": said["off"]}

"""The public names of ``zae_limiter.web``: complete, sorted and real."""

import importlib
import inspect
import pkgutil

from zae_limiter import web

# Public by spelling but not exported, each with its reason.
NOT_EXPORTED = {
    "ClientLeft": "ends a request whose client is gone; nobody catches it",
    "HeaderFields": "what request.headers is; users read it as a mapping",
    "Identified": "what api_key and the others return; users call it",
    "Match": "what rules tell the middleware",
    "RequestFacts": "what both kinds of request have in common",
    "ResponseMeter": "exported as Meter",
    "Told": "a lease of either colour, as far as answers need it",
    "clean": "how a path is meant",
    "encoded": "headers as ASGI has them",
    "entity_of": "what identities make of a key",
    "parsed_json": "shared by both kinds of request",
    "retry_seconds": "shared by answers of requests and WebSockets",
    "route_path": "the path as routes see it",
    "LimitedBody": "what a server iterates over",
    "refuse_sync": "how WSGI sends an answer",
    "Exchange": "one response on its way",
    "Life": "an application from its start to its end",
    "Charged": "what a response is on its way with",
    "Demanded": "who asks for what, inside",
    "Ending": "how a response ended, inside",
    "HeldLease": "a lease of either colour, as far as a response needs it",
    "RequestCharge": "what one request holds, inside",
    "acquired": "what a rule asks of a limiter",
    "awaited": "shared by charges of requests and messages",
    "begin": "how the middleware charges a request",
    "demanded": "who asks for what, inside",
    "lets_pass": "shared by both kinds of middleware",
    "opened_sync": "how WSGI opens a lease",
    "root_of": "what FastAPI takes for its root path",
}
MODULES = ("answers", "asgi", "charge", "identity", "request", "rules", "wsgi")
INSIDE = {
    "drafts": "how a limit is spelt in headers; users choose by name, from DRAFTS and LEGACY",
    "held": "the limiter of a middleware",
    "routes": "what the modules of frameworks have in common",
    "rules_file": "behind Rules.from_file",
    "structured": "how fields are spelt",
    "websocket": "behind the middleware",
}
"""Modules of which users need nothing, each with its reason."""

FRAMEWORKS = {"django", "fastapi", "flask"}
"""They say themselves what they export."""


def test_every_module_is_looked_at() -> None:
    """Or the table says why not."""
    found = {module.name for module in pkgutil.iter_modules(web.__path__)}
    assert found == {*MODULES, *INSIDE, *FRAMEWORKS}


def test_public_definitions_are_exported() -> None:
    """What looks public can be imported from the package, or the table says why not."""
    found = set()
    for module in (importlib.import_module(f"zae_limiter.web.{name}") for name in MODULES):
        found |= {
            key
            for key, value in vars(module).items()
            if not key.startswith("_")
            and (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__ == module.__name__
        }
    assert found - set(web.__all__) == set(NOT_EXPORTED)


def test_exports_are_sorted_and_real() -> None:
    """A name is found where the alphabet puts it, once."""
    assert web.__all__ == sorted(set(web.__all__))
    assert [name for name in web.__all__ if not hasattr(web, name)] == []

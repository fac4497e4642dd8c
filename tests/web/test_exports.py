"""The public names of ``zae_limiter.web``: complete, sorted and real."""

import importlib
import inspect

import pytest

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
    "Environ": "an alias",
    "LimitedBody": "what a server iterates over",
    "refuse_sync": "how WSGI sends an answer",
    "Exchange": "one response on its way",
    "Life": "an application from its start to its end",
}
MODULES = ("answers", "asgi", "identity", "request", "rules", "wsgi")


@pytest.mark.parametrize("name", MODULES)
def test_public_definitions_are_exported(name: str) -> None:
    """What looks public can be imported from the package, or the table says why not."""
    module = importlib.import_module(f"zae_limiter.web.{name}")
    defined = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }
    assert sorted(defined - set(web.__all__) - set(NOT_EXPORTED)) == []


def test_exports_are_sorted_and_real() -> None:
    """A name is found where the alphabet puts it, once."""
    assert web.__all__ == sorted(set(web.__all__))
    assert [name for name in web.__all__ if not hasattr(web, name)] == []

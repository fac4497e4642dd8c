"""The description of the server: complete, and every example in it is a request that works."""

from __future__ import annotations

import re
from typing import Any

from starlette.routing import Route

from tests.server.asking import SECRET, asking, config
from zae_limiter.server.app import application
from zae_limiter.server.openapi import document


def described() -> set[tuple[str, str]]:
    return {(path, verb) for path, verbs in document()["paths"].items() for verb in verbs}


def test_it_describes_all_that_is_served() -> None:
    """Each route of the decisions is in it, with its method, and no other."""
    routes = [route for route in application(config()).routes if isinstance(route, Route)]
    served = {
        (route.path, method.lower())
        for route in routes
        if route.path.startswith("/v1/") and not route.path.startswith(("/v1/view", "/v1/change"))
        for method in (route.methods or ()) - {"HEAD"}
    }
    assert described() == served


def test_every_reference_leads_somewhere() -> None:
    """What is named is defined, ids of operations are unique, and each path parameter is declared."""
    told = document()
    for name in re.findall(r"'#/components/schemas/(\w+)'", repr(told)):
        assert name in told["components"]["schemas"]
    operations = [one for verbs in told["paths"].values() for one in verbs.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    for path, verbs in told["paths"].items():
        for one in verbs.values():
            declared = {p["name"] for p in one["parameters"] if p["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path))


def fits(value: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> bool:
    """Whether a value is as a schema says, as far as ours go."""
    if "$ref" in schema:
        return fits(value, schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "allOf" in schema:
        return all(fits(value, one, schemas) for one in schema["allOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    types: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "null": type(None),
        "integer": int,
        "number": (int, float),
    }
    if not isinstance(value, tuple(types[kind] for kind in kinds)):
        return False
    if isinstance(value, dict):
        others = schema.get("additionalProperties", True)
        known = schema.get("properties", {})
        return all(name in value for name in schema.get("required", ())) and all(
            fits(one, known[name], schemas)
            if name in known
            else others is True or (others and fits(one, others, schemas))
            for name, one in value.items()
        )
    return not isinstance(value, list) or all(fits(one, schema["items"], schemas) for one in value)


async def test_every_example_works() -> None:
    """Each operation is asked as its example says, and answers as its schema says."""
    async with asking() as server:
        told = (await server.http.get("/openapi.json")).json()
        assert told == document()
        schemas = told["components"]["schemas"]
        for path, verbs in told["paths"].items():
            for method, operation in verbs.items():
                taken = await server.acquire({"tpm": 1}, entity=operation["operationId"])
                lease = taken.json()["lease"]
                given = [p for p in operation["parameters"] if "example" in p]
                body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                answer = await server.http.request(
                    method,
                    path.replace("{lease_id}", lease),
                    params={p["name"]: p["example"] for p in given if p["in"] == "query"},
                    headers={p["name"]: p["example"] for p in given if p["in"] == "header"}
                    | {"Authorization": f"Bearer {SECRET}"},
                    json=body.get("example"),
                )
                assert answer.is_success, answer.text
                expected = operation["responses"][str(answer.status_code)]
                if "content" in expected:
                    schema = expected["content"]["application/json"]["schema"]
                    assert fits(answer.json(), schema, schemas), answer.text
                refused = await server.http.request(method, path.replace("{lease_id}", lease))
                problem = refused.json()
                assert refused.status_code == 401
                assert fits(problem, schemas["Problem"], schemas)

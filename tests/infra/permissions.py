"""Whether IAM would allow a request: the part of its rules that our policies use.

An action needs a statement that allows it and none that denies it. A statement counts if its action, its
resource and all its conditions match. What is not known here is an error, so a policy cannot come to use
something that is not evaluated.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LEADING_KEYS = "dynamodb:LeadingKeys"
PRINCIPAL_TAG = "aws:PrincipalTag/"
VIA_SERVICE = "kms:ViaService"


class Request(NamedTuple):
    """What a caller asks for; ``leading_keys`` are the partition keys it names, if any."""

    action: str
    resource: str
    leading_keys: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    """Of the caller."""
    via: str = ""
    """The service that uses a key in the name of the caller."""

    def values(self, key: str) -> tuple[str, ...]:
        """The values that a condition key has in this request."""
        if key == LEADING_KEYS:
            return self.leading_keys
        if key.startswith(PRINCIPAL_TAG):
            return tuple(value for name, value in self.tags if name == key.removeprefix(PRINCIPAL_TAG))
        if key == VIA_SERVICE:
            return (self.via,) if self.via else ()
        raise AssertionError(f"condition on {key}")


def is_allowed(statements: Iterable[Mapping[str, Any]], request: Request) -> bool:
    effects = {statement["Effect"] for statement in statements if applies(statement, request)}
    return effects == {"Allow"}


def applies(statement: Mapping[str, Any], request: Request) -> bool:
    known = {"Sid", "Effect", "Action", "Resource", "Condition"}
    assert statement.keys() <= known, f"{statement.keys() - known} in a statement"
    return (
        any(_like(one.lower(), request.action.lower()) for one in listed(statement["Action"]))
        and any(_like(one, request.resource) for one in listed(statement["Resource"]))
        and all(
            _holds(operator, key, listed(wanted), request)
            for operator, tests in statement.get("Condition", {}).items()
            for key, wanted in tests.items()
        )
    )


def listed(one_or_more: Any) -> list[Any]:
    return one_or_more if isinstance(one_or_more, list) else [one_or_more]


def _holds(operator: str, key: str, wanted: list[str], request: Request) -> bool:
    present = request.values(key)
    match operator:
        case "Null":
            return [str(not present).lower()] == wanted
        case "ForAllValues:StringLike":
            # It holds when there is nothing to compare; that is IAM's rule, and its pitfall.
            return all(any(_like(one, value, request) for one in wanted) for value in present)
        case "ForAllValues:StringNotLike":
            return all(not any(_like(one, value, request) for one in wanted) for value in present)
        case "StringEquals":
            return any(value in wanted for value in present)
        case "StringNotEquals":
            return not any(value in wanted for value in present)
    raise AssertionError(f"operator {operator}")


def _like(pattern: str, text: str, request: Request | None = None) -> bool:
    """Match ``*`` and ``?``; what a policy variable stands for is taken letter by letter."""
    parts = []
    for part in re.split(r"(\$\{[^}]*\}|[*?])", pattern):
        if part.startswith("${"):
            assert request is not None, f"a variable in {pattern}"
            values = request.values(part[2:-1])
            if not values:
                return False
            parts.append(re.escape(values[0]))
        else:
            parts.append({"*": ".*", "?": "."}.get(part, re.escape(part)))
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def unused(statements: list[dict[str, Any]], requests: list[Request]) -> list[tuple[str, str]]:
    """The parts of statements without which all requests would be allowed as well."""
    found = []
    for statement in statements:
        matching = [one for one in requests if applies(statement, one)]
        for field in ("Action", "Resource"):
            for part in listed(statement[field]):
                if not any(applies(statement | {field: part}, one) for one in matching):
                    found.append((statement["Sid"], part))
        for pattern in (
            statement.get("Condition", {}).get("ForAllValues:StringLike", {}).get(LEADING_KEYS, ())
        ):
            only = {"ForAllValues:StringLike": {LEADING_KEYS: pattern}}
            keys = [one._replace(leading_keys=(key,)) for one in matching for key in one.leading_keys]
            if not any(applies(statement | {"Condition": only}, key) for key in keys):
                found.append((statement["Sid"], pattern))
    return found

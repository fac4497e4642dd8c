"""The function behind the custom resource of ``template``: ``zae_limiter.operate.manifest.provider.handler``.

It is told a table, a namespace and a manifest as JSON, and applies it. Deletion applies a manifest that
wants nothing, so it deletes what applies have made and no more; where the table or the namespace is
gone there is nothing to do. CloudFormation repeats what it is not answered, which changes nothing.
It makes no namespace: its role may write to the one that it was deployed for, and not to the registry.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final
from urllib.request import Request, urlopen

from ...backends.dynamodb import open_backend
from ...exceptions import InfrastructureNotFoundError, NamespaceNotFoundError, ValidationError
from ...naming import validate_namespace
from ...sync import SyncRepository
from .grammar import parse_json
from .model import LevelChange, Manifest
from .stored_limits import SyncStoredLimits

ANSWER_ATTEMPTS_MAX = 3
REASON_CHARACTERS_MAX = 1_000
"""CloudFormation takes answers of 4 KB."""

logger: Final = logging.getLogger("zae_limiter.operate.manifest")


def handler(event: Mapping[str, Any], context: Any = None) -> dict[str, Any]:
    """Do what CloudFormation asks for, and answer it; returns the answer."""
    del context
    answer = {
        "Status": "SUCCESS",
        "Reason": "",
        "PhysicalResourceId": physical_id(event),
        **{name: event.get(name) for name in ("StackId", "RequestId", "LogicalResourceId")},
    }
    try:
        done = Counter(change.action for change in perform(event))
        applied = ", ".join(f"{count} {action}d" for action, count in done.items())
        answer["Data"] = {"Applied": applied or "nothing"}
    except Exception as error:  # whatever it is, a stack that is not answered waits for an hour
        logger.exception("the limits were not applied")
        reason = f"{type(error).__name__}: {error}"
        answer |= {"Status": "FAILED", "Reason": reason[:REASON_CHARACTERS_MAX]}
    send(str(event["ResponseURL"]), answer)
    return answer


def physical_id(event: Mapping[str, Any]) -> str:
    """What the resource is: the limits of one namespace of one table.

    Another table or namespace is another resource, and CloudFormation then deletes the old one.
    """
    if event.get("RequestType") == "Delete" and event.get("PhysicalResourceId"):
        return str(event["PhysicalResourceId"])
    properties = event.get("ResourceProperties", {})
    return f"{properties.get('TableName')}/{properties.get('Namespace')}"


def perform(event: Mapping[str, Any]) -> list[LevelChange]:
    """What a request changes."""
    properties: Mapping[str, Any] = event["ResourceProperties"]
    namespace, principal = validate_namespace(properties["Namespace"]), properties.get("Principal")
    is_deletion, manifest = event["RequestType"] == "Delete", Manifest({})
    if not is_deletion:
        manifest = parse_json(properties["Manifest"], "Manifest")
        if manifest.namespace not in (None, namespace):
            raise ValidationError("Namespace", namespace, f"the manifest is for {manifest.namespace!r}")
    try:
        with opened(properties, namespace) as repository:
            return SyncStoredLimits(repository).apply(manifest, principal)
    except (InfrastructureNotFoundError, NamespaceNotFoundError):
        if is_deletion:
            return []
        raise


def opened(properties: Mapping[str, Any], namespace: str) -> SyncRepository:
    """The namespace, if it is the one for which the function was deployed."""
    # Not by the URL alone: the package of the function holds what is imported here.
    backend = open_backend(f"dynamodb://{properties['TableName']}", sync=True, timeout_ms=10_000)
    repository = SyncRepository.over(backend, namespace, register=False)
    found, expected = repository.namespace_id, properties.get("NamespaceId")
    if expected not in (None, found):
        repository.close()
        raise NamespaceNotFoundError(
            f"namespace {namespace!r} has the id {found!r}, and this stack may write only to {expected!r}; "
            f"deploy it with NamespaceId={found}"
        )
    return repository


def send(url: str, answer: Mapping[str, Any]) -> None:
    """Put the answer where CloudFormation waits for it."""
    data = json.dumps(answer).encode()
    for attempt in range(1, ANSWER_ATTEMPTS_MAX + 1):
        # The signature of the URL covers an empty content type.
        request = Request(url, data, {"Content-Type": ""}, method="PUT")
        try:
            with urlopen(request, timeout=10):
                return
        except OSError:
            if attempt == ANSWER_ATTEMPTS_MAX:
                raise

"""A CloudFormation template that applies a manifest, for teams that deploy by pipeline.

CloudFormation knows no resource for a row of a table, so the template (``limits_template.yaml``) brings a
function that applies the manifest (``provider``) and a custom resource that calls it. Creating and updating
the stack apply the manifest it holds; deleting it deletes what its applies have made. The function writes to
one namespace, by its id, and only adds to its audit trail. The manifest travels as JSON text:
CloudFormation turns numbers of other properties into texts and takes some names for its own.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from ...exceptions import ValidationError
from ...naming import validate_namespace_id
from ...settings import DEFAULT_NAMESPACE
from .model import Manifest
from .writing import to_json

HANDLER = "zae_limiter.operate.manifest.provider.handler"
MANIFEST_BYTES_MAX = 200_000
"""What a custom resource is told must fit into one event of a function, which is 256 KB."""


def template(
    manifest: Manifest, table_name: str | None = None, namespace_id: str | None = None
) -> dict[str, Any]:
    """The template as data; ``table_name`` and ``namespace_id`` are the defaults of its parameters."""
    import yaml

    text = to_json(manifest, ascii_only=True)  # CloudFormation makes question marks of other letters
    if len(text) > MANIFEST_BYTES_MAX:
        raise ValidationError(
            "manifest",
            f"of {len(text)} bytes",
            f"a template holds at most {MANIFEST_BYTES_MAX}; let the pipeline run `zae-limiter limits apply`",
        )
    source = files(__package__).joinpath("limits_template.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(source)
    limits = {"Namespace": manifest.namespace or DEFAULT_NAMESPACE, "Manifest": text}
    data["Resources"]["Limits"]["Properties"] |= limits
    if table_name is not None:
        data["Parameters"]["TableName"]["Default"] = table_name
    if namespace_id is not None:
        data["Parameters"]["NamespaceId"]["Default"] = validate_namespace_id(namespace_id)
    return data


def to_text(data: dict[str, Any], *, as_json: bool = False) -> str:
    """The template as a file; in YAML the manifest stays readable."""
    if as_json:
        return json.dumps(data, indent=2) + "\n"
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as they are, and everything in its place: nothing refers to it."""

        def ignore_aliases(self, data: Any) -> bool:
            del data
            return True

    def as_block(dumper: Any, text: str) -> Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, as_block)
    written: str = yaml.dump(data, Dumper=Dumper, sort_keys=False, width=100)
    return written

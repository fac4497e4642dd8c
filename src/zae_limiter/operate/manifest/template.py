"""A CloudFormation template that applies a manifest, for teams that deploy by pipeline. Pure.

CloudFormation knows no resource for a row of a table, so the template brings a function that applies
the manifest (``provider``) and a custom resource that calls it. Creating and updating the stack apply
the manifest it holds; deleting it deletes what its applies have made. The function writes to one
namespace, by its id, and only adds to its audit trail. The manifest travels as JSON text:
CloudFormation turns numbers of other properties into texts and takes some names for its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...exceptions import ValidationError
from ...naming import validate_namespace_id
from ...schema import REGISTRY, pk_system
from ...settings import DEFAULT_NAMESPACE
from .model import Manifest
from .writing import to_json

HANDLER = "zae_limiter.operate.manifest.provider.handler"
MANIFEST_BYTES_MAX = 200_000
"""What a custom resource is told must fit into one event of a function, which is 256 KB."""

TIMEOUT_SECONDS = 900


def template(
    manifest: Manifest, table_name: str | None = None, namespace_id: str | None = None
) -> dict[str, Any]:
    """The template as data; ``table_name`` and ``namespace_id`` are the defaults of its parameters."""
    text = to_json(manifest, ascii_only=True)  # CloudFormation makes question marks of other letters
    if len(text) > MANIFEST_BYTES_MAX:
        raise ValidationError(
            "manifest",
            f"of {len(text)} bytes",
            f"a template holds at most {MANIFEST_BYTES_MAX}; let the pipeline run `zae-limiter limits apply`",
        )
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Limits of zae-limiter, applied by a function of this stack.",
        "Parameters": _parameters(table_name, namespace_id),
        "Conditions": {"OwnKey": {"Fn::Not": [{"Fn::Equals": [{"Ref": "KmsKeyArn"}, ""]}]}},
        "Resources": {
            "ProviderLogGroup": {
                "Type": "AWS::Logs::LogGroup",
                **GOES,
                "Properties": {"RetentionInDays": 30},
            },
            "ProviderRole": {"Type": "AWS::IAM::Role", "Properties": _role()},
            "ProviderFunction": {"Type": "AWS::Lambda::Function", "Properties": _function()},
            "Limits": {"Type": "Custom::ZaeLimiterLimits", **GOES, "Properties": _limits(manifest, text)},
        },
        "Outputs": {
            "Applied": {"Description": "What the last apply changed.", "Value": _get("Limits.Applied")}
        },
    }


GOES = {"DeletionPolicy": "Delete", "UpdateReplacePolicy": "Delete"}
"""With "Retain" the limits would outlive the stack."""


def to_text(data: dict[str, Any], *, as_json: bool = False) -> str:
    """The template as a file; in YAML the manifest stays readable."""
    if as_json:
        return json.dumps(data, indent=2) + "\n"
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as they are."""

    def as_block(dumper: Any, text: str) -> Any:
        style = "|" if "\n" in text else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, as_block)
    written: str = yaml.dump(data, Dumper=Dumper, sort_keys=False, width=100)
    return written


def _parameters(table_name: str | None, namespace_id: str | None) -> dict[str, Any]:
    if namespace_id is not None:
        validate_namespace_id(namespace_id)
    return {
        "TableName": _parameter(
            "The table of the limiter, which has the name of its stack.",
            table_name,
            AllowedPattern="^[A-Za-z0-9_.-]{3,255}$",
        ),
        "NamespaceId": _parameter(
            "The id of the namespace, as `zae-limiter namespace show` tells it.",
            namespace_id,
            AllowedPattern="^[A-Za-z0-9_.-]*[A-Za-z0-9.-][A-Za-z0-9_.-]*$",
        ),
        "KmsKeyArn": _parameter("The key of the table, if it has one of yours.", ""),
        "CodeBucket": _parameter("The bucket that holds the function's package."),
        "CodeKey": _parameter("The package in that bucket. A new package needs a new key to be noticed."),
    }


def _parameter(description: str, default: str | None = None, **more: str) -> dict[str, Any]:
    by_default = {} if default is None else {"Default": default}
    return {"Type": "String", "Description": description, **more, **by_default}


def _role() -> dict[str, Any]:
    service = {
        "Effect": "Allow",
        "Principal": {"Service": "lambda.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    return {
        "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [service]},
        "Policies": [
            {
                "PolicyName": "limits",
                "PolicyDocument": {"Version": "2012-10-17", "Statement": _statements()},
            }
        ],
    }


def _statements() -> list[dict[str, Any]]:
    """What the function may do: read and write one namespace, and look up its id."""
    table = "arn:${AWS::Partition}:dynamodb:${AWS::Region}:${AWS::AccountId}:table/${TableName}"
    writes = ["ConditionCheckItem", "DeleteItem", "PutItem", "UpdateItem"]
    use_key = {
        "Sid": "UseKey",
        "Effect": "Allow",
        "Action": "kms:Decrypt",
        "Resource": {"Ref": "KmsKeyArn"},
        "Condition": {"StringEquals": {"kms:ViaService": _sub("dynamodb.${AWS::Region}.amazonaws.com")}},
    }
    return [
        _allow("Describe", ["DescribeTable"], [table]),
        _allow("Read", ["BatchGetItem"], [table], [pk_system(REGISTRY), _own("*")]),
        _allow("List", ["Query"], [table, f"{table}/index/*"], [_own("*")]),
        _allow("Write", writes, [table], [_own("SYSTEM#"), _own("RESOURCE#*"), _own("ENTITY#*")]),
        # Buckets are told that the limits of their entity are others now.
        _allow("StampBuckets", ["UpdateItem"], [table], [_own("BUCKET#*")]),
        _allow("AddToAudit", ["PutItem"], [table], [_own("AUDIT#*")]),
        {
            "Sid": "Log",
            "Effect": "Allow",
            "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
            "Resource": _get("ProviderLogGroup.Arn"),
        },
        {"Fn::If": ["OwnKey", use_key, {"Ref": "AWS::NoValue"}]},
    ]


def _allow(
    sid: str, actions: Sequence[str], resources: Sequence[str], keys: Sequence[str | dict[str, str]] = ()
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"dynamodb:{action}" for action in actions],
        "Resource": [_sub(resource) for resource in resources],
    }
    if keys:
        # A condition on all leading keys holds when there are none, so one has to be there, too.
        leading = "dynamodb:LeadingKeys"
        is_one_of = {"Null": {leading: "false"}, "ForAllValues:StringLike": {leading: list(keys)}}
        statement["Condition"] = is_one_of
    return statement


def _function() -> dict[str, Any]:
    return {
        "Description": "Applies manifests of zae-limiter.",
        "Runtime": "python3.13",
        "Architectures": ["arm64"],
        "Handler": HANDLER,
        "Code": {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "CodeKey"}},
        "Role": _get("ProviderRole.Arn"),
        "Timeout": TIMEOUT_SECONDS,
        "MemorySize": 256,
        "LoggingConfig": {"LogGroup": {"Ref": "ProviderLogGroup"}},
    }


def _limits(manifest: Manifest, text: str) -> dict[str, Any]:
    return {
        "ServiceToken": _get("ProviderFunction.Arn"),
        "ServiceTimeout": TIMEOUT_SECONDS,
        "TableName": {"Ref": "TableName"},
        "Namespace": manifest.namespace or DEFAULT_NAMESPACE,
        "Principal": _sub("cloudformation:${AWS::StackName}"),
        "NamespaceId": {"Ref": "NamespaceId"},
        "Manifest": text,
    }


def _get(attribute: str) -> dict[str, Any]:
    return {"Fn::GetAtt": attribute.split(".", 1)}


def _sub(text: str) -> dict[str, str]:
    return {"Fn::Sub": text}


def _own(keys: str) -> dict[str, str]:
    """Keys of the namespace that the stack is for."""
    return _sub(f"${{NamespaceId}}/{keys}")

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
from .model import Manifest
from .writing import to_json

HANDLER = "zae_limiter.operate.manifest.provider.handler"
MANIFEST_BYTES_MAX = 200_000
"""What a custom resource is told must fit into one event of a function, which is 256 KB."""

NAMESPACE = "default"
TIMEOUT_SECONDS = 900

REGISTRY_KEY = "_/SYSTEM#"
"""Where the names and ids of namespaces are looked up."""
WRITTEN = ("SYSTEM#", "RESOURCE#*", "ENTITY#*")
AUDIT = "AUDIT#*"
LEADING_KEYS = "dynamodb:LeadingKeys"


def template(
    manifest: Manifest, table_name: str | None = None, namespace_id: str | None = None
) -> dict[str, Any]:
    """The template as data; ``table_name`` and ``namespace_id`` are the defaults of its parameters."""
    text = to_json(manifest, ascii_only=True)  # CloudFormation makes question marks of other letters
    if len(text.encode()) > MANIFEST_BYTES_MAX:
        raise ValidationError(
            "manifest",
            f"of {len(text.encode())} bytes",
            f"a template holds at most {MANIFEST_BYTES_MAX}; let the pipeline run `zae-limiter limits apply`",
        )
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Limits of zae-limiter, applied by a function of this stack.",
        "Parameters": _parameters(table_name, namespace_id),
        "Conditions": {"OwnKey": {"Fn::Not": [{"Fn::Equals": [{"Ref": "KmsKeyArn"}, ""]}]}},
        "Resources": {
            "ProviderLogGroup": _log_group(),
            "ProviderRole": _role(),
            "ProviderFunction": _function(),
            "Limits": _limits(manifest, text),
        },
        "Outputs": {
            "Applied": {"Description": "What the last apply changed.", "Value": _get("Limits.Applied")}
        },
    }


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
    return {
        "TableName": {
            "Type": "String",
            "Description": "The table of the limiter, which has the name of its stack.",
            "AllowedPattern": "^[A-Za-z0-9_.-]{3,255}$",
            **({} if table_name is None else {"Default": table_name}),
        },
        "NamespaceId": {
            "Type": "String",
            "Description": "The id of the namespace, as `zae-limiter namespace show` tells it.",
            "AllowedPattern": "^[A-Za-z0-9_.-]*[A-Za-z0-9.-][A-Za-z0-9_.-]*$",
            **({} if namespace_id is None else {"Default": validate_namespace_id(namespace_id)}),
        },
        "KmsKeyArn": {
            "Type": "String",
            "Default": "",
            "Description": "The key of the table, if it has one of yours.",
        },
        "CodeBucket": {"Type": "String", "Description": "The bucket that holds the function's package."},
        "CodeKey": {
            "Type": "String",
            "Description": "The package in that bucket. A new package needs a new key to be noticed.",
        },
    }


def _log_group() -> dict[str, Any]:
    return {
        "Type": "AWS::Logs::LogGroup",
        "DeletionPolicy": "Delete",
        "UpdateReplacePolicy": "Delete",
        "Properties": {"RetentionInDays": 30},
    }


def _role() -> dict[str, Any]:
    lambda_itself = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}}
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": {
                "Version": "2012-10-17",
                "Statement": [{**lambda_itself, "Action": "sts:AssumeRole"}],
            },
            "Policies": [
                {
                    "PolicyName": "limits",
                    "PolicyDocument": {"Version": "2012-10-17", "Statement": _statements()},
                }
            ],
        },
    }


def _statements() -> list[dict[str, Any]]:
    """What the function may do: read and write one namespace, and look up its id."""
    table = "arn:${AWS::Partition}:dynamodb:${AWS::Region}:${AWS::AccountId}:table/${TableName}"
    return [
        _allow("Describe", ["DescribeTable"], [table]),
        _allow("Read", ["BatchGetItem"], [table], [REGISTRY_KEY, "${NamespaceId}/*"]),
        _allow("List", ["Query"], [table, f"{table}/index/*"], ["${NamespaceId}/*"]),
        _allow(
            "Write",
            ["ConditionCheckItem", "DeleteItem", "PutItem", "UpdateItem"],
            [table],
            [f"${{NamespaceId}}/{key}" for key in WRITTEN],
        ),
        # Buckets are told that the limits of their entity are others now.
        _allow("StampBuckets", ["UpdateItem"], [table], ["${NamespaceId}/BUCKET#*"]),
        _allow("AddToAudit", ["PutItem"], [table], [f"${{NamespaceId}}/{AUDIT}"]),
        {
            "Sid": "Log",
            "Effect": "Allow",
            "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
            "Resource": _get("ProviderLogGroup.Arn"),
        },
        {"Fn::If": ["OwnKey", _use_key(), {"Ref": "AWS::NoValue"}]},
    ]


def _allow(
    sid: str, actions: Sequence[str], resources: Sequence[str], keys: Sequence[str] = ()
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"dynamodb:{action}" for action in actions],
        "Resource": [{"Fn::Sub": resource} for resource in resources],
    }
    if keys:
        # A condition on all leading keys holds when there are none, so one has to be there, too.
        statement["Condition"] = {
            "Null": {LEADING_KEYS: "false"},
            "ForAllValues:StringLike": {LEADING_KEYS: [_key(key) for key in keys]},
        }
    return statement


def _key(pattern: str) -> str | dict[str, Any]:
    return {"Fn::Sub": pattern} if "$" in pattern else pattern


def _use_key() -> dict[str, Any]:
    return {
        "Sid": "UseKey",
        "Effect": "Allow",
        "Action": "kms:Decrypt",
        "Resource": {"Ref": "KmsKeyArn"},
        "Condition": {
            "StringEquals": {"kms:ViaService": {"Fn::Sub": "dynamodb.${AWS::Region}.amazonaws.com"}}
        },
    }


def _function() -> dict[str, Any]:
    return {
        "Type": "AWS::Lambda::Function",
        "Properties": {
            "Description": "Applies manifests of zae-limiter.",
            "Runtime": "python3.13",
            "Architectures": ["arm64"],
            "Handler": HANDLER,
            "Code": {"S3Bucket": {"Ref": "CodeBucket"}, "S3Key": {"Ref": "CodeKey"}},
            "Role": _get("ProviderRole.Arn"),
            "Timeout": TIMEOUT_SECONDS,
            "MemorySize": 256,
            "LoggingConfig": {"LogGroup": {"Ref": "ProviderLogGroup"}},
        },
    }


def _limits(manifest: Manifest, text: str) -> dict[str, Any]:
    return {
        "Type": "Custom::ZaeLimiterLimits",
        # With "Retain" the limits would outlive the stack.
        "DeletionPolicy": "Delete",
        "UpdateReplacePolicy": "Delete",
        "Properties": {
            "ServiceToken": _get("ProviderFunction.Arn"),
            "ServiceTimeout": TIMEOUT_SECONDS,
            "TableName": {"Ref": "TableName"},
            "Namespace": manifest.namespace or NAMESPACE,
            "Principal": {"Fn::Sub": "cloudformation:${AWS::StackName}"},
            "NamespaceId": {"Ref": "NamespaceId"},
            "Manifest": text,
        },
    }


def _get(attribute: str) -> dict[str, Any]:
    return {"Fn::GetAtt": attribute.split(".", 1)}

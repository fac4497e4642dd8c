"""What CloudFormation makes of the template, as far as the template goes: parameters, rules, conditions.

It refuses what it does not know, so that nothing of the template is silently passed over.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from zae_limiter.infra import template

NAME = "demo"
ACCOUNT = "123456789012"
REGION = "eu-west-1"
PSEUDO = {
    "AWS::StackName": NAME,
    "AWS::AccountId": ACCOUNT,
    "AWS::Region": REGION,
    "AWS::Partition": "aws",
}
TABLE_ARN = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{NAME}"
STREAM_ARN = f"{TABLE_ARN}/stream/2026-01-31T00:00:00.000"

# What a resource is once it is made; whatever is not here is called after its place in the template.
MADE = {
    "Table": NAME,
    "Table.Arn": TABLE_ARN,
    "Table.StreamArn": STREAM_ARN,
    "AggregatorFunction": f"{NAME}-aggregator",
    "AggregatorQueue.Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{NAME}-aggregator-dlq",
    "AggregatorLogGroup": f"/aws/lambda/{NAME}-aggregator",
    "AggregatorLogGroup.Arn": f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/lambda/{NAME}-aggregator:*",
    "ArchiveBucket": "demo-archive",
    "ArchiveBucket.Arn": "arn:aws:s3:::demo-archive",
}


class Refused(Exception):
    """CloudFormation would not take these parameters."""


class Stack(NamedTuple):
    """The resources and outputs that a deployment has."""

    resources: dict[str, Any]
    outputs: dict[str, Any]

    def properties(self, logical_id: str) -> Any:
        return self.resources[logical_id]["Properties"]


class Loader(yaml.SafeLoader):
    """Reads ``!Ref X`` as ``{"Ref": "X"}``."""


def _tagged(loader: Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        raise AssertionError(f"{suffix} of a mapping")
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


Loader.add_multi_constructor("!", _tagged)


def load(text: str | None = None) -> dict[str, Any]:
    """The template as data, functions in their long form."""
    loaded: dict[str, Any] = yaml.load(text or template.template_text(), Loader)
    return loaded


TEMPLATE = load()
PARAMETERS: dict[str, dict[str, Any]] = TEMPLATE["Parameters"]
NOTHING = object()


def render(parameters: Mapping[str, str] | None = None, **more: str) -> Stack:
    """The stack that parameters lead to; those which are not said have their defaults."""
    rendering = Rendering({**(parameters or {}), **more})
    rendering.check_rules()
    return Stack(
        {name: rendering.value(part) for name, part in TEMPLATE["Resources"].items() if rendering.has(part)},
        {name: rendering.value(part) for name, part in TEMPLATE["Outputs"].items() if rendering.has(part)},
    )


class Rendering:
    def __init__(self, said: Mapping[str, str]) -> None:
        if unknown := said.keys() - PARAMETERS.keys():
            raise Refused(f"no such parameters: {sorted(unknown)}")
        self._values = {name: str(one["Default"]) for name, one in PARAMETERS.items()} | dict(said)
        for name, value in self._values.items():
            _check(name, value, PARAMETERS[name])

    def check_rules(self) -> None:
        for name, rule in TEMPLATE["Rules"].items():
            if self.holds(rule["RuleCondition"]):
                for one in rule["Assertions"]:
                    if not self.holds(one["Assert"]):
                        raise Refused(f"{name}: {one['AssertDescription']}")

    def has(self, part: dict[str, Any]) -> bool:
        return "Condition" not in part or self.named(part["Condition"])

    def named(self, condition: str) -> bool:
        return self.holds(TEMPLATE["Conditions"][condition])

    def holds(self, condition: dict[str, Any]) -> bool:
        ((function, argument),) = condition.items()
        match function:
            case "Condition":
                return self.named(argument)
            case "Fn::Not":
                return not self.holds(argument[0])
            case "Fn::And":
                return all(self.holds(one) for one in argument)
            case "Fn::Equals":
                left, right = (self.value(one) for one in argument)
                return bool(left == right)
        raise AssertionError(f"{function} in a condition")

    def value(self, part: Any) -> Any:
        if isinstance(part, list):
            return [found for one in part if (found := self.value(one)) is not NOTHING]
        if not isinstance(part, dict):
            return part
        function = next(iter(part), "")
        if function == "Ref" or function.startswith("Fn::"):
            return self._call(function, part[function])
        return {name: found for name, one in part.items() if (found := self.value(one)) is not NOTHING}

    def _call(self, function: str, argument: Any) -> Any:
        match function:
            case "Ref":
                return NOTHING if argument == "AWS::NoValue" else self._named(argument)
            case "Fn::GetAtt":
                return self._named(argument)
            case "Fn::Sub":
                return re.sub(r"\$\{([\w:.]+)\}", lambda found: self._named(found[1]), argument)
            case "Fn::Split":
                separator, text = argument
                return self.value(text).split(separator)
            case "Fn::If":
                condition, then, otherwise = argument
                return self.value(then if self.named(condition) else otherwise)
        raise AssertionError(f"{function} in a resource")

    def _named(self, name: str) -> str:
        if name in self._values:
            return self._values[name]
        if name in PSEUDO:
            return PSEUDO[name]
        resource = TEMPLATE["Resources"][name.partition(".")[0]]
        assert self.has(resource), f"{name} is not made under these conditions"
        return MADE.get(name, name)


def _check(name: str, value: str, parameter: dict[str, Any]) -> None:
    allowed = [str(one) for one in parameter.get("AllowedValues", [value])]
    in_range = parameter["Type"] != "Number" or (
        parameter.get("MinValue", int(value)) <= int(value) <= parameter.get("MaxValue", int(value))
    )
    if value not in allowed or not in_range or not re.match(parameter.get("AllowedPattern", ""), value):
        raise Refused(f"{name}={value!r}")

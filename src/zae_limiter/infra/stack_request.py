"""What a deployment asks for, as the requests that CloudFormation understands. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..exceptions import ValidationError
from ..models import StackOptions
from . import older_stack, template
from .stack import OURS, Stack

NAME_OF_THE_TABLE = "TableName: !Ref AWS::StackName"


class StackRequest:
    """What a deployment asks for, checked."""

    def __init__(self, name: str, options: StackOptions | None) -> None:
        if not isinstance(options, StackOptions | None):
            raise ValidationError("stack_options", options, "pass StackOptions")
        options = options or StackOptions()
        template.names(name, options)
        self.name = name
        self._options = options
        self.template: str = template.template_text()
        self._parameters = template.parameters(options)

    def creation(self) -> dict[str, Any]:
        return self._request(self._parameters, {}, template.tags(self.name, self._options))

    def adoption(self) -> dict[str, Any]:
        """CloudFormation looks for a table to take over only if the template spells its name out."""
        assert self.template.count(NAME_OF_THE_TABLE) == 1, "the template names one table"
        body = self.template.replace(NAME_OF_THE_TABLE, f"TableName: {self.name}")
        kind = {"ChangeSetType": "CREATE", "ImportExistingResources": True}
        return {**self.creation(), **kind, "TemplateBody": body}

    def change(self, stack: Stack) -> dict[str, Any]:
        """What is not said stays as it is deployed, tags too."""
        is_older, is_first = older_stack.is_older(stack), older_stack.MARK in stack.parameters
        stack = older_stack.translated(stack)
        has_aggregator = self._options.enable_aggregator
        if has_aggregator is None:
            has_aggregator = stack.parameters.get("EnableAggregator") != "false"
        tags = template.tags(self.name, replace(self._options, enable_aggregator=has_aggregator))
        if self._options.tags is None:
            theirs = {k: v for k, v in stack.tags.items() if not k.startswith((f"{OURS}:", "aws:"))}
            tags = {**theirs, **tags}
        said, kept = self._changed(stack), stack.parameters
        if is_first:  # what the other template calls otherwise, or has otherwise, must be said
            said, kept = {**kept, **said}, {}
        if is_older:
            tags[older_stack.LAYOUT] = older_stack.OLDER
        return {**self._request(said, kept, tags), "ChangeSetType": "UPDATE", "StackName": stack.stack_id}

    def is_met_by(self, stack: Stack) -> bool:
        return self._changed(stack).items() <= stack.parameters.items()

    def _changed(self, stack: Stack) -> dict[str, str]:
        return template.parameters(self._options, deployed=stack.parameters)

    def _request(
        self, said: Mapping[str, str], deployed: Mapping[str, str], tags: Mapping[str, str]
    ) -> dict[str, Any]:
        """What is said, and what stays as it is deployed; the rest has the template's defaults."""
        kept = template.parameter_names(self.template) & deployed.keys() - said.keys()
        return {
            "StackName": self.name,
            "Capabilities": ["CAPABILITY_NAMED_IAM"],
            "TemplateBody": self.template,
            "Parameters": [
                *({"ParameterKey": name, "ParameterValue": value} for name, value in sorted(said.items())),
                *({"ParameterKey": name, "UsePreviousValue": True} for name in sorted(kept)),
            ],
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }

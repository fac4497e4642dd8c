"""What a deployment asks for, as the requests that CloudFormation understands. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..exceptions import ValidationError
from ..models import StackOptions
from . import older_stack, template
from .stack import OURS, Stack, parameter_list, tag_list

AGGREGATOR = "EnableAggregator"
NAME_OF_THE_TABLE = "TableName: !Ref AWS::StackName"


class Wishes:
    """What a deployment asks for, checked."""

    def __init__(self, name: str, options: StackOptions | None) -> None:
        if not isinstance(options, StackOptions | None):
            raise ValidationError("stack_options", options, "pass StackOptions")
        options = options or StackOptions()
        template.names(name, options)
        self.name, self._options = name, options
        self.template = template.template_text()
        self.parameters = template.parameters(options)

    def creation(self) -> dict[str, Any]:
        return {
            "TemplateBody": self.template,
            "Parameters": parameter_list(self.template, self.parameters),
            "Tags": tag_list(template.tags(self.name, self._options)),
        }

    def adoption(self) -> dict[str, Any]:
        """CloudFormation looks for a table to take over only if the template spells its name out."""
        assert self.template.count(NAME_OF_THE_TABLE) == 1, "the template names one table"
        body = self.template.replace(NAME_OF_THE_TABLE, f"TableName: {self.name}")
        kind = {"ChangeSetType": "CREATE", "ImportExistingResources": True}
        return {**self.creation(), **kind, "TemplateBody": body}

    def fit(self, table: Mapping[str, Any], deployed: str | Mapping[str, Any]) -> None:
        """Take the place of a template of the older product, around the table that is described."""
        self.template = older_stack.fitted(self.template, table, deployed)

    def change(self, stack: Stack) -> dict[str, Any]:
        """What is not said stays as it is deployed, tags too."""
        is_older, is_first = older_stack.is_older(stack), older_stack.MARK in stack.parameters
        stack = older_stack.translated(stack)
        has_aggregator = {"true": True, "false": False}.get(stack.parameters.get(AGGREGATOR, ""))
        if self._options.enable_aggregator is not None:
            has_aggregator = self._options.enable_aggregator
        tags = template.tags(self.name, replace(self._options, enable_aggregator=has_aggregator))
        if self._options.tags is None:
            theirs = {k: v for k, v in stack.tags.items() if not k.startswith((f"{OURS}:", "aws:"))}
            tags = {**theirs, **tags}
        said, kept = self._changed(stack), stack.parameters
        if is_first:  # what the other template calls otherwise, or has otherwise, must be said
            said, kept = {**kept, **said}, {}
        if is_older:
            tags[older_stack.LAYOUT] = older_stack.OLDER
        return {
            "ChangeSetType": "UPDATE",
            "TemplateBody": self.template,
            "Parameters": parameter_list(self.template, said, kept),
            "Tags": tag_list(tags),
        }

    def are_met_by(self, stack: Stack) -> bool:
        return self._changed(stack).items() <= stack.parameters.items()

    def _changed(self, stack: Stack) -> dict[str, str]:
        return template.parameters(self._options, deployed=stack.parameters)

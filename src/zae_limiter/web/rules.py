"""Which requests are limited, by what, and for whom: rules by route, the first that fits wins.

A rule that limits is read generously: with or without a slash at the end, and whatever else an application
may route to the same place. A rule that exempts is read to the letter. A path with empty or dotted segments
is read as it is, without the empty ones, and as it is meant; it is never exempt, and if two rules claim it,
it is refused: no spelling of a path leads around its rule. Nothing here asks a limiter.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ..exceptions import ValidationError
from ..models import Limit, OnUnavailable, check_limits
from ..models.checks import check_flag, check_mapping, needs_milli, wait_ms
from ..models.leases import OnError
from ..naming import validate_entity_id, validate_resource
from .answers import RequestRefused
from .identity import MAKERS, Identity

Cost: TypeAlias = Mapping[str, int] | Callable[..., "Mapping[str, int] | Awaitable[Mapping[str, int]]"]
ResourceOf: TypeAlias = str | Callable[..., "str | Awaitable[str]"]

RULES_MAX = 10_000
NO_NAMES: Mapping[str, str] = {}

_UNCLEAN = re.compile(r"//|/\.{1,2}(?:/|\Z)")
_SLASHES = re.compile("/+")
_WHOLE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
_SEGMENT_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_METHOD = re.compile(r"[A-Za-z][A-Za-z-]*")
_PATH_HINT = "write '/v1/chat', '/v1/*' or '/v1/{model}/chat'"
_COST_HINT = "pass amounts by limit, such as {'rpm': 1}, or a callable of the request"


@dataclass(frozen=True, slots=True)
class Rule:
    """Requests of a path, and what they cost whom.

    - ``path``: exact, all below it (``/v1/*``), or with names for segments (``/v1/{model}/chat``).
    - ``resource``: what is used; may have names of the path, ``"model-{model}"``. The path if left out.
    - ``cost``: amounts by limit, or a callable of the request. One of each limit if ``limits`` are given.
    - ``entity``: whose request it is: an id, or a callable such as ``api_key()``.
    - ``methods``: only these; ``GET`` is ``HEAD`` too.
    - ``limits``, ``wait``, ``on_unavailable``, ``on_error``: as for ``acquire``.
    - ``usage``: makes a meter that reads from the response what it really cost.
    - ``messages``: what each message costs that a WebSocket receives; ``cost`` is for the connection.
    - ``exempt``: nothing is charged.
    """

    path: str
    resource: ResourceOf | None = None
    cost: Cost | None = None
    _: KW_ONLY
    entity: str | Identity | None = None
    methods: Iterable[str] | None = None
    limits: Sequence[Limit] | None = None
    wait: float | None = None
    on_unavailable: OnUnavailable | str | None = None
    on_error: OnError | str | None = None
    usage: Callable[..., Any] | None = None
    messages: Cost | None = None
    exempt: bool = False
    is_resource_chosen: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether the path of a request says which resource it uses."""

    def __post_init__(self) -> None:
        names = set(_names_of(self.path))
        check_flag(f"exempt of {self.path!r}", self.exempt)
        if self.methods is not None:
            self._keep("methods", _checked_methods(self.methods))
        if self.exempt:
            self._check_exempt()
            return
        if self.limits is not None:
            self._keep("limits", check_limits(self.limits))
        self._check_resource(names)
        self._keep("cost", self._checked_cost())
        if self.messages is not None and not callable(self.messages):
            self._keep("messages", self._checked_amounts("messages", self.messages))
        if isinstance(self.entity, str):
            validate_entity_id(self.entity)
        elif self.entity in MAKERS:
            raise ValidationError(f"entity of {self.path!r}", self.entity, "call it, as in entity=api_key()")
        elif self.entity is not None and not callable(self.entity):
            raise ValidationError(
                f"entity of {self.path!r}", self.entity, "pass an id or a callable, such as api_key()"
            )
        if self.usage is not None:
            self._check_usage(self.usage)
        if self.wait is not None:
            wait_ms(self.wait)
        if self.on_unavailable is not None:
            self._keep("on_unavailable", OnUnavailable.of(self.on_unavailable))
        if self.on_error is not None:
            self._keep("on_error", OnError.of(self.on_error))

    def _keep(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_exempt(self) -> None:
        others = ("resource", "cost", "entity", "limits", "wait", "usage", "messages")
        if given := [name for name in others if getattr(self, name) is not None]:
            told = f"nothing is charged there, so leave out {', '.join(given)}"
            raise ValidationError(f"exempt of {self.path!r}", True, told)

    def _check_usage(self, usage: Callable[..., Any]) -> None:
        try:
            inspect.signature(usage).bind(None, 200, {})
        except TypeError as error:
            told = "pass what makes a meter of a request, a status and headers, such as UsageMeter.factory()"
            raise ValidationError(f"usage of {self.path!r}", usage, told) from error
        except ValueError:
            pass  # it does not tell what it takes

    def _check_resource(self, names: set[str]) -> None:
        if self.resource is None:
            self._keep("resource", self.path.replace("{", "<").replace("}", ">"))
        if isinstance(self.resource, str):
            validate_resource(self.resource)
            if unknown := set(_SEGMENT_NAME.findall(self.resource)) - names:
                told = f"the path {self.path!r} has no name {sorted(unknown)[0]!r}"
                raise ValidationError("resource", self.resource, told)
        elif not callable(self.resource):
            raise ValidationError("resource", self.resource, "pass a name, or a callable of the request")
        is_chosen = not isinstance(self.resource, str) or bool(_SEGMENT_NAME.search(self.resource))
        self._keep("is_resource_chosen", is_chosen)

    def _checked_cost(self) -> Cost:
        field_name = f"cost of {self.path!r}"
        if callable(self.cost):
            return self.cost
        if self.cost is not None:
            return self._checked_amounts("cost", self.cost)
        if self.limits is None:
            if self.messages is not None:
                return {}
            raise ValidationError(field_name, None, _COST_HINT)
        if money := [limit.name for limit in self.limits if limit.unit is not None]:
            told = f"{money[0]!r} counts money: say how much a request costs"
            raise ValidationError(field_name, None, told)
        return {limit.name: 1 for limit in self.limits}

    def _checked_amounts(self, of: str, amounts: Any) -> dict[str, int]:
        """Constant amounts, of limits that the rule has, if it has its own, and not more than they hold."""
        field_name = f"{of} of {self.path!r}"
        checked = check_mapping(field_name, amounts, _COST_HINT)
        needs_milli(checked)
        limits = {limit.name: limit for limit in self.limits or ()}
        for name, amount in checked.items() if self.limits is not None else ():
            if name not in limits:
                known = " or ".join(map(repr, limits))
                raise ValidationError(field_name, amounts, f"no limit is called {name!r}; use {known}")
            limit = limits[name]
            if amount > limit.capacity and not limit.soft and limit.schedule is None:
                told = f"nobody would ever pass: {name!r} holds {limit.capacity}; give it a burst"
                raise ValidationError(field_name, amounts, told)
        return checked

    @property
    def names(self) -> tuple[str, ...]:
        """The names of segments in its path."""
        return tuple(_names_of(self.path))

    def named_resource(self, names: Mapping[str, str]) -> str:
        """The resource of a request, by the names of its path."""
        assert isinstance(self.resource, str)
        return _SEGMENT_NAME.sub(lambda found: names[found[1]], self.resource)


class Match(NamedTuple):
    """The rule of a request, and the names of its path."""

    rule: Rule
    names: Mapping[str, str]


Fits: TypeAlias = Callable[[str], Mapping[str, str] | None]


class Rules:
    """Rules in their order, made ready to be asked about many requests."""

    def __init__(self, rules: Iterable[Rule], *, entity: str | Identity | None = None) -> None:
        if isinstance(rules, Rule | str | Path):
            raise ValidationError("rules", rules, "pass a list of Rule, or Rules.from_file(…)")
        self._rules = listed = tuple(rules)
        if len(listed) > RULES_MAX:
            raise ValidationError("rules", len(listed), f"use at most {RULES_MAX}")
        if wrong := [one for one in listed if not isinstance(one, Rule)]:
            raise ValidationError("rules", wrong[0], "pass a list of Rule")
        for rule in listed:
            if not rule.exempt and rule.entity is None and entity is None:
                told = "say whose requests they are: entity=api_key(), or entity=client_address()"
                raise ValidationError(f"entity of {rule.path!r}", None, told)
        self.entity = entity
        self._all = [(rule, rule.methods, (_literal if rule.exempt else _generous)(rule)) for rule in listed]
        self._limiting = [one for one in self._all if not one[0].exempt]

    @classmethod
    def of(cls, rules: Rules | Iterable[Rule], entity: str | Identity | None = None) -> Rules:
        """Rules as they are, or made of a list."""
        return rules if isinstance(rules, Rules) else cls(rules, entity=entity)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        given: Mapping[str, Callable[..., Any]] | None = None,
        *,
        entity: str | Identity | None = None,
    ) -> Rules:
        """Rules of a file in YAML or JSON, which is read again when it changes.

        ``given`` has callables by the names that the file calls them: ``{"chat": UsageMeter.factory(…)}``.
        """
        from .rules_file import FileRules  # which needs a parser

        return FileRules(path, given, entity)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def current(self) -> Rules:
        """The rules that count now."""
        return self

    def check_sync(self) -> Rules:
        """The same, or what is wrong with it where nothing can be awaited."""
        for rule in self:
            for name in ("resource", "cost", "entity"):
                if inspect.iscoroutinefunction(found := getattr(rule, name)):
                    told = "nothing is awaited here: pass a callable without async"
                    raise ValidationError(f"{name} of {rule.path!r}", found, told)
        return self

    def entity_or(self, given: str | Identity | None) -> str | Identity | None:
        """Whose requests they are where a rule or a route does not say so."""
        return given if self.entity is None else self.entity

    def match(self, method: str, path: str) -> Match | None:
        """The rule of a request; ``None`` if it is exempt, or no rule is about it."""
        is_literal = not path.endswith("\n")
        if not is_literal:  # which a pattern that ends with $ takes for the end
            path = path[:-1]
        if whole := _WHOLE_URL.match(path):  # as servers may leave the target of a request
            path, is_literal = path[whole.end() :] or "/", False
        if _UNCLEAN.search(path):
            return self._unclean(method, path)
        found = self._first(self._all if is_literal else self._limiting, method, path)
        return None if found is None or found.rule.exempt else found

    def _first(self, rules: Iterable[tuple[Rule, Any, Fits]], method: str, path: str) -> Match | None:
        for rule, methods, fits in rules:
            if (methods is None or method in methods) and (names := fits(path)) is not None:
                return Match(rule, names)
        return None

    def _unclean(self, method: str, path: str) -> Match | None:
        readings = dict.fromkeys((path, _SLASHES.sub("/", path), clean(path)))
        matches = [found for one in readings if (found := self._first(self._limiting, method, one))]
        if any(found.rule is not matches[0].rule for found in matches):
            told = "the path can be read in two ways; leave out empty and dotted segments"
            raise RequestRefused(400, told)
        return matches[0] if matches else None


def clean(path: str) -> str:
    """A path without empty and dotted segments, as it is meant.

    >>> clean("//v1/./a/../chat/")
    '/v1/chat'
    """
    segments = list[str]()
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


def _names_of(path: str) -> list[str]:
    """The names of segments in a path, which is checked on the way."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise ValidationError("path", path, f"begin with a slash; {_PATH_HINT}")
    if _UNCLEAN.search(path) or "?" in path or "#" in path:
        told = f"leave out empty and dotted segments, and the query; {_PATH_HINT}"
        raise ValidationError("path", path, told)
    names = list[str]()
    for segment in path.removesuffix("/*").split("/"):
        name = _SEGMENT_NAME.fullmatch(segment)
        if name is not None:
            names.append(name[1])
        elif not {"*", "{", "}"}.isdisjoint(segment):
            told = "a name in braces is a whole segment, and a star only the last one"
            raise ValidationError("path", path, f"{told}; {_PATH_HINT}")
    if len(set(names)) < len(names):
        raise ValidationError("path", path, "a name is given twice; give each segment its own")
    return names


def _generous(rule: Rule) -> Fits:
    """Whether a path, with or without slashes at its end, is one that the rule limits."""
    path = rule.path
    is_prefix = path.endswith("/*")
    stem = path.removesuffix("/*").rstrip("/") if is_prefix else path.rstrip("/") or "/"
    if rule.names:
        return _pattern(stem, r"(?:/.*)?" if is_prefix else "/*")
    if not is_prefix:
        return lambda found: NO_NAMES if found == stem or (found.rstrip("/") or "/") == stem else None
    below = f"{stem}/"
    return lambda found: NO_NAMES if found.startswith(below) or found == stem else None


def _literal(rule: Rule) -> Fits:
    """Whether a path is one that the rule exempts."""
    path = rule.path
    if rule.names:
        is_prefix = path.endswith("/*")
        return _pattern(path.removesuffix("*") if is_prefix else path, ".*" if is_prefix else "")
    if path.endswith("/*"):
        below = path.removesuffix("*")
        return lambda found: NO_NAMES if found.startswith(below) else None
    return lambda found: NO_NAMES if found == path else None


def _pattern(path: str, rest: str) -> Fits:
    pieces, at = list[str](), 0
    for name in _SEGMENT_NAME.finditer(path):
        pieces += [re.escape(path[at : name.start()]), f"(?P<{name[1]}>[^/]+)"]
        at = name.end()
    fits = re.compile("".join(pieces) + re.escape(path[at:]) + rest, re.DOTALL).fullmatch

    def names_in(path: str) -> Mapping[str, str] | None:
        found = fits(path)
        return None if found is None else found.groupdict()

    return names_in


def _checked_methods(methods: Iterable[str]) -> frozenset[str]:
    listed = (methods,) if isinstance(methods, str) else tuple(methods)
    for method in listed:
        if not isinstance(method, str) or not _METHOD.fullmatch(method):
            raise ValidationError("methods", method, "pass a list such as ['GET', 'POST']")
    upper = {method.upper() for method in listed}
    if not upper:
        raise ValidationError("methods", methods, "name at least one, or leave them out for all")
    return frozenset(upper | ({"HEAD"} if "GET" in upper else set()))  # which frameworks route alike

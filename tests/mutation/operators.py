"""From a source text to its mutants: each differs from it in one small place.

The operators are those that fit a program of conditions and integers: a comparison is widened or
narrowed, a sign or a rounding flipped, ``min`` exchanged for ``max``, a condition or a statement
dropped, a number moved by one. What only speaks to people is left alone: messages, assertions, logs,
annotations. A mutant is named by its function and by what it changes there, not by a line number, so
that its name lasts as long as the code it is about.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

WIDTH_MAX = 90

WIDENED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPPOSITE = {"min": "max", "max": "min", "any": "all", "all": "any"}
CONDITIONS = frozenset(
    {"Equal", "AtLeast", "AtMost", "Exists", "Absent", "pinned", "_pinned", "_pinned_count"}
)
SILENT = frozenset({"logger", "suppress"})


class Mutant(NamedTuple):
    """One change of one file; ``path`` is relative to the sources."""

    path: str
    place: str
    old: str
    new: str
    number: int
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        module = self.path.removesuffix(".py").replace("/", ".")
        again = f" ({self.number})" if self.number > 1 else ""
        return f"{module}.{self.place}: {self.old} => {self.new}{again}"

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


class Change(NamedTuple):
    """A node, what stands in its place, and the same for people."""

    node: ast.expr | ast.stmt
    text: str
    old: str
    new: str


Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of one file, in the order of their places."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines(keepends=True)

    def offset(line: int, column: int) -> int:
        # Columns of the syntax tree count bytes.
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found, seen = [], Counter[tuple[str, str, str]]()
    for place, function in _functions(ast.parse(source), ""):
        for change in _changes(function):
            node = change.node
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            seen[place, change.old, change.new] += 1
            number = seen[place, change.old, change.new]
            start, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
            found.append(Mutant(path, place, change.old, change.new, number, start, end, change.text))
    return found


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """The outermost functions and methods; what is nested in them belongs to them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            if child.name not in ("__repr__", "__str__"):
                yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _changes(function: Function) -> Iterator[Change]:
    for statement in function.body:
        yield from _walk(statement)


def _walk(node: ast.AST) -> Iterator[Change]:
    """Changes of a node and of what is in it, without what only speaks to people."""
    if isinstance(node, (ast.Assert, ast.JoinedStr, ast.arguments)) or _is_silent(node):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # an assertion that two lists are equally long
    if isinstance(node, ast.stmt):
        yield from _dropped(node)
    if isinstance(node, ast.expr):
        yield from _altered(node)
    # What a comparison, a negation or a list of conditions can lose is told by these themselves.
    if isinstance(node, (ast.If, ast.While, ast.IfExp)) and not isinstance(
        node.test, (ast.Compare, ast.UnaryOp, ast.BoolOp, ast.Constant)
    ):
        yield _replaced(node.test, ast.UnaryOp(ast.Not(), node.test))
    if isinstance(node, ast.Raise):
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST):
                yield from _walk(child)


def _is_silent(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    if not isinstance(call, ast.Call):
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    target = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    return isinstance(target, ast.Name) and target.id in SILENT


def _dropped(statement: ast.stmt) -> Iterator[Change]:
    """The statement left out, where the program goes on without it."""
    calls = isinstance(statement, ast.Expr) and isinstance(statement.value, (ast.Call, ast.Await))
    stores = isinstance(statement, ast.Assign) and all(
        isinstance(target, (ast.Attribute, ast.Subscript)) for target in statement.targets
    )
    # To forget a plain name changes nothing but what can be read further down.
    forgets = isinstance(statement, ast.Delete) and not all(
        isinstance(t, ast.Name) for t in statement.targets
    )
    ends = isinstance(statement, (ast.Break, ast.Continue, ast.Raise, ast.AugAssign))
    returns = isinstance(statement, ast.Return) and statement.value is None
    if calls or stores or forgets or ends or returns:
        yield Change(statement, "pass", _short(statement), "pass")
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, (ast.Add, ast.Sub)):
        op = ast.Sub() if isinstance(statement.op, ast.Add) else ast.Add()
        if not isinstance(statement.value, (ast.List, ast.ListComp, ast.Tuple)):
            yield _replaced(statement, ast.AugAssign(statement.target, op, statement.value))


def _altered(node: ast.expr) -> Iterator[Change]:
    """The expression with one operator, operand or number changed."""
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            ops = [*node.ops[:place], WIDENED[type(op)](), *node.ops[place + 1 :]]
            yield _replaced(node, ast.Compare(node.left, ops, node.comparators))
    elif isinstance(node, ast.BoolOp):
        for place, _ in enumerate(node.values):
            left = [*node.values[:place], *node.values[place + 1 :]]
            yield _replaced(node, left[0] if len(left) == 1 else ast.BoolOp(node.op, left))
    elif isinstance(node, ast.BinOp):
        yield from _altered_arithmetic(node)
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            yield _replaced(node, node.operand)
        elif isinstance(node.op, ast.USub):
            rounded = node.operand
            if isinstance(rounded, ast.BinOp) and isinstance(rounded.op, ast.FloorDiv):
                yield _replaced(node, ast.BinOp(_negated(rounded.left), ast.FloorDiv(), rounded.right))
            else:
                yield _replaced(node, node.operand)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in OPPOSITE:
        yield _replaced(node, ast.Call(ast.Name(OPPOSITE[node.func.id]), node.args, node.keywords))
    elif isinstance(node, (ast.List, ast.Tuple)) and any(_is_condition(item) for item in node.elts):
        for place, _ in enumerate(node.elts):
            yield _replaced(node, type(node)([*node.elts[:place], *node.elts[place + 1 :]]))
    elif isinstance(node, ast.Constant):
        if type(node.value) is bool:
            yield _replaced(node, ast.Constant(not node.value))
        elif type(node.value) is int:
            yield _replaced(node, ast.Constant(node.value + 1))
            if node.value == 1:
                yield _replaced(node, ast.Constant(0))


def _altered_arithmetic(node: ast.BinOp) -> Iterator[Change]:
    match node.op:
        case ast.Add():
            if not isinstance(node.left, (ast.List, ast.Tuple, ast.JoinedStr)):
                yield _replaced(node, ast.BinOp(node.left, ast.Sub(), node.right))
        case ast.Sub():
            yield _replaced(node, ast.BinOp(node.left, ast.Add(), node.right))
        case ast.FloorDiv() if not isinstance(node.left, ast.UnaryOp):
            rounded_up = ast.UnaryOp(ast.USub(), ast.BinOp(_negated(node.left), ast.FloorDiv(), node.right))
            yield _replaced(node, rounded_up)


def _negated(node: ast.expr) -> ast.expr:
    """Minus the node; ``-a * b`` binds like ``(-a) * b``, so a sign in front is taken off there."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return node.operand
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return ast.BinOp(_negated(node.left), node.op, node.right)
    return ast.UnaryOp(ast.USub(), node)


def _is_condition(node: ast.expr) -> bool:
    call = node.value if isinstance(node, ast.Starred) else node
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in CONDITIONS


def _replaced(node: ast.expr | ast.stmt, other: ast.expr | ast.stmt) -> Change:
    text = ast.unparse(ast.fix_missing_locations(other))
    if isinstance(other, ast.expr):
        return Change(node, f"({text})", _short(node), _shortened(text))
    return Change(node, text, _short(node), _shortened(text))


def _short(node: ast.AST) -> str:
    return _shortened(ast.unparse(node))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH_MAX else f"{line[: WIDTH_MAX - 1]}…"

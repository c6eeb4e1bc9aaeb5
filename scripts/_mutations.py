"""Small changes of Python code that tests should notice, made in its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
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
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    """A part of a file, ``start … stop`` in bytes of UTF-8, and what is put in its place."""

    line: int
    start: int
    stop: int
    operator: str
    before: str
    after: str

    def apply(self, source: str) -> str:
        data = source.encode()
        return (data[: self.start] + self.after.encode() + data[self.stop :]).decode()


def find_mutants(source: str) -> list[Mutant]:
    """All mutants of a file, from top to bottom; each of them is Python."""
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    for node, operator, after in _changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        mutant = Mutant(node.lineno, start, stop, operator, data[start:stop].decode(), after)
        ast.parse(mutant.apply(source))
        found.append(mutant)
    return sorted(found, key=lambda mutant: (mutant.start, mutant.stop, mutant.operator))


Node = ast.expr | ast.stmt
Changes = Iterator[tuple[Node, str, str]]
"""A node, the operator, and the text in its place."""


def _changes(tree: ast.AST) -> Changes:
    """Of a tree without annotations, decorators, docstrings and texts, which decide nothing."""
    if isinstance(tree, ast.JoinedStr):
        return
    if isinstance(tree, ast.expr):
        yield from _expression(tree)
    if isinstance(tree, ast.stmt):
        yield from _statement(tree)
    if isinstance(tree, ast.If | ast.IfExp | ast.While) and isinstance(tree.test, ast.Name | ast.Attribute | ast.Call):
        yield tree.test, "condition", f"(not {ast.unparse(tree.test)})"
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "returns", "decorator_list", "type_params", "bases"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child)


def _expression(node: ast.expr) -> Changes:
    match node:
        case ast.Compare(left, ops, comparators):
            for place, operator in enumerate(ops):
                other = [*ops[:place], COMPARISONS[type(operator)](), *ops[place + 1 :]]
                is_none = isinstance(operator, ast.Is | ast.IsNot)
                yield node, "none" if is_none else "comparison", _text(ast.Compare(left, other, comparators))
        case ast.BoolOp(operator, values):
            yield node, "boolean", _text(ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values))
        case ast.UnaryOp(ast.Not(), operand):
            yield node, "boolean", _text(operand)
        case ast.Constant(bool() as value):
            yield node, "boolean", str(not value)
        case ast.Constant(int() as value):
            yield node, "constant", str(value + 1)
            if value > 1:
                yield node, "constant", str(value - 1)
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
            yield node, "arithmetic", _text(ast.BinOp(left, ARITHMETIC[type(operator)](), right))
        case ast.Call(ast.Name(name), args, keywords) if name in CALLS:
            yield node, "call", _text(ast.Call(ast.Name(CALLS[name]), args, keywords))
        case ast.Call(ast.Attribute(value, name), args, keywords) if name in CALLS:
            yield node, "call", _text(ast.Call(ast.Attribute(value, CALLS[name]), args, keywords))


def _statement(node: ast.stmt) -> Changes:
    match node:
        case ast.Expr(ast.Constant()):
            return
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield node, "return", "return None"
        case ast.Expr() | ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Delete():
            yield node, "statement", "pass"
        case ast.Assign(targets) if not any(isinstance(target, ast.Name | ast.Tuple) for target in targets):
            yield node, "statement", "pass"


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"

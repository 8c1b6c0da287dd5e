"""Conditions on a report's fields, such as `communication.exposed / steps.steady.median > 0.2`: see docs/fail-if.md.

The text is parsed as a Python expression and nothing of Python is run: what is not in the grammar is refused. Field
names are checked against the dataclasses of the report before there is one; that a field has no value is found when it
is asked for, and is never taken for a number.
"""

from __future__ import annotations

import ast
import difflib
import io
import operator
import tokenize
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from distprof.result import NotObserved

Value = float | bool | str | list[float]

_LONGEST = 4000
_DEEPEST = 100
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[[list[float]], float]] = {"min": min, "max": max, "abs": lambda values: abs(values[0])}


class ConditionError(ValueError):
    """The condition is not one, or names a field that there is not; the message says what to do."""


class NoValue(Exception):
    """A field has no value in this report; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the fields of a dataclass.

    Attributes:
        text: as it was typed.
        kind: the dataclass.
    """

    text: str
    kind: type
    _tree: ast.expr

    @classmethod
    def parse(cls, text: str, kind: type) -> Condition:
        """Read a condition, and check that `kind` has the fields it names.

        Raises:
            ConditionError: it cannot be read, or `kind` has no such field.
        """
        tree = _parse(text)
        if _checked(tree, kind) is not bool:
            raise ConditionError(f"`{text}` is a value and no condition: compare it, as in `{text} > 0`")
        return cls(text, kind, tree)

    def holds(self, value: Any, missing: Iterable[NotObserved] = ()) -> bool:
        """Whether it holds for an instance of its dataclass. `and` and `or` go from left to right and no further than
        they must.

        Args:
            value: the instance.
            missing: why fields have no value.

        Raises:
            NoValue: it asks for a field that has no value, or divides by 0.
        """
        try:
            return bool(_evaluate(self._tree, value, list(missing)))
        except ZeroDivisionError as error:
            raise NoValue(f"`{self.text}` divides by 0") from error


def failed(conditions: Sequence[Condition], value: Any, missing: Iterable[NotObserved] = ()) -> list[str]:
    """What fails of these conditions, in words: each one that holds, or that cannot be told. Empty: nothing."""
    told = []
    for condition in conditions:
        try:
            if condition.holds(value, missing):
                told.append(f"`{condition.text}` holds")
        except NoValue as error:
            told.append(f"`{condition.text}` cannot be told: {error}")
    return told


def _parse(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise ConditionError(f"a condition has at most {_LONGEST} characters")
    try:
        tree = ast.parse(_with_equality(text).strip(), mode="eval").body
        depth = _depth(tree)
    except (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ConditionError(f"`{text}` cannot be read as a condition ({error}): see docs/fail-if.md") from error
    if depth > _DEEPEST:
        raise ConditionError(f"`{text}` is nested more than {_DEEPEST} deep")
    return tree


def _with_equality(text: str) -> str:
    """`rows[rank=2]` as `rows[rank==2]`, which Python can parse. Anywhere else one `=` stays the mistake it is."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    strings = [token.string for token in tokens]
    changed = [
        (token.type, "==") if token.string == "=" and strings[max(0, index - 2)] == "[" else (token.type, token.string)
        for index, token in enumerate(tokens)
    ]
    return tokenize.untokenize(changed)


def _depth(tree: ast.AST) -> int:
    return 1 + max((_depth(child) for child in ast.iter_child_nodes(tree)), default=0)


# What a path's value is: a dataclass, the type of rows (inside of `_Rows`), a scalar, or Any where nobody says.
@dataclass(frozen=True, slots=True)
class _Rows:
    """The kind of a list of `row`s; `all` where a path goes on with each of them."""

    row: Any
    all: bool = False


def _checked(node: ast.expr, kind: type) -> Any:
    """The type of a node: bool, float, str, NoneType, Any, or `_Rows` of one of these.

    Raises:
        ConditionError: it is not in the grammar, or names a field that there is not.
    """
    match node:
        case ast.BoolOp(values=values):
            for value in values:
                _must_be(bool, value, kind)
            return bool
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            _must_be(bool, operand, kind)
            return bool
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            _must_be(float, operand, kind)
            return float
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            _must_be(float, left, kind)
            _must_be(float, right, kind)
            return float
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
            sides = [_checked(side, kind) for side in (left, *others)]
            for comparison, (one, other) in zip(ops, pairwise(sides), strict=True):
                ordered = not isinstance(comparison, ast.Eq | ast.NotEq)
                for told in (one, other):
                    if told not in ((float, Any) if ordered else (float, bool, str, Any)):
                        raise ConditionError(f"`{ast.unparse(node)}` does not compare {_named(told)} with anything")
                if Any not in (one, other) and one is not other:
                    raise ConditionError(f"`{ast.unparse(node)}` compares {_named(one)} with {_named(other)}")
            return bool
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            if not arguments or (name == "abs" and len(arguments) > 1):
                raise ConditionError(
                    f"{name} takes {'one value' if name == 'abs' else 'values, or rows as in `x[:].y`'}"
                )
            for argument in arguments:
                told = _checked(argument, kind)
                rows = isinstance(told, _Rows) and told.all and name != "abs"
                if (told.row if rows else told) not in (float, Any):
                    raise ConditionError(f"`{ast.unparse(argument)}` is {_named(told)}: {name} takes numbers")
            return float
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            return _scalar(_kind_of(node, kind))
    raise ConditionError(f"`{ast.unparse(node)}` is not a part of a condition: see docs/fail-if.md")


def _must_be(wanted: type, node: ast.expr, kind: type) -> None:
    told = _checked(node, kind)
    if told not in (wanted, Any):
        raise ConditionError(f"`{ast.unparse(node)}` is {_named(told)}, and {_named(wanted)} is needed there")


def _named(kind: Any) -> str:
    if isinstance(kind, _Rows):
        return "a list: choose a row, as in `[0]` or `[rank=2]`, or take `max(...[:].field)`"
    names = {bool: "a condition", float: "a number", str: "a text", NoneType: "nothing"}
    return names.get(kind, "a whole section: name one of its fields")


def _kind_of(node: ast.expr, kind: type) -> Any:
    """The type of what a path names."""
    match node:
        case ast.Name(id=name):
            return _field(kind, name, "")
        case ast.Attribute(value=inner, attr=name):
            return _through(_kind_of(inner, kind), lambda row: _field(row, name, f"{_written(inner)}."))
        case ast.Subscript(value=inner, slice=index):
            rows = _kind_of(inner, kind)
            if rows is Any:
                return Any
            if not isinstance(rows, _Rows) or rows.all:
                raise ConditionError(f"`{_written(inner)}` is no list, so nothing of it can be chosen by [...]")
            match index:
                case ast.Slice(lower=None, upper=None, step=None):
                    return _Rows(rows.row, all=True)
                case ast.Constant(value=int()) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int())):
                    return rows.row
                case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[ast.Constant()]):
                    _field(rows.row, name, f"{_written(inner)}[].")
                    return rows.row
            raise ConditionError(f"`{_written(node)}`: a row is chosen by [NUMBER] or [FIELD=VALUE], all by [:]")
    raise ConditionError(f"`{_written(node)}` is no field of the report")


def _through(kind: Any, of_row: Callable[[Any], Any]) -> Any:
    if isinstance(kind, _Rows) and kind.all:
        return _Rows(of_row(kind.row), all=True)
    return of_row(kind)


def _field(kind: Any, name: str, before: str) -> Any:
    """The type of a field.

    Raises:
        ConditionError: there is none of that name; the message has the close ones.
    """
    if kind is Any:
        return Any
    if isinstance(kind, _Rows):
        raise ConditionError(f"`{before.rstrip('.')}` is {_named(kind)}")
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(before + one for one in close)}?" if close else ""
        there = f"there are {', '.join(names)}" if names else "it has no fields"
        raise ConditionError(f"there is no field {before}{name}: {hint or there}")
    return _plain(get_type_hints(kind)[name])


def _plain(hint: Any) -> Any:
    """A type hint as `_Rows`, a dataclass, a scalar or Any; None beside it counts for nothing."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _plain(parts[0])
    if origin in (Union, UnionType):
        others = [part for part in parts if part is not NoneType]
        return _plain(others[0]) if len(others) == 1 else Any
    if origin is list:
        return _Rows(_plain(parts[0]))
    if origin is dict or hint is Any:
        return Any
    if origin is not None:  # Literal
        return type(parts[0])
    return hint


def _scalar(kind: Any) -> Any:
    if isinstance(kind, _Rows):
        return _Rows(_scalar(kind.row), kind.all)
    return float if kind is int else kind


def _written(node: ast.expr) -> str:
    return ast.unparse(node).replace(" == ", "=")


def _evaluate(node: ast.expr, root: Any, missing: list[NotObserved]) -> Any:
    match node:
        case ast.BoolOp(op=op, values=values):
            decides = isinstance(op, ast.Or)
            return next((decides for value in values if bool(_evaluate(value, root, missing)) is decides), not decides)
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, root, missing)
            return not value if isinstance(op, ast.Not) else -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=sign, right=right):
            sides = [_number(_evaluate(side, root, missing), side) for side in (left, right)]
            return _ARITHMETIC[type(sign)](*sides)
        case ast.Compare(left=left, ops=ops, comparators=others):
            value = _evaluate(left, root, missing)
            for comparison, other in zip(ops, others, strict=True):
                next_value = _evaluate(other, root, missing)
                if not _compares(comparison, value, next_value, node):
                    return False
                value = next_value
            return True
        case ast.Call(func=ast.Name(id=name), args=arguments):
            numbers: list[float] = []
            for argument in arguments:
                told = _evaluate(argument, root, missing)
                numbers += [_number(each, argument) for each in (told if isinstance(told, list) else [told])]
            return _FUNCTIONS[name](numbers)
        case ast.Constant(value=value):
            return value
    return _observed(node, root, missing)


def _compares(op: ast.cmpop, value: Any, other: Any, node: ast.expr) -> bool:
    try:
        return _COMPARISONS[type(op)](value, other)
    except TypeError as error:
        raise NoValue(f"`{_written(node)}` compares {value!r} with {other!r}") from error


def _number(value: Any, node: ast.expr) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NoValue(f"`{_written(node)}` is {value!r} and no number")
    return value


def _observed(node: ast.expr, root: Any, missing: list[NotObserved]) -> Any:
    value = _look_up(node, root, missing)
    for one in value if isinstance(value, list) else [value]:
        if one is None:
            raise NoValue(f"{_written(node)} was not observed{_why(node, missing)}")
    if value == []:
        raise NoValue(f"{_written(node)} was not observed: there are no rows{_why(node, missing)}")
    return value


def _look_up(node: ast.expr, root: Any, missing: list[NotObserved]) -> Any:
    """The value of a path; None where it, or what it goes through, is null."""
    match node:
        case ast.Name(id=name):
            return _get(root, name)
        case ast.Attribute(value=inner, attr=name):
            value = _look_up(inner, root, missing)
            goes_through = isinstance(inner, ast.Subscript | ast.Attribute) and isinstance(value, list)
            return [_get(row, name) for row in value] if goes_through else _get(value, name)
        case ast.Subscript(value=inner, slice=index):
            rows = _look_up(inner, root, missing)
            if rows is None:
                return None
            return _chosen(node, rows, index, missing)
    raise AssertionError(f"{ast.dump(node)} was checked before")


def _get(value: Any, name: str) -> Any:
    if value is None:
        return None
    if isinstance(value, dict):
        if name not in value:
            raise NoValue(f"there is no {name!r} in {', '.join(map(repr, value)) or 'nothing'}")
        return value[name]
    return getattr(value, name)


def _chosen(node: ast.Subscript, rows: Any, index: ast.expr, missing: list[NotObserved]) -> Any:
    if isinstance(rows, dict) and isinstance(index, ast.Constant):
        return _get(rows, str(index.value))
    if isinstance(index, ast.Slice):
        return rows
    if isinstance(index, ast.Compare):
        name, wanted = ast.unparse(index.left), ast.literal_eval(index.comparators[0])
        found = [row for row in rows if _get(row, name) == wanted]
        if len(found) > 1:
            raise NoValue(f"{_written(node)} chooses {len(found)} rows: choose one by its number")
        if not found:
            raise NoValue(f"{_written(node)} was not observed: there is no such row{_why(node, missing)}")
        return found[0]
    number = ast.literal_eval(index)
    if not -len(rows) <= number < len(rows):
        raise NoValue(f"{_written(node)} was not observed: there are {len(rows)} rows{_why(node, missing)}")
    return rows[number]


def _why(node: ast.expr, missing: list[NotObserved]) -> str:
    """The reason, from the row of the longest path that this one begins with; else from a row about a part of it."""
    path = _names(node)
    rows = [(_names_of(row.what), row) for row in missing]
    above = [(len(names), row.reason) for names, row in rows if names and path[: len(names)] == names]
    below = [(len(names), row.reason) for names, row in rows if names[: len(path)] == path]
    found = sorted(above, key=lambda pair: -pair[0]) or below
    return f" ({found[0][1]})" if found else ""


def _names(node: ast.expr) -> list[str]:
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=inner, attr=name):
            return [*_names(inner), name]
        case ast.Subscript(value=inner):
            return _names(inner)
    return []


def _names_of(what: str) -> list[str]:
    return [name.split("[")[0] for name in what.split(".")]

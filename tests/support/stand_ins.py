"""What tests put in the place of strobe's classes and functions, read from their syntax trees, and what is wrong with it.

A test for a GPU runs on few machines; what it calls and what it puts in the place of something is held to the present signatures
on every one. A class stands in for another by being a subclass of it, or declares it: `@stands_in_for(Recorder)`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from source import PACKAGE, parse, python_files

ALIKE: Final = 3
"""Public methods that a class shares with one of strobe's by no accident."""
_NOTHING: Final = object()


def stands_in_for(real: type) -> Callable[[type[Any]], type[Any]]:
    """Declare that a class of tests stands in for one of strobe, or a protocol, without being a subclass of it."""
    return lambda own: own


@dataclass(frozen=True)
class Names:
    """What the names of a file stand for: what it imports from strobe, by its dotted path, and its own functions."""

    imported: Mapping[str, str]
    own: Sequence[ast.FunctionDef]

    @classmethod
    def of(cls, tree: ast.Module) -> Names:
        imported, own = {}, []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                own.append(node)
            elif isinstance(node, ast.Import):
                imported |= {
                    alias.asname or "strobe": alias.name if alias.asname else "strobe"
                    for alias in node.names
                    if _ours(alias.name)
                }
            elif isinstance(node, ast.ImportFrom) and _ours(node.module or ""):
                imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return cls(imported, own)

    def function(self, value: ast.expr) -> ast.FunctionDef | ast.Lambda | None:
        """Return the function that is meant: a lambda, or the last of that name above; None if it is something else."""
        if isinstance(value, ast.Lambda):
            return value
        above = [node for node in self.own if node.name == ast.unparse(value) and node.lineno < value.lineno]
        return max(above, key=lambda node: node.lineno, default=None)

    def real(self, node: ast.AST) -> Any:
        """Return what of strobe an expression names; `_NOTHING` if it names nothing of strobe."""
        if isinstance(node, ast.Name):
            return found(self.imported[node.id]) if node.id in self.imported else _NOTHING
        if isinstance(node, ast.Attribute):
            owner = self.real(node.value)
            return _NOTHING if owner is _NOTHING else getattr(owner, node.attr, _NOTHING)
        return _NOTHING


def _ours(module: str) -> bool:
    return module.partition(".")[0] == "strobe"


@cache
def found(path: str) -> Any:
    """Return what a dotted path of strobe names: a module, or something in one."""
    try:
        return importlib.import_module(path)
    except ImportError:
        owner, _, name = path.rpartition(".")
        return getattr(found(owner), name, _NOTHING) if owner else _NOTHING


def signature(real: Any) -> inspect.Signature | None:
    """Return what something takes; None if it cannot be called, or is silent about it."""
    try:
        return inspect.signature(real)
    except (TypeError, ValueError):
        return None


# ------------------------------------------------------------------------------------------------------------------------ calls


def call_faults(tree: ast.Module) -> Iterator[str]:
    """Calls of something of strobe that its signature does not take."""
    names = Names.of(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        real = names.real(node.func)
        takes = None if real is _NOTHING or not callable(real) else signature(real)
        starred = any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords)
        if takes is None:
            continue
        try:
            bind = takes.bind_partial if starred else takes.bind
            bind(*(each for each in node.args if not isinstance(each, ast.Starred)), **{k.arg: k for k in node.keywords if k.arg})
        except TypeError as error:
            yield f"line {node.lineno}: {ast.unparse(node.func)}{takes}: {error}"


# --------------------------------------------------------------------------------------------------------------------- classes


@cache
def shapes() -> dict[str, frozenset[str]]:
    """Return the public methods of each class of strobe, by its place and name."""
    held = {}
    for path in python_files("src"):
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                held[f"{path.relative_to(PACKAGE)}:{node.name}"] = frozenset(_methods(node))
    return held


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public methods of a class, by name."""
    own = (each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {each.name: each for each in own if not each.name.startswith("_")}


def undeclared(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Classes that declare nothing, though a class of strobe has all their public methods, or three of them; and that class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not _declared(node) and (own := set(_methods(node))):
            alike = [place for place, methods in shapes().items() if own <= methods or len(own & methods) >= ALIKE]
            if alike:
                yield node.name, max(alike, key=lambda place: len(own & shapes()[place]))


def _declared(node: ast.ClassDef) -> list[ast.expr]:
    """What a class says that it stands in for: its bases, and the argument of `stands_in_for`."""
    calls = (each for each in node.decorator_list if isinstance(each, ast.Call))
    said = [each.args[0] for each in calls if ast.unparse(each.func) == stands_in_for.__name__]
    return [*said, *(base.value if isinstance(base, ast.Subscript) else base for base in node.bases)]


def class_faults(tree: ast.Module) -> Iterator[str]:
    """Methods of classes that stand in for strobe's that take or return something else than the method that they replace."""
    declared = [(node, said) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and (said := _declared(node))]
    names = Names.of(tree) if declared else None
    for node, said in declared:
        for base in (real for each in said if names and inspect.isclass(real := names.real(each))):
            for name, method in _methods(node).items():
                for fault in _method_faults(method, inspect.getattr_static(base, name, None)):
                    yield f"line {method.lineno}: {node.name}.{name}: {fault}"


def _method_faults(method: ast.FunctionDef | ast.AsyncFunctionDef, replaced: Any) -> Iterator[str]:
    replaced = replaced.fget if isinstance(replaced, property) else getattr(replaced, "__func__", replaced)
    takes = signature(inspect.unwrap(replaced)) if callable(replaced) else None
    if takes is None:
        return
    given, wanted = _parameters(method.args), [(each.name, each.kind) for each in takes.parameters.values()]
    if not method.args.vararg and given[: len(wanted)] != wanted:
        yield f"it takes {[name for name, _ in given]}, what it replaces {[name for name, _ in wanted]}"
    said, returns = method.returns and ast.unparse(method.returns), takes.return_annotation
    if any(ast.unparse(each) == "contextmanager" for each in method.decorator_list):
        said = str(said).replace("Iterator", "AbstractContextManager", 1)
    if hasattr(replaced, "__wrapped__"):
        returns = str(returns).replace("Iterator", "AbstractContextManager", 1)
    if returns is not inspect.Signature.empty and said not in (returns, *str(returns).split(" | ")):
        yield f"it returns {said}, what it replaces {returns}"
    yield from _value_faults(method, returns, replaced)


def _parameters(given: ast.arguments) -> list[tuple[str, Any]]:
    kinds = inspect.Parameter
    return [
        *((each.arg, kinds.POSITIONAL_ONLY) for each in given.posonlyargs),
        *((each.arg, kinds.POSITIONAL_OR_KEYWORD) for each in given.args),
        *((each.arg, kinds.KEYWORD_ONLY) for each in given.kwonlyargs),
    ]


# --------------------------------------------------------------------------------------------------- what is returned in tuples


def _value_faults(made: ast.AST, returns: Any, replaced: Any) -> Iterator[str]:
    """Tuples that are written out where another number of values, or a named tuple, is returned or yielded."""
    wanted = _tuple_of(returns, replaced)
    if wanted is None:
        return
    values = [each.body for each in [made] if isinstance(each, ast.Lambda)]
    values += [each.value for each in ast.walk(made) if isinstance(each, (ast.Return, ast.Yield)) and each.value is not None]
    for value in values:
        items = value.args[0].elts if _is_iter(value) else [value]  # type: ignore[attr-defined]
        for item in items:
            if isinstance(item, ast.Tuple) and not any(isinstance(each, ast.Starred) for each in item.elts):
                if isinstance(wanted, int) and len(item.elts) != wanted:
                    yield f"it returns {len(item.elts)} values, what it replaces {wanted}"
                elif isinstance(wanted, str):
                    yield f"it returns a tuple, what it replaces {wanted}: make one by its name"


def _is_iter(value: ast.AST) -> bool:
    """Whether this is `iter([...])` or `iter((...))`."""
    called = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "iter" and len(value.args) == 1
    return called and isinstance(value.args[0], (ast.List, ast.Tuple))  # type: ignore[attr-defined]


def _tuple_of(returns: Any, replaced: Any) -> int | str | None:
    """Return how many values are returned, or the named tuple of which one is; None if it is neither, or not known."""
    if returns is inspect.Signature.empty:
        return None
    tree = ast.parse(str(returns).strip("'\""), mode="eval").body
    inner = tree
    while isinstance(inner, ast.Subscript) and ast.unparse(inner.value) in (
        "Iterator",
        "Generator",
        "Iterable",
        "Sequence",
        "list",
    ):
        inner = inner.slice.elts[0] if isinstance(inner.slice, ast.Tuple) else inner.slice
    if isinstance(inner, ast.Subscript) and ast.unparse(inner.value) == "tuple" and isinstance(inner.slice, ast.Tuple):
        parts = inner.slice.elts
        return None if any(isinstance(each, ast.Constant) and each.value is ... for each in parts) else len(parts)
    real = getattr(inspect.getmodule(replaced), ast.unparse(inner), None) if isinstance(inner, ast.Name) else None
    if typing.get_origin(real) is tuple and ... not in typing.get_args(real):  # another name of it
        return len(typing.get_args(real))
    return real.__name__ if inspect.isclass(real) and issubclass(real, tuple) and hasattr(real, "_fields") else None


# ----------------------------------------------------------------------------------------------------- functions that are patched


def patch_faults(tree: ast.Module) -> Iterator[str]:
    """Functions put in the place of strobe's by `setattr` that cannot be called as these are."""
    names = Names.of(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "setattr"):
            continue
        match node.args:
            case [ast.Constant(value=str(path)), value]:
                real = found(path) if path.startswith("strobe.") else _NOTHING
            case [target, ast.Constant(value=str(name)), value]:
                real = getattr(names.real(target), name, _NOTHING)
            case _:
                continue
        stand_in, takes = names.function(value), signature(real)
        if stand_in is None or takes is None or not str(getattr(real, "__module__", "")).startswith("strobe"):
            continue
        for fault in (*_cannot_be_called(stand_in.args, takes), *_value_faults(stand_in, takes.return_annotation, real)):
            yield f"line {node.lineno}: {ast.unparse(node)[:80]}: {fault}"


def _cannot_be_called(given: ast.arguments, takes: inspect.Signature) -> Iterator[str]:
    """What keeps a function from being called with all that another one must be called with."""
    kinds, wanted = inspect.Parameter, takes.parameters.values()
    required = [
        each for each in wanted if each.default is kinds.empty and each.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    keywords = {each.name for each in required if each.kind is kinds.KEYWORD_ONLY}
    number = len(required) - len(keywords)
    positional = [each.arg for each in (*given.posonlyargs, *given.args)]
    most = len([each for each in wanted if each.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)])
    least = len(positional) - len(given.defaults)
    any_number = any(each.kind is kinds.VAR_POSITIONAL for each in wanted)
    if number > len(positional) and not given.vararg:
        yield f"it takes {len(positional)} arguments, what it replaces {number} at least"
    if least > most and not any_number:
        yield f"it needs {least} arguments, what it replaces takes {most}"
    own = {each.arg for each in given.kwonlyargs} | set(positional)
    if (missing := keywords - own) and not given.kwarg:
        yield f"it does not take {', '.join(sorted(missing))}"
    needed = {each.arg for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None}
    if unknown := needed - {each.name for each in wanted}:
        yield f"it needs {', '.join(sorted(unknown))}, which what it replaces does not take"

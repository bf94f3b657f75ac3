"""The text below a struct's fields, for whoever prints documentation: OpenAPI, the command line, generated pages.

Python forgets a string that stands below a field, so it is read from the source.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import msgspec


@cache
def field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The documented fields of a struct, those of its parents included; empty where the source is not at hand."""
    docs: dict[str, str] = {}
    for parent in reversed(struct.__mro__):
        if parent.__module__.startswith("danubius."):
            docs.update(_own_docs(parent))
    return docs


def _own_docs(of: type) -> dict[str, str]:
    return _module_docs(of.__module__).get(of.__qualname__, {})


@cache
def _module_docs(name: str) -> dict[str, dict[str, str]]:
    """The documented fields of every class at the top of a module, whose source is read once for all of them."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError, KeyError):
        return {}
    return {one.name: _class_docs(one) for one in tree.body if isinstance(one, ast.ClassDef)}


def _class_docs(found: ast.ClassDef) -> dict[str, str]:
    docs: dict[str, str] = {}
    for field, text in itertools.pairwise(found.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ):
                docs[name] = inspect.cleandoc(doc).replace("\n", " ")
            case _:
                pass
    return docs

"""The text below a struct's fields, for whoever prints documentation: OpenAPI, the command line, generated pages.

Python forgets a string that stands below a field, so it is read from the source.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
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
    try:
        [found] = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    except (OSError, TypeError):
        return {}
    if not isinstance(found, ast.ClassDef):
        return {}
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

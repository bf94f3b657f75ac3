"""Python functions of steps: found by their import path, checked before Spark starts.

A function gets one DataFrame an input and its `arguments` by name, and returns a DataFrame.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danubius.pipeline.problems import Problems, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from danubius.pipeline.spec import Pipeline, Step


def look_beside(file: str) -> None:
    """Modules beside the pipeline file can be imported, here and by the Python workers of this machine."""
    folder = str(Path(file).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, known)])


def check_functions(pipeline: Pipeline, problems: Problems) -> None:
    for step in pipeline.steps.values():
        if step.python is not None:
            try:
                resolve(step)
            except ImportError as error:
                problems.add(
                    step.line,
                    f"step {step.name}: cannot import {step.python.split(':')[0]}: {error}",
                )
            except AttributeError as error:
                problems.add(step.line, f"step {step.name}: {error}")


def resolve(step: Step) -> Callable[..., Any]:
    """The function; ImportError or AttributeError with a sentence."""
    assert step.python is not None
    module_name, _, name = step.python.partition(":")
    module = importlib.import_module(module_name)
    found: object = getattr(module, name, None)
    if not callable(found):
        public = [
            each
            for each in vars(module)
            if not each.startswith("_") and callable(vars(module)[each])
        ]
        raise AttributeError(  # noqa: TRY004 - what is missing is the function
            f"{module_name} has no function {name}{nearest(name, public[:20])}"
        )
    return found


def own_files(pipeline: Pipeline) -> list[str]:
    """The files of functions that lie beside the pipeline file: executors elsewhere need them sent."""
    folder = Path(pipeline.file).resolve().parent
    found: list[str] = []
    for step in pipeline.steps.values():
        if step.python is not None:
            file = getattr(sys.modules.get(step.python.partition(":")[0]), "__file__", None)
            if file and Path(file).resolve().parent == folder:
                found.append(file)
    return found

"""Objects by the names config files give them: ``./file.py:variable``, ``package.module:variable``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass
class LoadFailure(Exception):
    """Something a config file names cannot be used. Told to the server as LOAD_ERROR."""

    graph: str | None
    error: str
    message: str
    file: str | None = None
    line: int | None = None
    traceback: str | None = None

    def __str__(self) -> str:
        return f"{self.error}: {self.message}"


def load(spec: str, folder: Path, key: str, graph: str | None = None) -> Any:
    """The object that ``spec`` names; ``key`` is where the config file names it."""
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise LoadFailure(
            graph, "ValueError", f'{key}: expected "./file.py:variable" or "module:variable", not {spec!r}'
        )
    try:
        module = _module(path, folder)
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except LoadFailure as failed:
        failed.graph = graph
        failed.message = f"{key}: {failed.message}"
        raise
    except AttributeError as error:
        if isinstance(error, AttributeError) and error.name in name.split(".") and error.obj is not None:
            names = (
                ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))[:20]) if "module" in locals() else ""
            )
            raise LoadFailure(
                graph,
                "AttributeError",
                f"{key}: {path} has no {name!r}" + (f"; it has {names}" if names else ""),
                file=str(_file_of(path, folder)),
            ) from None
        raise failure(error, graph, folder) from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise failure(error, graph, folder) from error


def failure(error: BaseException, graph: str | None, folder: Path) -> LoadFailure:
    """What went wrong, with the place in the user's own code."""
    file, line = None, None
    if isinstance(error, SyntaxError) and error.filename:
        file, line = error.filename, error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if _is_own(frame.filename, folder)]
        if own or frames:
            last = (own or frames)[-1]
            file, line = last.filename, last.lineno
    text = "".join(traceback.format_exception(type(error), error, _without_this(error.__traceback__)))
    return LoadFailure(graph, type(error).__name__, str(error) or type(error).__name__, file, line, text)


def add_paths(config: dict[str, Any], folder: Path) -> None:
    """Makes the folder of the config file, and the local packages it depends on, importable."""
    wanted = [folder]
    for dependency in config.get("dependencies") or []:
        if isinstance(dependency, str) and dependency.startswith("."):
            local = (folder / dependency).resolve()
            wanted.append(local)
            if (local / "src").is_dir() and not (local / "src" / "__init__.py").exists():
                wanted.append(local / "src")
    for path in reversed(wanted):
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))


def _module(path: str, folder: Path) -> ModuleType:
    if not path.endswith(".py") and "/" not in path:
        return importlib.import_module(path)
    file = _file_of(path, folder)
    if not file.is_file():
        raise LoadFailure(None, "FileNotFoundError", f"file {path!r} does not exist in {folder}", file=str(file))
    name = _dotted(file)
    if name is not None:
        # As the package itself imports it: one module, not two of the same file; relative imports work.
        root = str(file.parents[name.count(".")])
        if root not in sys.path:
            sys.path.append(root)
        module = importlib.import_module(name)
        if os.path.realpath(getattr(module, "__file__", "") or "") == os.path.realpath(file):
            return module
    name = "towpath_project_" + "_".join(file.with_suffix("").parts[1:]).replace("-", "_").replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise LoadFailure(None, "ImportError", f"{path!r} is not a Python file", file=str(file))
    module = importlib.util.module_from_spec(spec)
    # Dataclasses, pydantic and pickle look classes up by their module.
    sys.modules[name] = module
    try:
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _dotted(file: Path) -> str | None:
    """The name of a module inside a package."""
    parts = [file.stem]
    parent = file.parent
    while (parent / "__init__.py").is_file():
        parts.insert(0, parent.name)
        parent = parent.parent
    return ".".join(parts) if len(parts) > 1 and all(part.isidentifier() for part in parts) else None


def _file_of(path: str, folder: Path) -> Path:
    return (folder / path).resolve()


def _is_own(filename: str, folder: Path) -> bool:
    return (
        filename.startswith(str(folder))
        and "site-packages" not in filename
        and not filename.startswith(str(Path(__file__).parent))
    )


def _without_this(trace: Any) -> Any:
    """A traceback without the frames of this package and of the import machinery at its head."""
    at = trace
    while at is not None and (
        at.tb_frame.f_code.co_filename.startswith("<frozen importlib")
        or at.tb_frame.f_code.co_filename == __file__
        or "/importlib/" in at.tb_frame.f_code.co_filename
    ):
        at = at.tb_next
    return at or trace

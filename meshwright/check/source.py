"""Where in the user's program: the line that made a call, and the name of a parameter."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Final

import torch
import typing_extensions
from torch import Tensor, nn

from meshwright.check.tag import read

_HOME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS: Final = (
    *(os.path.join(_HOME, room) for room in ("check", "comm", "types", "audit", "core")),
    os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), ""),
    typing_extensions.__file__,
)
"""Where frames are that are none of the user's."""

_LONGEST: Final = 80


def line() -> str:
    """`model.py:12 "y = x * weight"`: the innermost line that is neither torch's nor the checker's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return _told(frame.f_code.co_filename, frame.f_lineno)


def line_of(traceback: TracebackType | None) -> str:
    """The innermost line of a traceback that is neither torch's nor the checker's; "" where there is none."""
    found = ""
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if not path.startswith(_OURS) and "contextlib" not in path:
            found = _told(path, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _told(path: str, number: int) -> str:
    text = linecache.getline(path, number).strip()
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "..."
    return f"{_short(path)}:{number}" + (f' "{text}"' if text else "")


def place() -> str:
    """The line, behind the path of the innermost module whose `forward` runs: `blocks.0.norm, model.py:12 "..."`."""
    path = _module_path()
    return f"{path}, {line()}" if path else line()


def _module_path() -> str:
    running = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        held = frame.f_locals.get("self") if frame.f_code.co_name == "forward" else None
        if isinstance(held, nn.Module):
            running.append(held)
        frame = frame.f_back
    if not running:
        return ""
    inner, outer = running[0], running[-1]
    return next((path for path, module in outer.named_modules() if module is inner), "")


def name_of(parameter: Tensor) -> str:
    """The parameter's longest dotted name in a module that the callers hold; else the line that stated its type."""
    names = [name for module in _held() for name, other in _parameters(module, "") if other is parameter]
    if names:
        return max(names, key=len)
    stated = read(parameter).stated
    return f"the tensor typed at {stated}" if stated else "a tensor"


def _held() -> Iterator[nn.Module]:
    """Modules among the local variables of all callers, and among the attributes of those.

    Not among all objects of the process: to list them breaks tuples that other threads are building.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for value in list(frame.f_locals.values()):
            attributes = object.__getattribute__(value, "__dict__") if type(value).__dictoffset__ else {}
            for held in (value, *list(attributes.values())):
                if issubclass(type(held), nn.Module):
                    yield held
        frame = frame.f_back


def _parameters(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Also of a module that is being built, which does not have all it will have."""
    for name, parameter in list(vars(module).get("_parameters", {}).items()):
        yield prefix + name, parameter
    for name, child in list(vars(module).get("_modules", {}).items()):
        if child is not None:
            yield from _parameters(child, f"{prefix}{name}.")


def _short(path: str) -> str:
    """Relative where the file lies below the current folder."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative

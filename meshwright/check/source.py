"""Where in the user's program: the line that made a call, and the name of a parameter."""

from __future__ import annotations

import gc
import linecache
import os
import sys
from typing import Final

import torch
from torch import Tensor, nn

import meshwright
from meshwright.check.tag import read

_OURS: Final = tuple(
    os.path.join(os.path.dirname(os.path.abspath(package.__file__ or "")), part)
    for package, part in ((meshwright, "check"), (meshwright, "comm"), (torch, ""))
)

_LONGEST: Final = 80


def line() -> str:
    """`model.py:12 "y = x * weight"`: the innermost line that is neither torch's nor the checker's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    path, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, number).strip()
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "..."
    return f"{_short(path)}:{number}" + (f' "{text}"' if text else "")


def name_of(parameter: Tensor) -> str:
    """The parameter's longest dotted name in any module; else the line that stated its type."""
    names = [
        name
        for module in gc.get_objects()
        if issubclass(type(module), nn.Module)
        for name, other in nn.Module.named_parameters(module)
        if other is parameter
    ]
    if names:
        return max(names, key=len)
    stated = read(parameter).stated
    return f"the tensor typed at {stated}" if stated else "a tensor"


def _short(path: str) -> str:
    """Relative where the file lies below the current folder."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative

"""Point to point: what a rank receives is what another one held, and autograd sees neither end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.check.context import active
from meshwright.check.function_collectives import axes_of
from meshwright.check.intercept import mode_is_on, place
from meshwright.check.mode import TypeCheck
from meshwright.check.refusal import Refused
from meshwright.check.tag import UNKNOWN, read, typed, write, written
from meshwright.codes import Code
from meshwright.types.kinds import V

_RECEIVING: Final = ("recv", "irecv")


@place(lambda: dist, "send", "isend", *_RECEIVING)
def passed(original: Callable[..., Any], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """One end of an edge between two ranks."""
    check = active()
    if check is None or not mode_is_on():
        return original(tensor, *args, **kwargs)
    group = kwargs.get("group") or next((each for each in args if isinstance(each, dist.ProcessGroup)), None)
    return _judged(check, original, [(original.__name__, tensor, group)], (tensor, *args), kwargs)


@place(lambda: dist.P2POp, "__new__", "__init__")
def built(original: Callable[..., Any], first: Any, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """torch knows an edge by the function itself, not by what stands in its place."""
    return original(first, inspect.unwrap(op), *args, **kwargs)


@place(lambda: dist, "batch_isend_irecv")
def batched(original: Callable[..., Any], p2p_op_list: list[Any]) -> Any:
    """Several ends at once."""
    check = active()
    if check is None or not mode_is_on():
        return original(p2p_op_list)
    edges = [(each.op.__name__, each.tensor, each.group) for each in p2p_op_list]
    return _judged(check, original, edges, (p2p_op_list,), {})


Edge = tuple[str, Tensor, Any]
"""The function, what it sends or takes, and the group."""


def _judged(
    check: TypeCheck, original: Callable[..., Any], edges: list[Edge], args: Any, kwargs: dict[str, Any]
) -> Any:
    def run(check: TypeCheck, func: Any, args: Any, kwargs: Any) -> Any:
        for name, x, _ in edges:
            if name not in _RECEIVING and x.requires_grad and torch.is_grad_enabled() and read(x).layout:
                raise Refused(
                    f"{name} of torch.distributed takes a tensor that wants a gradient",
                    "autograd does not see it: the gradient would not come back over the edge",
                    "x.detach(), where the way back is sent by hand",
                    code=Code.RAW_COLLECTIVE,
                )
        with torch._C.DisableTorchFunction():
            result = original(*args, **kwargs)
            for name, x, group in edges:
                if name in _RECEIVING:
                    _received(check, x, group)
        return result

    return check.run(run, original, args, kwargs)


def _received(check: TypeCheck, x: Tensor, group: Any) -> None:
    """What has a type is V between the ranks of the group; of what has none its author has to say what came."""
    axes, layout = axes_of(check.mesh, group), read(x).layout
    known = bool(axes and layout and read(x).fresh is None)
    write(x, typed(layout.replace(**dict.fromkeys(axes or (), V))) if known else UNKNOWN)
    written(x)

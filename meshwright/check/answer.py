"""What a pure rule answers to a call, in whatever words the call is made."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from meshwright.check.algebra import Result, demand_kept
from meshwright.check.operand import Operand
from meshwright.check.refusal import Refused, failed, no_rule
from meshwright.check.rule import Pure
from meshwright.comm.scope import View
from meshwright.errors import MeshwrightError


def inferred(rule: Pure, given: tuple[Any, ...], named: Mapping[str, Any], call: Applied) -> Any:
    """The rule's results.

    Errors: `Refused` where the types do not fit, and where the rule has no answer; what torch raises, where the call is
    one that torch does not take either.
    """
    try:
        return in_its_words(rule, given, named)
    except (Refused, MeshwrightError):
        raise
    except Exception as error:
        raise _unanswered(rule, error, *call) from error


def in_its_words(rule: Pure, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """The rule's results, also where the call has other names for arguments.

    Errors: `Refused` where the types do not fit; whatever the rule raises where it does not know the form of the call.
    """
    try:
        return rule.infer(*given, **named)
    except (Refused, MeshwrightError):
        raise
    except Exception:
        if not any(name in _ALSO or name in _IN_ORDER for name in named):
            raise
    renamed = {_ALSO.get(name, name): value for name, value in named.items()}
    last = tuple([renamed.pop(name) for name in _IN_ORDER if name in renamed])
    first = (renamed.pop("input"),) if "input" in renamed and (last or "input" not in named) else ()
    return rule.infer(*first, *given, *last, **renamed)


def refusal_of(rule: Pure, given: tuple[Any, ...], named: Mapping[str, Any]) -> Refused | None:
    """What the rule refuses of a call; None where it answers, and where it has no answer, which is said elsewhere."""
    try:
        rule.infer(*given, **named)
    except Refused as refused:
        return refused
    except (TypeError, ValueError, IndexError):
        return None
    return None


Applied = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
"""A function, its arguments and its keyword arguments."""


def _unanswered(
    rule: Pure, error: Exception, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Refused:
    """The rule raised `error`: it does not know this form of the call, or it is wrong itself.

    Errors: what torch raises of the call.
    """
    if func(*map(_copied, args), **{name: _copied(value) for name, value in kwargs.items()}) is NotImplemented:
        raise TypeError(f"{rule.name} takes no such operand")
    return no_rule(f"this form of {rule.name} ({error})") if isinstance(error, _FORM) else failed(rule.name, error)


_FORM: Final = (TypeError, ValueError)
"""What a rule raises, or Python for it, where the arguments are not those that it knows."""


def _copied(value: Any) -> Any:
    """The value with other tensors that hold the same, for a call that may write."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


_ALSO: Final = {
    "axis": "dim",
    "keepdims": "keepdim",
    "self": "input",
    "axis0": "dim0",
    "axis1": "dim1",
    "mat2": "other",
    "vec": "other",
    "tensor": "other",
    "value": "src",
    "split_size_or_sections": "split_size",
    "split_sizes": "split_size",
    "indices": "indices_or_sections",
    "sections": "indices_or_sections",
}
"""Other names that torch takes for an argument."""
_IN_ORDER: Final = ("size", "shape", "dims", "repeats")
"""Names of what most calls give as several numbers, without a name."""


def kept(op: str, target: Operand, result: Result) -> Result:
    """What a tensor is after `result` was written into it.

    Where no gradient flows R and I are not told apart: the tensor stays what it was.
    """
    if result.anew and (not target.known or target.tag.owner is not None):
        return result
    demand_kept(op, target, result)
    stays = not torch.is_grad_enabled() and target.tag.fresh is None
    return Result(target.tag, target.whole) if stays else result


class Answers:
    """What was decided on a mesh: of operands, and of calls. Rules know nothing of values, so answers hold."""

    def __init__(self) -> None:
        self.operands: dict[Any, Operand] = {}
        self.outcomes: dict[Any, Any] = {}


_answers: Final[weakref.WeakKeyDictionary[View, Answers]] = weakref.WeakKeyDictionary()


def answers_on(mesh: View) -> Answers:
    """What was decided on a mesh so far."""
    answers = _answers.get(mesh)
    return answers if answers is not None else _answers.setdefault(mesh, Answers())

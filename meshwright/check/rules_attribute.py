"""Attributes and methods that say something of a tensor, or hand out the same tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from meshwright.check.algebra import Result, agree
from meshwright.check.formula import Formula
from meshwright.check.operand import Operand
from meshwright.check.refusal import Refused
from meshwright.check.rule import Pure, forms, getter, setter, special
from meshwright.check.rules_pointwise import FORMULAS
from meshwright.check.rules_view import permute
from meshwright.check.tag import Tag, read, write

if TYPE_CHECKING:
    from meshwright.check.mode import TypeCheck

_SAYING: Final = (
    "dim ndimension size numel nelement stride storage_offset element_size is_contiguous is_floating_point is_complex "
    "is_signed is_pinned is_same_size data_ptr untyped_storage get_device requires_grad_ retain_grad register_hook "
    "register_post_accumulate_grad_hook __len__ __repr__ __hash__ _is_view is_tensor is_storage result_type can_cast "
    "share_memory_ is_shared is_conj is_neg is_inference has_names pin_memory record_stream _set_grad_enabled "
    "__reduce_ex__"
)


def _passed(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Nothing of a value is read, and no tensor is made."""
    return func(*args, **kwargs)


special(*(function for name in _SAYING.split() for function in forms(name)))(_passed)
special(torch._C._set_grad_enabled)(_passed)


def _reversed(input: Operand) -> Result:
    return permute(input, tuple(reversed(range(len(input.shape)))))


def _last_two(input: Operand) -> Result:
    order = tuple(range(len(input.shape)))
    return permute(input, (*order[:-2], order[-1], order[-2]))


_SAME: Final = Formula.read(FORMULAS["detach"])

for _name, _infer in {
    "T": _reversed,
    "mT": _last_two,
    "data": lambda input: _SAME.infer("data", (input,), {}),
    "real": lambda input: _SAME.infer("real", (input,), {}),
}.items():
    special(getter(_name))(Pure(_name, _infer))


@special(setter("data"))
def set_data(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Other values of the same type."""
    x, values = args
    mine, theirs = read(x).layout, read(values).layout
    for axis, kind in theirs.items():
        held = mine.get(axis)
        if held is not None and not agree(held, kind, flows=False):
            raise Refused(
                f"on axis {axis!r} .data would put {kind!r} into a tensor that is {held!r}",
                "a tensor keeps its type as long as it lives",
                f"values that are {held!r} on axis {axis!r}",
            )
    func(*args, **kwargs)


@special(torch.Tensor.__deepcopy__)
def deepcopied(check: TypeCheck, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A copy has the type of what it copies."""
    result = func(*args, **kwargs)
    tag = read(args[0])
    write(result, Tag(tag.layout, tag.fresh, stated=tag.stated))
    return result

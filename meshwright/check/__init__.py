"""Follow the type of every tensor through forward, backward and the optimizer, and refuse what does not fit.

with set_current_mesh(view), typecheck():
    x = assert_type(x, {"tp": S(1)})
    ...
"""

from meshwright.check import (
    grads,
    rules_along,
    rules_attention,
    rules_attribute,
    rules_collective,
    rules_conv,
    rules_diagonal,
    rules_dims,
    rules_distance,
    rules_distributed,
    rules_factory,
    rules_fft,
    rules_foreach,
    rules_function,
    rules_image,
    rules_index,
    rules_linalg,
    rules_lookup,
    rules_loss,
    rules_loss_margin,
    rules_matmul,
    rules_norm,
    rules_outside,
    rules_pieces,
    rules_place,
    rules_pointwise,
    rules_random,
    rules_reduce,
    rules_spread,
    rules_stacks,
    rules_value,
    rules_view,
)
from meshwright.check.author import (
    Infer,
    get_axis_local_type,
    get_local_type,
    get_partition_spec,
    has_local_type,
    layout_of,
    local_map,
    mutate_type,
    reinterpret_mesh,
    reinterpret_no_grad,
    show,
)
from meshwright.check.context import is_type_checking, local, no_typecheck, typecheck
from meshwright.check.replay import check
from meshwright.check.report import Report
from meshwright.check.rules_function import register_autograd_function
from meshwright.comm.declare import assert_type

RULES = (
    grads,
    rules_along,
    rules_attention,
    rules_attribute,
    rules_collective,
    rules_conv,
    rules_diagonal,
    rules_dims,
    rules_distance,
    rules_distributed,
    rules_factory,
    rules_fft,
    rules_foreach,
    rules_function,
    rules_image,
    rules_index,
    rules_linalg,
    rules_lookup,
    rules_loss,
    rules_loss_margin,
    rules_matmul,
    rules_norm,
    rules_outside,
    rules_pieces,
    rules_place,
    rules_pointwise,
    rules_random,
    rules_reduce,
    rules_spread,
    rules_stacks,
    rules_value,
    rules_view,
)
"""Where the rules stand; each module registers its own when it is imported."""

__all__ = [
    "Infer",
    "Report",
    "assert_type",
    "check",
    "get_axis_local_type",
    "get_local_type",
    "get_partition_spec",
    "has_local_type",
    "is_type_checking",
    "layout_of",
    "local",
    "local_map",
    "mutate_type",
    "no_typecheck",
    "register_autograd_function",
    "reinterpret_mesh",
    "reinterpret_no_grad",
    "show",
    "typecheck",
]

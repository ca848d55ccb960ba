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
from meshwright.check.author import layout_of
from meshwright.check.context import is_type_checking, local, no_typecheck, typecheck
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

__all__ = ["assert_type", "is_type_checking", "layout_of", "local", "no_typecheck", "typecheck"]

"""Follow the type of every tensor through forward, backward and the optimizer, and refuse what does not fit.

with set_current_mesh(view), typecheck():
    x = assert_type(x, {"tp": S(1)})
    ...
"""

from meshwright.check import (
    grads,
    rules_attribute,
    rules_collective,
    rules_factory,
    rules_foreach,
    rules_index,
    rules_matmul,
    rules_pieces,
    rules_pointwise,
    rules_reduce,
    rules_value,
    rules_view,
)
from meshwright.check.mode import is_type_checking, no_typecheck, typecheck
from meshwright.check.tag import layout_of
from meshwright.comm.declare import assert_type

RULES = (
    grads,
    rules_attribute,
    rules_collective,
    rules_factory,
    rules_foreach,
    rules_index,
    rules_matmul,
    rules_pieces,
    rules_pointwise,
    rules_reduce,
    rules_value,
    rules_view,
)
"""Where the rules stand; each module registers its own when it is imported."""

__all__ = ["assert_type", "is_type_checking", "layout_of", "no_typecheck", "typecheck"]

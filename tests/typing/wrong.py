"""Wrong uses of `meshwright.spmd`: mypy reports each line that ends in a comment, under the code that it names."""

from __future__ import annotations

import torch
from torch import Tensor

import meshwright.spmd as spmd

x = torch.ones(4)

spmd.redistribute(x, "tp", dst=spmd.R)  # call-arg
spmd.redistribute(x, "tp", spmd.S(0), spmd.R)  # call-arg
spmd.all_reduce(x, 0, src=spmd.P, dst=spmd.R)  # arg-type
spmd.all_gather(x, "tp", src="S(0)", dst=spmd.R)  # arg-type
spmd.convert(x, "tp", src=spmd.S, dst=spmd.R)  # arg-type
spmd.assert_type(x, {"tp": "R"})  # dict-item
spmd.assert_type(1.0, {"tp": spmd.R})  # type-var
number: float = spmd.all_reduce(x, "tp", src=spmd.P, dst=spmd.R)  # assignment
listed: list[Tensor] = spmd.assert_type(x, spmd.R)  # arg-type
spmd.get_partition_spec(x).layout()  # union-attr
spmd.mesh(dp="2")  # arg-type
spmd.typecheck(True)  # call-arg
spmd.check(lambda: None, ["dp", "tp"])  # arg-type
spmd.no_typecheck(3)  # call-overload
spmd.register_autograd_function(torch.autograd.Function, proven=False)  # call-overload
spmd.vary(x)  # attr-defined


@spmd.no_typecheck("it keeps its signature")
def unjudged(x: Tensor, times: int) -> Tensor:
    return x * times


@spmd.local_map(out_types={"tp": spmd.V})
def region(x: Tensor) -> Tensor:
    return x


unjudged(x, "twice")  # arg-type
region(x, x)  # call-arg

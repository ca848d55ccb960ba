"""A state at rest as a DTensor on the whole mesh, and the layouts that have none."""

from __future__ import annotations

import pytest
import torch

from meshwright.backends.at_rest import on_mesh
from meshwright.comm.grid import ParallelismDims
from meshwright.comm.process_groups import ProcessGroups
from meshwright.errors import ConfigError
from meshwright.types.kinds import I, P, R, S, V
from meshwright.types.layout import SpmdLayout
from tests.processes import ranks

DIMS = ParallelismDims(cp=2, tp=2)
WHOLE = torch.arange(12.0).reshape(6, 2)


def put_together(rank, layout):
    """What the DTensor of this rank's part says the whole is, and whether it shares memory; or what was refused."""
    mesh = ProcessGroups(DIMS, "cpu").mesh
    index = DIMS.index(rank, {axis: (axis,) for axis in DIMS.base})
    layout = SpmdLayout(layout)
    try:
        spans = [layout.span(dim, n, DIMS.base, index) for dim, n in enumerate(WHOLE.shape)]
        part = WHOLE[tuple(slice(span.start, span.stop) for span in spans)].clone()
        found = on_mesh(part, WHOLE.shape, layout, mesh, "w")
    except ConfigError as error:
        return [(problem.where, problem.what) for problem in error.problems]
    return found.full_tensor(), found.to_local().data_ptr() == part.data_ptr()


@pytest.mark.parametrize(
    "layout",
    [{}, {"tp_kv": S(0)}, {"cp": S(1), "tp_kv": S(0)}, {"cp": S(0), "tp_kv": S(0)}, {"cp": I, "tp_kv": R}],
    ids=str,
)
def test_it_is_the_whole_tensor_in_the_memory_of_the_part(layout):
    for full, shares in ranks(4).run(put_together, layout):
        assert torch.equal(full, WHOLE)
        assert shares


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"tp_kv": P}, "P on 'tp_kv' cannot be kept"),
        ({"cp": V}, "V on 'cp' has no placement"),
        ({"tp_kv": S(0, (2, 4))}, "S(0, (2, 4)) on 'tp_kv' has no placement"),
        ({"tp_kv": S(0), "cp": S(0)}, "dim 0 is cut over tp_kv, cp in this order"),
    ],
)
def test_what_has_no_one_value_or_another_order_is_refused(layout, said):
    for found in ranks(4).run(put_together, layout):
        assert found == [("w", said)]


def test_on_one_rank_it_stays_plain():
    assert on_mesh(WHOLE, WHOLE.shape, SpmdLayout({"tp_kv": P}), None, "w").data_ptr() == WHOLE.data_ptr()

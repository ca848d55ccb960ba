"""Arguments go by the names that torch gives them; lists of places are tensors of them."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from tests.cases.agreement import Held, agrees
from tests.check.judged import on
from tests.denotation import sample

R, S = spmd.R, spmd.S

BY_NAME = {
    "mm": lambda x, w, b: torch.mm(x, mat2=w),
    "mv": lambda x, w, b: x.mv(vec=b),
    "dot": lambda x, w, b: x * torch.dot(b, tensor=b),
    "bmm": lambda x, w, b: torch.bmm(x[None], mat2=w[None])[0],
    "baddbmm": lambda x, w, b: x[None].baddbmm(batch1=x[None], batch2=w[None], beta=0.5, alpha=2)[0],
    "addmv": lambda x, w, b: torch.addmv(x.sum(1), mat=x, vec=b),
    "addmm": lambda x, w, b: torch.addmm(input=b, mat1=x, mat2=w),
    "expand": lambda x, w, b: x * b[None].expand(size=(x.shape[0], 4)),
    "view": lambda x, w, b: x.view(size=(x.shape[0], 2, 2)),
    "reshape": lambda x, w, b: torch.reshape(input=x, shape=(-1, 2, 2)),
    "repeat": lambda x, w, b: x.repeat(repeats=(1, 2)),
    "tile": lambda x, w, b: torch.tile(x, dims=(1, 2)),
    "permute": lambda x, w, b: torch.permute(input=x, dims=(1, 0)).permute(dims=(1, 0)),
    "flip": lambda x, w, b: torch.flip(x, dims=(1,)),
    "swapaxes": lambda x, w, b: x.swapaxes(axis0=0, axis1=1).t(),
    "split": lambda x, w, b: torch.split(x, split_size_or_sections=2, dim=1)[1],
    "tensor_split": lambda x, w, b: torch.tensor_split(x, indices=(1,), dim=1)[1],
    "tensor_split, sections": lambda x, w, b: torch.tensor_split(x, sections=2, dim=1)[1],
}
PLACES = {
    "of a dim": lambda x, w, b: x[:, [0, -1]],
    "behind dots": lambda x, w, b: x[..., [2]],
    "alone": lambda x, w, b: x @ w[[0, 2]].t(),
    "of each of two dims": lambda x, w, b: x * w[[0, 1], [2, 3]].sum(),
    "nothing in front": lambda x, w, b: torch.cat([torch.empty(0, dtype=x.dtype), x, x], dim=1),
}


@pytest.mark.parametrize("name", [*BY_NAME, *PLACES])
def test_it_is_right(name):
    x = Held(sample((6, 4), 1), {"tp": S(0)})
    w, b = (Held(sample(shape, n), {"tp": R}) for n, shape in ((2, (4, 4)), (3, (4,))))
    assert agrees((BY_NAME | PLACES)[name], on("tp", 2), x=x, w=w, b=b) == {"tp": S(0)}

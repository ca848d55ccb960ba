"""Models that others wrote pass as they are, data parallel: every gradient is a part of a sum over the ranks."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError
from tests.check.peers import PEERS
from tests.marks import first

transformers = pytest.importorskip("transformers")
R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S

REFUSED = {
    ("bloom", True): (Code.FUNCTION, "GeLUFunction is a custom autograd.Function and says nothing of types"),
    ("gpt2, classes", True): (Code.READ, "__contains__ reads a value that is V"),
    ("gpt2, classes", False): (Code.READ, "__contains__ reads a value that is S(0)"),
    ("bloom", False): (Code.WHOLE_MEETS_SHARD, "meets 16 of input"),
    ("deepseek_v3", False): (Code.ALONG_SHARD, "sort needs all of dim 0"),
    ("mixtral", False): (Code.ALONG_SHARD, "sort needs all of dim 0"),
    ("qwen3_moe", False): (Code.ALONG_SHARD, "sort needs all of dim 0"),
}
"""Model, whether which dim is cut is left out -> what is said. What they read in Python is another value on each rank;
experts sort the tokens that a rank has, which is a region's work; one repeats a table as often as a rank has rows."""


def step(peer, local):
    """Forward, loss and backward of what one rank holds of the batch."""
    model = peer.build(transformers)
    model.train(peer.model != "ResNetForImageClassification")  # whose running statistics are of a rank's own batch
    batch = peer.batch()
    if not local:  # a mean over tokens is one of a rank's own
        batch.pop("labels", None)
    with spmd.set_current_mesh(spmd.mesh(dp=2)), spmd.typecheck(local=local):
        spmd.assert_type([*model.parameters(), *model.buffers()], {"dp": R})
        batch = {name: spmd.assert_type(x, {"dp": V if local else S(0)}) for name, x in batch.items()}
        torch.manual_seed(spmd.axis_index("dp"))
        out = model(**batch)
        loss = out.loss if getattr(out, "loss", None) is not None else out[0].float().square().sum()
        if local:
            loss = spmd.reinterpret(loss, "dp", src=V, dst=P)
        spmd.all_reduce(loss, "dp", src=P, dst=I).backward()
        return {name: spmd.layout_of(p.grad) for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("local", [True, False], ids=["local", "global"])
@pytest.mark.parametrize("name", first(PEERS, 20))
def test_a_model_of_others_is_right_where_it_is(name, local):
    if (name, local) in REFUSED:
        code, what = REFUSED[name, local]
        with pytest.raises(SpmdTypeError) as error:
            step(PEERS[name], local)
        (problem,) = error.value.problems
        assert problem.code is code
        assert what in problem.what
        return
    gradients = step(PEERS[name], local)
    assert gradients
    assert all(layout == {"dp": P} for layout in gradients.values()), gradients

"""Models that others wrote pass as they are, data parallel: every gradient is a part of a sum over the ranks."""

from __future__ import annotations

import pytest

from meshwright.codes import Code
from tests.check.peers import PEERS, demand_right, gradients
from tests.marks import first

transformers = pytest.importorskip("transformers")

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
    return gradients(model, batch, local)


@pytest.mark.parametrize("local", [True, False], ids=["local", "global"])
@pytest.mark.parametrize("name", first(PEERS, 20))
def test_a_model_of_others_is_right_where_it_is(name, local):
    demand_right(lambda: step(PEERS[name], local), REFUSED.get((name, local)))

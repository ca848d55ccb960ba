"""Many more models that others wrote, data parallel: what is refused of them is refused for a reason."""

from __future__ import annotations

import pytest

from meshwright.codes import Code
from tests.check.many_peers import NAMES, batch, build
from tests.check.peers import demand_right, gradients

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

REFUSED = {
    "LongformerForMaskedLM": (Code.NO_RULE, "this form of view"),
    "LEDForConditionalGeneration": (Code.NO_RULE, "this form of view"),
    "Mask2FormerModel": (Code.NO_RULE, "a mask for each head"),
    "WavLMModel": (Code.NO_RULE, "a mask for each head"),
    "MraForMaskedLM": (Code.UNTYPED, "input has no type"),
    "RecurrentGemmaForCausalLM": (Code.FUNCTION, "says nothing of types"),
    "YosoForMaskedLM": (Code.FUNCTION, "says nothing of types"),
    "SwitchTransformersForConditionalGeneration": (Code.READ, "format reads a value that is V"),
}
"""Of Longformer and LED a tensor is a length, of MRA a tensor that wants a gradient is made of nothing, and of the
switch transformer the name of a module is read from the tokens of a rank."""
EXPERTS = ("Jamba", "Olmoe", "GraniteMoe", "Qwen2Moe", "Qwen3Next", "GptOss")
CUT = {
    **{f"{name}ForCausalLM": (Code.ALONG_SHARD, "sort needs all of dim 0") for name in EXPERTS},
    "SwitchTransformersForConditionalGeneration": (Code.NOT_LINEAR, "greater is not linear"),
    "MraForMaskedLM": (Code.ALONG_SHARD, "repeat needs all of dim 0"),
    "TimesformerModel": (Code.LENGTH, "the places of indexing"),
}
"""Where cut dims are followed too: experts take the tokens of a rank, which a region does; Timesformer takes the first
rows of a dim of which batch and frames are factors, and on one device those are others; MRA repeats the batch."""


def step(name, local):
    """Forward, the sum of the squares of what comes out, and backward."""
    model = build(transformers, name)
    return gradients(model, batch(model, name), local)


@pytest.mark.parametrize("local", [True, False], ids=["local", "global"])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_others_is_right_where_it_is(name, local):
    demand_right(lambda: step(name, local), REFUSED.get(name) if local else {**REFUSED, **CUT}.get(name))

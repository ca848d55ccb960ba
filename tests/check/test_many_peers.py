"""Many more models that others wrote, data parallel: what is refused of them is refused for a reason."""

from __future__ import annotations

import pytest
import torch

import meshwright.spmd as spmd
from meshwright.codes import Code
from meshwright.errors import SpmdTypeError
from tests.check.many_peers import NAMES, batch, build

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
R, I, V, P, S = spmd.R, spmd.I, spmd.V, spmd.P, spmd.S

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
    given = batch(model, name)
    with spmd.set_current_mesh(spmd.mesh(dp=2)), spmd.typecheck(local=local):
        spmd.assert_type([*model.parameters(), *model.buffers()], {"dp": R})
        given = {key: spmd.assert_type(x, {"dp": V if local else S(0)}) for key, x in given.items()}
        torch.manual_seed(spmd.axis_index("dp"))
        outputs = model(**given).to_tuple()
        loss = next(x for x in outputs if isinstance(x, torch.Tensor) and x.is_floating_point()).square().sum()
        if local:
            loss = spmd.reinterpret(loss, "dp", src=V, dst=P)
        spmd.all_reduce(loss, "dp", src=P, dst=I).backward()
        return [spmd.layout_of(p.grad) for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("local", [True, False], ids=["local", "global"])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_others_is_right_where_it_is(name, local):
    why = REFUSED.get(name) if local else {**REFUSED, **CUT}.get(name)
    if why is None:
        gradients = step(name, local)
        assert gradients
        assert all(layout == {"dp": P} for layout in gradients)
        return
    with pytest.raises(SpmdTypeError) as error:
        step(name, local)
    (problem,) = error.value.problems
    assert problem.code is why[0]
    assert why[1] in problem.what

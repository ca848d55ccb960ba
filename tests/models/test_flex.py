"""flex_attention with a mask is the attention of `scaled_dot_product_attention` with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from meshwright.errors import ConfigError
from meshwright.models.attention import WAYS, DotProduct, Visible, dot_product, flex_where_masked
from meshwright.train import compute
from meshwright.train.config import ComputeConfig, LaunchConfig
from meshwright.train.preflight import preflight
from tests.parity.harness import alone_on_cpu, small

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def packed(rows, length, documents=3):
    """documents, positions [rows, length] of rows in which several documents lie."""
    starts = torch.randint(1, length, (rows, documents - 1), generator=torch.Generator().manual_seed(1))
    places = torch.arange(length).expand(rows, length)
    owner = (places[:, None] >= starts[..., None]).sum(1)
    first = torch.where(owner[:, :, None] == owner[:, None, :], places[:, None, :], length).amin(-1)
    return owner, places - first


def inputs(queries=200, keys=200, heads=4, kv_heads=4, key_dim=16, value_dim=16):
    """q, k, v and a mask over documents: the queries are the last of the keys."""
    made = torch.Generator().manual_seed(0)
    q = torch.randn(2, queries, heads, key_dim, generator=made)
    k = torch.randn(2, keys, kv_heads, key_dim, generator=made)
    v = torch.randn(2, keys, kv_heads, value_dim, generator=made)
    documents, positions = packed(2, keys)
    mask = Visible.Config().build()(documents[:, -queries:], positions[:, -queries:], documents, positions)
    return q, k, v, mask


def computed(way, *args, scale=None):
    inner = DotProduct.Config(scale=scale).build()
    inner.attend = WAYS[way]
    with torch.no_grad():
        return inner(*args)


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"heads": 8, "kv_heads": 2},
        {"queries": 72},
        {"value_dim": 8},
        {"queries": 40, "keys": 300, "heads": 6, "kv_heads": 3, "key_dim": 8, "value_dim": 24},
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_it_is_the_same_attention(shape, scale):
    given = inputs(**shape)
    found, true = (computed(way, *given, scale=scale) for way in ("flex", "dot_product"))
    assert found.shape == true.shape
    torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-5)


def test_it_is_traced_into_a_block_that_is_compiled():
    given = inputs(heads=8, kv_heads=2)
    inner = DotProduct.Config().build()
    inner.attend = WAYS["flex"]
    with torch.no_grad():
        found = torch.compile(inner, backend="eager", fullgraph=True)(*given)
    torch.testing.assert_close(found, computed("dot_product", *given), rtol=1e-5, atol=1e-5)


def ops_of(way, *args):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        computed(way, *args)
    return [event.name for event in profile.events() if event.name.startswith("aten::")]


def test_on_a_cpu_auto_changes_no_op():
    given = inputs()
    assert ops_of("auto", *given) == ops_of("dot_product", *given)
    assert ops_of("auto", *given) != ops_of("flex", *given)


def test_without_a_mask_there_is_nothing_to_skip():
    q, k, v, _ = inputs()
    assert torch.equal(computed("flex", q, k, v), computed("dot_product", q, k, v))


class TestARun:
    def ways(self, word):
        config = replace(small(), compute=ComputeConfig(attention=word))
        modules: list[nn.Module] = list(alone_on_cpu(config).model.modules())
        return {module.attend for module in modules if isinstance(module, DotProduct)}

    def test_what_is_asked_for_is_what_its_attention_does(self):
        assert self.ways("auto") == {WAYS["auto"]}
        assert self.ways("dot_product") == {dot_product}
        assert self.ways("flex") == {flex_where_masked}

    def test_flex_on_a_cpu_is_refused_before_it_starts(self):
        config = replace(small(), compute=ComputeConfig(attention="flex"), launch=LaunchConfig(device="cpu"))
        with pytest.raises(ConfigError, match=r"compute\.attention: 'flex' on a cpu"):
            preflight(config, 1)
        preflight(replace(config, launch=LaunchConfig()), 1)

    @pytest.mark.parametrize(("word", "device", "is_refused"), [("flex", "cpu", True), ("auto", "cpu", False)])
    def test_so_it_is_where_a_cpu_is_chosen(self, word, device, is_refused):
        wanted = ComputeConfig(attention=word)
        if is_refused:
            with pytest.raises(ConfigError, match="has no backward there"):
                compute.demand_device(wanted, device)
        else:
            compute.demand_device(wanted, device)
        compute.demand_device(wanted, "cuda")

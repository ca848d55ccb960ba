"""First values depend on the state's name and each element's global index, never on how the tensor is cut."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.core import init
from meshwright.core.init import Computed, Constant, TruncatedNormal, key_of, uniform

NORMAL = TruncatedNormal(0.02)
MANY = torch.arange(1 << 18)


def whole(kind, shape, key=3, dtype=torch.float32):
    local = torch.empty(shape, dtype=dtype)
    kind.fill(local, [range(length) for length in shape], shape, key)
    return local


@st.composite
def parts(draw):
    """A shape, and a span of each dim: empty ones too."""
    shape = draw(st.lists(st.integers(1, 5), max_size=4))
    spans = []
    for length in shape:
        start = draw(st.integers(0, length))
        spans.append(range(start, draw(st.integers(start, length))))
    return shape, spans


@given(parts(), st.sampled_from([NORMAL, Constant(2.0), Computed(lambda index: index * 2.0)]))
def test_any_part_has_the_values_of_the_whole(part, kind):
    shape, spans = part
    local = torch.empty([len(span) for span in spans])
    kind.fill(local, spans, shape, key=3)
    assert torch.equal(local, whole(kind, shape)[tuple(slice(span.start, span.stop) for span in spans)])


@given(parts())
def test_so_has_one_that_does_not_lie_end_to_end(part):
    shape, spans = part
    lengths = [len(span) for span in spans]
    local = torch.empty(lengths[::-1]).permute(tuple(reversed(range(len(lengths)))))
    NORMAL.fill(local, spans, shape, key=3)
    assert torch.equal(local, whole(NORMAL, shape)[tuple(slice(span.start, span.stop) for span in spans)])


def test_parts_are_computed_block_by_block(monkeypatch):
    expected = whole(NORMAL, (7, 11))
    monkeypatch.setattr(init, "_BLOCK", 5)
    assert torch.equal(whole(NORMAL, (7, 11)), expected)


def test_a_parameter_is_filled_in_place_and_keeps_no_history():
    param = torch.nn.Parameter(torch.empty(4, 4))
    NORMAL.fill(param, [range(4)] * 2, (4, 4), key=3)
    assert torch.equal(param.detach(), whole(NORMAL, (4, 4)))
    assert param.grad_fn is None


def test_a_shorter_dtype_is_the_rounded_value():
    assert torch.equal(whole(NORMAL, (64,), dtype=torch.bfloat16), whole(NORMAL, (64,)).bfloat16())


def test_a_scalar_has_one_value():
    assert whole(Computed(lambda index: index + 7.0), ()).item() == 7.0


@pytest.mark.parametrize(
    "other", [key_of(0, "b"), key_of(1, "a"), key_of(10, "a"), key_of(0, "0/a")], ids=["name", "seed", "10", "0/a"]
)
def test_another_name_or_seed_is_another_key(other):
    assert key_of(0, "a") == key_of(0, "a")
    assert key_of(0, "a") != other
    assert -(2**63) <= other < 2**63


class TestUniform:
    """u in (0, 1)."""

    @pytest.mark.parametrize("key", [0, 1, -1, key_of(0, "a"), 2**63 - 1, -(2**63)])
    def test_moments_and_range(self, key):
        u = uniform(key, MANY)
        assert u.dtype == torch.float64
        assert 0 < u.min() < 1e-4
        assert 1 - 1e-4 < u.max() < 1
        spread = 1 / math.sqrt(12 * len(u))
        assert abs(u.mean() - 1 / 2) < 5 * spread
        assert abs(u.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / len(u))

    def test_every_interval_is_hit_as_often(self):
        """Chi-squared over 256 intervals, by the leading bits and by the trailing ones of those kept."""
        u = uniform(key_of(0, "a"), MANY)
        for bits in (u, (u * 2.0**44) % 1):
            counts = torch.histc(bits, 256, 0, 1)
            expected = len(u) / 256
            chi = ((counts - expected) ** 2 / expected).sum()
            assert abs(chi - 255) < 5 * math.sqrt(2 * 255)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ((0, MANY), (1, MANY)),
            ((key_of(0, "a"), MANY), (key_of(0, "b"), MANY)),
            ((key_of(0, "a"), MANY), (key_of(1, "a"), MANY)),
            ((5, MANY), (5, MANY + 1)),
            ((5, MANY), (5, MANY + 4096)),
            ((5, MANY), (5, 2 * MANY + 1)),
        ],
        ids=["keys", "names", "seeds", "neighbours", "rows", "strides"],
    )
    def test_keys_and_indices_do_not_depend_on_each_other(self, one, other):
        a, b = uniform(*one), uniform(*other)
        correlation = torch.corrcoef(torch.stack((a, b)))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(len(a))

    def test_the_ends_are_never_reached(self):
        """The mixing is undone, to find the indices whose bits are all zero and all one."""
        lowest, highest = (uniform(0, torch.tensor([index_of(bits)])).item() for bits in (0, 2**64 - 1))
        assert 0 < lowest < 1e-15
        assert 1 - 1e-15 < highest < 1
        for index in (index_of(0), index_of(2**64 - 1)):
            value = TruncatedNormal(1.0, cut=3.0).values(0, torch.tensor([index]))
            assert abs(value.item()) <= 3.0


def index_of(bits: int) -> int:
    """The index at which the generator of key 0 gives these 64 bits: splitmix64, backwards, in Python's integers."""

    def unshift(z, by):
        for _ in range(64 // by + 1):
            z = bits_of ^ (z >> by)
        return z

    z = bits
    for by, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 0x9E3779B97F4A7C15)):
        bits_of = z
        z = unshift(z, by) * pow(factor, -1, 2**64) % 2**64
    return z - 2**64 if z >= 2**63 else z


def test_undoing_the_mixing_is_right():
    """bits of index 1, computed forwards in Python's integers."""
    z = 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    z ^= z >> 31
    assert index_of(z) == 1
    assert uniform(0, torch.tensor([1])).item() == (z >> 12) * 2.0**-52 + 2.0**-53


class TestTruncatedNormal:
    @pytest.mark.parametrize(("std", "cut"), [(0.02, 3.0), (1.0, 3.0), (2.0, 1.0), (0.5, 2.0), (1.0, 9.0)])
    def test_its_spread_is_that_of_the_cut_normal(self, std, cut):
        x = TruncatedNormal(std, cut).values(key_of(0, "a"), MANY) / std
        density = math.exp(-(cut**2) / 2) / math.sqrt(2 * math.pi)
        variance = 1 - 2 * cut * density / math.erf(cut / math.sqrt(2))
        assert abs(x.mean()) < 5 * math.sqrt(variance / len(x))
        assert abs(x.var() - variance) < 5 * math.sqrt(2 / len(x))
        assert x.isfinite().all()

    @pytest.mark.parametrize("cut", [1.0, 2.0, 3.0])
    def test_nothing_lies_beyond_the_cut_and_something_just_before_it(self, cut):
        x = TruncatedNormal(1.0, cut).values(key_of(0, "a"), MANY)
        assert x.abs().max() <= cut
        assert x.max() > cut - 0.05
        assert x.min() < -cut + 0.05

    def test_within_the_cut_it_is_normal(self):
        """The share below each of a few points."""
        x = TruncatedNormal(1.0, 3.0).values(key_of(0, "a"), MANY)
        for point in (-2.0, -1.0, -0.3, 0.0, 0.7, 2.5):
            share = 0.5 + 0.5 * math.erf(point / math.sqrt(2)) / math.erf(3 / math.sqrt(2))
            assert abs((x < point).double().mean() - share) < 5 * 0.5 / math.sqrt(len(x))

"""Types are values: equal ones are one object, and every type has a dual."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import SpmdTypeError
from meshwright.types.kinds import I, P, R, S, Shard, V, split_sizes
from meshwright.types.layout import SpmdLayout
from tests.sampling import kinds

sizes = st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple)


@given(dim=st.integers(0, 5), sizes=sizes)
def test_equal_shards_are_the_same_object(dim, sizes):
    assert S(dim, sizes) is S(dim, sizes)
    assert S(dim, sizes) is S(dim, None if sizes is None else list(sizes))
    assert S(dim, sizes) is not S(dim + 1, sizes)


def test_shards_that_differ_in_sizes_differ():
    assert S(0) is not S(0, (2, 2))
    assert S(0, (3, 2)) is not S(0, (2, 3))


def test_threads_that_meet_on_a_new_shard_get_the_same_object():
    with ThreadPoolExecutor(8) as pool:
        for length in range(100, 120):
            assert len({id(shard) for shard in pool.map(S, [7] * 8, [(length, 1)] * 8)}) == 1


@given(kind=kinds() | st.builds(S, st.integers(0, 3), sizes))
def test_copies_and_pickles_keep_identity(kind):
    assert copy.copy(kind) is kind
    assert copy.deepcopy(kind) is kind
    assert all(pickle.loads(pickle.dumps(kind, protocol)) is kind for protocol in range(pickle.HIGHEST_PROTOCOL + 1))


@given(kind=kinds())
def test_the_dual_of_the_dual_is_the_type(kind):
    assert kind.dual.dual is kind


def test_replicate_and_partial_swap_and_the_others_stay():
    assert (R.dual, P.dual) == (P, R)
    assert (I.dual, V.dual, S(1).dual, S(0, (3, 2)).dual) == (I, V, S(1), S(0, (3, 2)))


def test_types_print_as_they_are_written():
    assert [repr(kind) for kind in (R, I, V, P, S(1), S(0, (3, 2)))] == ["R", "I", "V", "P", "S(1)", "S(0, (3, 2))"]
    assert eval(repr(S(0, (3, 2))), {"S": S}) is S(0, (3, 2))


def test_the_last_dim_is_that_of_what_it_is_said_of():
    assert S(-1).of(3) is S(2)
    assert S(1).of(3) is S(1)
    with pytest.raises(SpmdTypeError, match="counts from the end"):
        SpmdLayout({"tp": S(-1)})


@pytest.mark.parametrize("dim", ["0", None, 0.0, True])
def test_a_shard_names_a_dim(dim):
    with pytest.raises(SpmdTypeError, match="names no dim"):
        Shard(dim)


def test_a_shard_has_no_negative_size():
    with pytest.raises(SpmdTypeError, match="negative"):
        S(0, (3, -1))


@given(length=st.integers(0, 50), parts=st.integers(1, 9))
def test_an_even_split_covers_the_dim_with_full_pieces_first(length, parts):
    sizes = split_sizes(length, parts)
    assert len(sizes) == parts
    assert sum(sizes) == length
    full = sizes[0]
    nonzero = [size for size in sizes if size]
    assert all(size == full for size in nonzero[:-1])
    assert list(sizes) == nonzero + [0] * (parts - len(nonzero))

"""Names of mesh axes. An axis is a named dimension of the device mesh; a dim is a dimension of a tensor."""

from typing import Final

DP: Final = "dp"
"""data parallel, in compute: the batch is split over it (replicas times shards)"""
CP: Final = "cp"
"""context parallel: the sequence is split over it"""
TP: Final = "tp"
"""tensor parallel: weights, heads, hidden features and the vocabulary are split over it"""
TP_KV: Final = "tp_kv"
"""the outer factor of tp: ranks that hold different key/value heads"""
TP_COPY: Final = "tp_copy"
"""the inner factor of tp: neighbours that share key/value heads, where there are fewer heads than ranks"""
EP: Final = "ep"
"""expert parallel: experts are split over it"""
PP: Final = "pp"
"""pipeline parallel: layers are split over it"""
DP_REPLICATE: Final = "dp_replicate"
"""storage: groups that hold equal copies of every shard"""
DP_SHARD: Final = "dp_shard"
"""storage: parameters, gradients and optimizer state are split over it"""
EFSDP: Final = "efsdp"
"""storage of experts: the data-parallel ranks that share an expert"""

_OUTERMOST_FIRST: Final = (PP, DP_REPLICATE, DP, DP_SHARD, EFSDP, CP, TP, TP_KV, TP_COPY, EP)
_PLACE: Final = {axis: place for place, axis in enumerate(_OUTERMOST_FIRST)}


def usual_order(axis: str) -> tuple[int, str]:
    """The key that sorts axes as they stand in a mesh, and others behind them by name."""
    return _PLACE.get(axis, len(_PLACE)), axis

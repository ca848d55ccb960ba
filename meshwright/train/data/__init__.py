"""Real text -> token batches for a causal language model.

    find_sources -> readers -> tokenizer -> hold_out -> store     `prepare`, once, into the cache
    store -> pack -> BatchStream, OrderedPass                     `Corpus`, in every rank

What a rank sees depends on the corpus, the seed and the step; how many ranks share a global batch changes nothing.
"""

from meshwright.train.data.config import DataConfig
from meshwright.train.data.corpus import Corpus, open_corpus
from meshwright.train.data.packing import Batch
from meshwright.train.data.preparation import prepare
from meshwright.train.data.stream import BatchStream

__all__ = ["Batch", "BatchStream", "Corpus", "DataConfig", "open_corpus", "prepare"]

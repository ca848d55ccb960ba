"""Train large PyTorch models whose every sharding is declared, checked on a laptop and erased for the run."""

__version__ = "0.1.0"

"""The collectives of one training step, per layout and backend: what is really called, and the files that hold it."""

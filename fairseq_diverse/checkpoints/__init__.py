"""Checkpoints: loading, averaging, resuming."""

"""Datasets that fairseq does not have."""

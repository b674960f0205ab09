"""Attention-augmented ResNets with evolving attention, without fairseq; see README.md."""

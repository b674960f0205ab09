"""Data sets that fairseq does not provide."""

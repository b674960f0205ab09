"""fairseq: what the package changes in it, and functions for rooms that do not import it."""

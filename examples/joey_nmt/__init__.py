"""The mechanisms in JoeyNMT 2.3, without fairseq; see README.md."""

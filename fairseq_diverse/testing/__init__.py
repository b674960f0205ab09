"""Properties of every mechanism, as functions for `fairseq-diverse check` and the tests."""

"""The properties that every mechanism has, as functions: for `fairseq-diverse check` and the tests."""

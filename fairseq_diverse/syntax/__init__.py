"""Source-side trees: from parsers' files to small integers beside fairseq's data."""

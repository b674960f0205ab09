"""Experiments: table files, runs that resume, summaries and reports."""

"""Experiments: table files, runs that resume, and their summaries."""

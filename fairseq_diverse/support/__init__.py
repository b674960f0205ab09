"""Errors, files, paths, processes and pictures."""

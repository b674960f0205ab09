"""Hostile input, made by hypothesis: whatever a file holds, one clear line or a right result, and nothing runs."""

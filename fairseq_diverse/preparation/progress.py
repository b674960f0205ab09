"""Interval of progress bars."""

import sys

INTERVAL = 0.2 if sys.stderr.isatty() else 10  # seconds; longer if the output is a file

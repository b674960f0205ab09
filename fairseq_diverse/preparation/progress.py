"""How often a progress bar is drawn."""

import sys

INTERVAL = 0.2 if sys.stderr.isatty() else 10  # seconds; rarely where a file collects them

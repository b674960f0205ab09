"""Speed and memory compared with fairseq's transformer and with naive versions; see README.md."""

import logging

logging.getLogger("fairseq").setLevel(logging.WARNING)  # at import it lists missing extras

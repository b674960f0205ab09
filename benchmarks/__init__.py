"""Speed and memory beside fairseq's own transformer and beside naive versions; see README.md."""

import logging

logging.getLogger("fairseq").setLevel(logging.WARNING)  # it tells at import which extras are absent

"""``python -m fairseq_diverse``: the command ``fairseq-diverse``."""

import sys

from fairseq_diverse.cli import main

sys.exit(main())

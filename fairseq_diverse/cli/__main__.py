import sys

from fairseq_diverse.cli import main

sys.exit(main())

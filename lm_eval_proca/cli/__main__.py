"""`python -m lm_eval_proca.cli` is `lm-eval-proca`: launchers of several processes start modules."""

import sys

from lm_eval_proca.cli import main

sys.exit(main())

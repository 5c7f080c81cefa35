"""`python -m apiserver` is `apiserver`."""

import sys

from apiserver.cli import main

sys.exit(main())

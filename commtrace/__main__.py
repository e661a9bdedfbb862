"""``python -m commtrace``."""

import sys

from commtrace.cli import main

sys.exit(main())

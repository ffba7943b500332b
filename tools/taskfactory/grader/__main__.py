"""`python -m grader`: grade a submission, or measure one's own."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())

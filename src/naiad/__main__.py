"""`python -m naiad` is `naiad`."""

import sys

from naiad.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`naiad version`: print the version."""

from collections.abc import Sequence

import naiad


def run(arguments: Sequence[str]) -> int:
    """Print the version; arguments are ignored."""
    print(naiad.__version__)
    return 0

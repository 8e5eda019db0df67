"""The parser of the verbs with many flags."""

import argparse
import sys
from typing import NoReturn

BAD_OPTION = 2


class Parser(argparse.ArgumentParser):
    """Names the next command in errors."""

    error_status = BAD_OPTION

    def error(self, message: str) -> NoReturn:
        """Print the reason and the next command."""
        print(f"{self.prog}: {message}\n{self.prog} --help shows all flags.", file=sys.stderr)
        raise SystemExit(self.error_status)

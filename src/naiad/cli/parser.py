"""The parser of the verbs."""

import argparse
import re
import sys
from typing import NoReturn

BAD_OPTION = 2


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one sentence, with the next command."""

    error_status = BAD_OPTION

    def error(self, message: str) -> NoReturn:
        """Print the reason and the next command."""
        print(
            f"{self.prog}: {message}{self._suggestion(message)}\n{self.prog} --help shows all flags.", file=sys.stderr
        )
        raise SystemExit(self.error_status)

    def _suggestion(self, message: str) -> str:
        """Return the flag that an unknown one is probably a typo of."""
        from naiad.config.problem import nearest

        found = re.search(r"unrecognized arguments: (-[^ =]+)", message)
        near = nearest(found[1], self._option_string_actions) if found else ""
        return f"; did you mean {near}?" if near else ""

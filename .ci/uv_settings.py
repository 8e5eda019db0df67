"""Print pip's settings as variables for uv, which reads none of pip's; fail when uv has no setting like one of them.

`.ci/venv` evaluates the lines. Run it with the Python whose pip is meant.
"""

import ast
import shlex
import subprocess
import sys

SECTIONS = ("global", "install", ":env:")
"""Of pip's settings; later ones have precedence."""
NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
}
SEPARATORS = {"find-links": ","}
WITHOUT_EFFECT = {
    *("break-system-packages", "cache-dir", "config-file", "default-timeout", "disable-pip-version-check"),
    *(
        "no-cache-dir",
        "no-input",
        "progress-bar",
        "quiet",
        "require-virtualenv",
        "retries",
        "root-user-action",
        "timeout",
    ),
}
"""Settings that do not say what is installed, or from where."""


def main() -> None:
    """Print a line of shell for each setting."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for section in SECTIONS:
        for line in lines:
            key, _, text = line.partition("=")
            name = key.removeprefix(f"{section}.")
            if name in NAMES:
                found[NAMES[name]] = SEPARATORS.get(name, " ").join(ast.literal_eval(text).split())
            elif name != key and name not in WITHOUT_EFFECT:
                sys.exit(f"uv has no setting for pip's {line}")
    for variable, value in found.items():
        print(f"export {variable}={shlex.quote(value)}")


if __name__ == "__main__":
    main()

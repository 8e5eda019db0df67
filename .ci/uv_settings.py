"""Print pip's settings as variables for uv, which reads none of pip's; fail when uv has no setting like one of them.

`.ci/venv` evaluates the lines. Run it with the Python whose pip is meant.
"""

import shlex
import subprocess
import sys

NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
}
SEPARATORS = {"find-links": ","}
WITHOUT_EFFECT = {
    *("break-system-packages", "cache-dir", "default-timeout", "disable-pip-version-check", "no-cache-dir"),
    *("no-input", "progress-bar", "quiet", "require-virtualenv", "retries", "root-user-action", "timeout"),
}
"""Settings that do not say what is installed, or from where."""


def main() -> None:
    """Print a line of shell for each setting."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for line in listed.splitlines():
        key, _, quoted = line.partition("=")
        name = key.rsplit(".", 1)[1]
        (value,) = shlex.split(quoted)
        if name in NAMES:
            found[NAMES[name]] = SEPARATORS.get(name, " ").join(value.split())
        elif name not in WITHOUT_EFFECT:
            sys.exit(f"uv has no setting for pip's {line}")
    for variable, value in found.items():
        print(f"export {variable}={shlex.quote(value)}")


if __name__ == "__main__":
    main()

"""Profiles of Amazon's shared configuration files: `~/.aws/credentials` and `~/.aws/config`."""

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from naiad.core.errors import invalid_argument


@dataclass(frozen=True, slots=True)
class Profile:
    """What the files tell about a profile."""

    name: str
    key_id: str = ""
    """Empty for a profile that gets its credentials in another way."""
    secret: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    region: str = ""


def find_profile(name: str, environ: Mapping[str, str]) -> Profile | None:
    """Return a profile; None when `name` is empty and there is no default one.

    Raises InferError(INVALID_ARG) for a named profile that is not there and for files that cannot be read.
    """
    home = Path(environ.get("HOME") or Path.home()) / ".aws"
    keys = _read(Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"))
    settings = _read(Path(environ.get("AWS_CONFIG_FILE") or home / "config"))
    wanted = name or "default"
    section = "default" if wanted == "default" else f"profile {wanted}"
    values = _section(settings, section) | _section(keys, wanted)
    if not values:
        if not name:
            return None
        raise invalid_argument(
            f"AWS profile '{name}' is not in {home / 'credentials'} or {home / 'config'}; they have "
            f"{', '.join(sorted({*keys.sections(), *settings.sections()})) or 'none'}"
        )
    region = values.get("region", "")
    key_id, secret = values.get("aws_access_key_id", ""), values.get("aws_secret_access_key", "")
    if key_id:
        return Profile(wanted, key_id, secret, values.get("aws_session_token", ""), region)
    others = values.keys() & {"role_arn", "sso_start_url", "sso_session", "credential_process"}
    return Profile(wanted, region=region) if name or others else None


def _read(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return parser
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise invalid_argument(f"{path} cannot be read: {error}") from error
    return parser


def _section(parser: configparser.ConfigParser, name: str) -> dict[str, str]:
    return dict(parser.items(name)) if parser.has_section(name) else {}

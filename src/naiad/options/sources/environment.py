"""Settings from environment variables: clouds start containers without flags."""

from collections.abc import Callable, Mapping, Sequence

from naiad.options.flags import all_flags
from naiad.options.sources.given import Given, OptionError

Parse = Callable[[Sequence[str], str], list[Given]]
"""Splits arguments; the second argument names their source."""

_PREDICTION = ("--allow-vertex-ai=true", "--allow-http=false", "--allow-grpc=false")
_REPOSITORIES = ("AIP_STORAGE_URI", "AZUREML_MODEL_DIR")


def environment_settings(environ: Mapping[str, str], parse: Parse, *, is_alone: bool) -> list[Given]:
    """Return the settings of the environment. `is_alone`: `naiad serve` has no arguments. Raises OptionError."""
    found = _sagemaker_settings(environ, parse) if is_alone else []
    if not found and environ.get("AIP_MODE") == "PREDICTION":
        # Triton: Vertex AI sends requests to its own endpoint only.
        found += parse(_PREDICTION, "AIP_MODE")
    given = {each.flag.name for each in found}
    for flag in all_flags():
        if flag.variable and environ.get(flag.variable) and flag.name not in given:
            found.append(Given(flag, environ[flag.variable], flag.variable))
    if "model-repository" not in given:
        variable = next((name for name in _REPOSITORIES if environ.get(name)), "")
        if variable:
            found += parse([f"--model-repository={environ[variable]}"], variable)
    return found


def _sagemaker_settings(environ: Mapping[str, str], parse: Parse) -> list[Given]:
    from naiad.options.sources.sagemaker import (  # other starts do not need it
        is_started_by_sagemaker,
        sagemaker_arguments,
    )

    found: list[Given] = []
    for source, arguments in sagemaker_arguments(environ) if is_started_by_sagemaker(environ) else ():
        try:
            found += parse(arguments, source)
        except OptionError as error:
            raise OptionError(f"{source}: {error}") from None
    return found

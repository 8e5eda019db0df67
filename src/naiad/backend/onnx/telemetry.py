"""ONNX Runtime's telemetry is off unless the user turned it on.

Released packages for Linux report usage to their maker. A process that makes a session writes an identifier of the
device and a database of events below the home directory (`.cache/Microsoft/DeveloperTools/.onnxruntime`) and a file
in the temporary directory. `onnxruntime.disable_telemetry_events()` leaves these files; the variable, which is read
when the library is loaded, leaves none.
"""

from collections.abc import MutableMapping

VARIABLE = "ORT_DISABLE_TELEMETRY"


def turn_off(environment: MutableMapping[str, str]) -> None:
    """Set the variable for a process, unless the user has set it."""
    environment.setdefault(VARIABLE, "1")

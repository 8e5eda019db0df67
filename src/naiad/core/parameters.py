"""Parameters: the scalar values that requests and responses have besides their tensors."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

ParameterValue: TypeAlias = str | int | float | bool
Parameters: TypeAlias = Mapping[str, ParameterValue]
NO_PARAMETERS: Parameters = MappingProxyType({})

"""Optimization profiles: the ranges of shapes that an engine was built for, and the choice among them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.backend.tensor_layout import shape_text
from naiad.core.errors import InferError, invalid_argument
from naiad.core.tensor import Shape


@dataclass(frozen=True, slots=True)
class ProfileShapes:
    """The shapes of one input in one profile."""

    minimum: Shape
    maximum: Shape

    def contains(self, shape: Shape) -> bool:
        """Whether a shape is in the range; -1 stands for any size."""
        return len(shape) == len(self.minimum) and all(
            size < 0 or low <= size <= high for low, size, high in zip(self.minimum, shape, self.maximum, strict=True)
        )

    def __str__(self) -> str:
        if self.minimum == self.maximum:
            return shape_text(self.minimum)
        return f"{shape_text(self.minimum)} to {shape_text(self.maximum)}"


@dataclass(frozen=True, slots=True)
class OptimizationProfile:
    """One optimization profile."""

    index: int
    ranges: Mapping[str, ProfileShapes]
    """By input."""

    @property
    def volume(self) -> int:
        """Number of elements of its largest inputs."""
        return sum(math.prod(each.maximum) for each in self.ranges.values())

    def misfit(self, shapes: Mapping[str, Shape]) -> str:
        """Return the first input whose shape is outside its range, empty when all fit."""
        for name, shape in shapes.items():
            if name in self.ranges and not self.ranges[name].contains(shape):
                return name
        return ""


def select_profiles(
    profiles: Sequence[OptimizationProfile], wanted: Sequence[str], model: str, group: str
) -> list[OptimizationProfile]:
    """Return the profiles that an instance group names, the smallest first; the first profile when it names none.

    Raises InferError(INVALID_ARG).
    """
    # Triton: the first profile is the default.
    selected: dict[int, OptimizationProfile] = {}
    for text in wanted or ("0",):
        if not (text.isascii() and text.isdecimal() and int(text[:9]) < len(profiles)):
            raise invalid_argument(
                f"model '{model}': instance group '{group}' has profile '{text}', but the engine has "
                f"{len(profiles)}; write numbers from 0 to {len(profiles) - 1}"
            )
        selected[int(text)] = profiles[int(text)]
    return sorted(selected.values(), key=lambda profile: (profile.volume, profile.index))


def choose_profile(
    profiles: Sequence[OptimizationProfile], shapes: Mapping[str, Shape]
) -> OptimizationProfile | None:
    """Return the first profile that all shapes fit; `profiles` are ordered by size."""
    return next((profile for profile in profiles if not profile.misfit(shapes)), None)


def no_profile(
    opening: str,
    shapes: Mapping[str, Shape],
    usable: Sequence[OptimizationProfile],
    profiles: Sequence[OptimizationProfile],
) -> InferError:
    """Return the error for shapes that no usable profile takes, with the ranges and what to change."""
    name = usable[0].misfit(shapes)
    ranges = ", ".join(f"profile {profile.index} takes {profile.ranges[name]}" for profile in usable)
    other = choose_profile(profiles, shapes)
    if other is not None:
        fix = f'add profile: [ "{other.index}" ] to the instance group'
    else:
        fix = "use a shape in these ranges, or build the engine with a profile for it"
    return invalid_argument(
        f"{opening} input '{name}' of shape {shape_text(shapes[name])} fits no optimization profile: {ranges}; {fix}"
    )


def max_rows(profiles: Sequence[OptimizationProfile]) -> int:
    """Return the largest first dimension that all inputs of one of the profiles can have."""
    firsts = [[each.maximum[0] for each in profile.ranges.values() if each.maximum] for profile in profiles]
    return max((min(sizes) for sizes in firsts if sizes), default=0)

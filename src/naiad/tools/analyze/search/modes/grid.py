"""Configurations as coordinates: a dimension for each field of each model, its values in ascending order."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from naiad.tools.analyze.search.configurations import Configuration, number
from naiad.tools.analyze.search.search_settings import SearchSettings
from naiad.tools.analyze.space import Space, Variant

Coordinate: TypeAlias = tuple[int, ...]

_FORMAT = "source_model"


class Grid:
    """The variants of all models by coordinates; variants that were left out of a grid are holes."""

    def __init__(self, space: Space, settings: SearchSettings) -> None:
        self._settings = settings
        self._axes: list[tuple[str, str, list[Any]]] = []
        self._variants: list[dict[Coordinate, Variant]] = []
        for model, variants in space.variants.items():
            varied = [each for each in variants if each.settings or each.source_model] or list(variants)
            fields = list(dict.fromkeys(field for each in varied for field in each.settings))
            if any(each.source_model for each in varied):
                fields.append(_FORMAT)
            axes = [(model, field, self._ordered(varied, field)) for field in fields]
            self._variants.append({self._place(each, axes): each for each in varied})
            self._axes += axes

    @property
    def sizes(self) -> list[int]:
        """The number of values of each dimension."""
        return [len(values) for _, _, values in self._axes]

    @property
    def names(self) -> list[str]:
        """The dimensions, as `MODEL.FIELD`."""
        return [f"{model}.{field}" for model, field, _ in self._axes]

    @property
    def first(self) -> Coordinate:
        """The coordinate of the least values; the first variants where that is a hole."""
        least = (0,) * len(self._axes)
        if self.configuration(least) is not None:
            return least
        return tuple(index for variants in self._variants for index in min(variants))

    def configuration(self, coordinate: Coordinate) -> Configuration | None:
        """Return the configuration at a coordinate; None for a hole."""
        found: list[Variant] = []
        start = 0
        for variants in self._variants:
            width = len(next(iter(variants)))
            variant = variants.get(coordinate[start : start + width])
            if variant is None:
                return None
            found.append(variant)
            start += width
        return tuple(found)

    def _ordered(self, variants: Sequence[Variant], field: str) -> list[Any]:
        values: list[Any] = []
        for each in variants:
            value = self._value(each, field)
            if value not in values:
                values.append(value)
        # Fields such as a delay have None for "off", which is less than any number.
        if all(value is None or _is_number(value) for value in values):
            values.sort(key=lambda value: -1.0 if value is None else float(value))
        return values

    def _value(self, variant: Variant, field: str) -> Any:
        if field == _FORMAT:
            return variant.source_model
        if field in variant.settings:
            return variant.settings[field]
        return number(variant, field, self._settings, 0) or None

    def _place(self, variant: Variant, axes: Sequence[tuple[str, str, list[Any]]]) -> Coordinate:
        return tuple(values.index(self._value(variant, field)) for _, field, values in axes)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True

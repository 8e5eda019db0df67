"""How far configurations are from each other, and configurations that are far from all measured ones."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from naiad.tools.analyze.search.configurations import Configuration
from naiad.tools.analyze.search.search_settings import SearchSettings
from naiad.tools.analyze.space import Space, Variant

Place: TypeAlias = tuple[float | str, ...]
"""For each field the position of its value, from 0 for the first to 1 for the last; for each model its format."""


class Places:
    """The places of the configurations of a space."""

    def __init__(self, space: Space, settings: SearchSettings) -> None:
        self._settings = settings
        self._fields: dict[str, dict[str, list[Any]]] = {}
        for model, variants in space.variants.items():
            fields = self._fields.setdefault(model, {})
            for variant in variants:
                for field, value in variant.settings.items():
                    values = fields.setdefault(field, [])
                    if value not in values:
                        values.append(value)

    def of(self, configuration: Configuration) -> Place:
        """Return the place of a configuration."""
        return tuple(position for variant in configuration for position in self._positions(variant))

    def _positions(self, variant: Variant) -> Iterator[float | str]:
        yield variant.source_model
        configured = self._settings.configured.get(variant.model, {})
        for field, values in self._fields[variant.model].items():
            value = variant.settings.get(field, configured.get(field))
            yield values.index(value) / max(1, len(values) - 1) if value in values else 0.0


def distance(place: Place, other: Place) -> float:
    """Return the sum of the distances in each field; formats that differ are 1 apart."""
    return sum(
        abs(mine - theirs) if isinstance(mine, float) and isinstance(theirs, float) else float(mine != theirs)
        for mine, theirs in zip(place, other, strict=True)
    )


def farthest(candidates: Sequence[Place], taken: Sequence[Place], count: int) -> list[int]:
    """Return the indexes of `count` candidates, each the farthest from those taken; of equal ones the last.

    The last candidates have the greatest values, which say more than the least: a large batch shows both costs.
    """
    nearest = [min((distance(each, other) for other in taken), default=float("inf")) for each in candidates]
    found: list[int] = []
    for _ in range(min(count, len(candidates))):
        index = max(range(len(candidates)), key=lambda each: (nearest[each], each))
        if nearest[index] <= 0:
            break
        found.append(index)
        nearest = [
            min(near, distance(each, candidates[index])) for near, each in zip(nearest, candidates, strict=True)
        ]
    return found

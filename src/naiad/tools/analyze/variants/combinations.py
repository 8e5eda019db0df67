"""All variants of a model, with Model Analyzer's names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from naiad.config.forms.json_form import config_to_json, read_json
from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.space import Dimension, Variant
from naiad.tools.analyze.variants.variant_settings import RefusedError, make_variant

MAX_COMBINATIONS = 100_000


@dataclass(frozen=True, slots=True)
class Variants:
    """The variants of a model."""

    default: Variant
    """The configuration of the repository, `MODEL_config_default`."""
    variants: Sequence[Variant]
    """`MODEL_config_0`, `MODEL_config_1`, ..."""
    refused: Sequence[tuple[Mapping[str, Any], str]] = ()
    """Combinations that are left out, and why."""

    @property
    def all(self) -> tuple[Variant, ...]:
        """Return the default and the variants."""
        return (self.default, *self.variants)


def combinations(config: ModelConfig, dimensions: Iterable[Dimension], model: str = "") -> Variants:
    """Return a variant for each combination of the values of the model's dimensions, the first varying slowest.

    The combination that the configuration has already is left out. `model` is the model that is searched, where
    `config` is another format of it. Raises ValueError for more than `MAX_COMBINATIONS`.
    """
    own = [each for each in dimensions if each.model == config.name]
    rows = product(*(each.values for each in own))
    settings = [
        dict(zip([each.field for each in own], row, strict=True)) for row in islice(rows, MAX_COMBINATIONS + 1)
    ]
    if len(settings) > MAX_COMBINATIONS:
        raise ValueError(
            f"model '{config.name}' has more than {MAX_COMBINATIONS} combinations; give fewer values for some of "
            + ", ".join(each.field for each in own)
        )
    unchanged, _ = read_json(config_to_json(config))
    return listed(config, settings if own else [], model, known=[config_to_json(unchanged).decode()])


def listed(
    config: ModelConfig, settings: Iterable[Mapping[str, Any]], model: str = "", *, known: Iterable[str] = ()
) -> Variants:
    """Return a variant for each of the settings; those that give the same configuration are one variant.

    Configurations in `known`, in JSON form, are left out.
    """
    variants: list[Variant] = []
    refused: list[tuple[Mapping[str, Any], str]] = []
    seen = set(known)
    for each in settings:
        try:
            variant = make_variant(config, each, f"{config.name}_config_{len(variants)}", model)
        except RefusedError as error:
            refused.append((each, str(error)))
            continue
        if variant.config_json in seen:
            refused.append((each, "the same configuration as that of the repository or of other settings"))
            continue
        seen.add(variant.config_json)
        variants.append(variant)
    return Variants(make_variant(config, {}, f"{config.name}_config_default", model), variants, refused)

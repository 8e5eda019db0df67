"""From the configuration of a model to the variants of it that a search measures. No I/O."""

from naiad.analyze.variants.combinations import Variants, combinations, listed
from naiad.analyze.variants.dimensions import Machine, default_dimensions
from naiad.analyze.variants.ensembles import fit_ensembles, member_names, members_first
from naiad.analyze.variants.manual import manual_settings
from naiad.analyze.variants.settings import RefusedError, apply, make_variant

__all__ = [
    "Machine",
    "RefusedError",
    "Variants",
    "apply",
    "combinations",
    "default_dimensions",
    "fit_ensembles",
    "listed",
    "make_variant",
    "manual_settings",
    "member_names",
    "members_first",
]

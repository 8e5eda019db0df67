"""From the configuration of a model to the variants of it that a search measures. No I/O."""

from naiad.tools.analyze.variants.combinations import Variants, combinations, listed
from naiad.tools.analyze.variants.dimensions import Machine, default_dimensions
from naiad.tools.analyze.variants.ensembles import fit_ensembles, member_names, members_first
from naiad.tools.analyze.variants.manual import manual_settings
from naiad.tools.analyze.variants.variant_settings import RefusedError, apply, make_variant

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

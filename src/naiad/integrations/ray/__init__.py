"""naiad in Ray: models as functions of Ray Data."""

from naiad.tools.predict.model_mapper import ModelMapper

__all__ = ["ModelMapper"]

"""naiad in Ray: models as functions of Ray Data, and a repository as a deployment of Ray Serve."""

from naiad.integrations.ray.deployment import deployment
from naiad.tools.predict.model_mapper import ModelMapper

__all__ = ["ModelMapper", "deployment"]

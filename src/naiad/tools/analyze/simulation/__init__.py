"""What a configuration would do under a load: fitted costs, and a simulation with the real schedulers."""

from naiad.tools.analyze.simulation.predictor import LearnedPredictor

__all__ = ["LearnedPredictor"]

"""A double of vLLM's public interface: `AsyncLLM`, its arguments, sampling parameters and outputs.

It has the names, the semantics and the errors that vLLM documents, and no model: tokens are the words of a text, and
the answer is the words of the prompt backwards. Some prompts have it fail as vLLM does: `fail`, `die`, `wait`.
"""

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import SamplingParams

__version__ = "0.0.double"
__all__ = ["AsyncEngineArgs", "SamplingParams"]

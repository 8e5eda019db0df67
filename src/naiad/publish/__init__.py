"""Publishing: a model becomes the next version in the repository of a running server, or nothing changes."""

from naiad.publish.publication import Publication, Published, PublishError, publish
from naiad.publish.sample import Sample, SampleError, read_sample
from naiad.publish.source import SourceError

__all__ = [
    "Publication",
    "PublishError",
    "Published",
    "Sample",
    "SampleError",
    "SourceError",
    "publish",
    "read_sample",
]

"""Publishing: a model becomes the next version in the repository of a running server, or nothing changes."""

from naiad.publish.publication import Publication, Published, publish
from naiad.publish.push import push
from naiad.publish.sample import Sample, SampleError, read_sample
from naiad.publish.source import Source, SourceError, read_source
from naiad.publish.trial import PublishError

__all__ = [
    "Publication",
    "PublishError",
    "Published",
    "Sample",
    "SampleError",
    "Source",
    "SourceError",
    "publish",
    "push",
    "read_sample",
    "read_source",
]

"""Publishing: a model becomes the next version in the repository of a running server, or nothing changes."""

from naiad.tools.publish.publication import Publication, Published, publish
from naiad.tools.publish.publication_source import PublicationSource, SourceError, read_source
from naiad.tools.publish.push import push
from naiad.tools.publish.sample import SampleError, TrialSample, read_sample
from naiad.tools.publish.trial import PublishError

__all__ = [
    "Publication",
    "PublicationSource",
    "PublishError",
    "Published",
    "SampleError",
    "SourceError",
    "TrialSample",
    "publish",
    "push",
    "read_sample",
    "read_source",
]

"""The operator that publishes a model: the next version in the server's repository, or no change."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from naiad.integrations.airflow.operators.base import NaiadOperator
from naiad.tools.optimize.package import opened_source
from naiad.tools.publish import Publication, PublishError, SampleError, SourceError, TrialSample, publish, read_sample
from naiad.tools.publish.sample import read_values


class NaiadPublishModelOperator(NaiadOperator):
    """Publishes a model file, a directory of a model or a framework, or a package of `naiad optimize`.

    The files become the next version of the model in `repository`, the directory that the server has as
    `--model-repository`, and the server loads it. If a version is served already, the new one is tried beside it
    first. If the load or the sample fails, the task fails, and repository and server are as before.

    `sample` and `expected` are values by the name of the tensor, with the batch dimension, or the path of a `.json`
    or `.npz` file. Returns model, version and path.
    """

    template_fields: ClassVar[Sequence[str]] = ("conn_id", "source", "repository", "model", "sample", "expected")

    def __init__(  # noqa: PLR0913 - keyword-only, as in a DAG
        self,
        *,
        source: str,
        repository: str,
        model: str = "",
        sample: Mapping[str, Any] | str | None = None,
        expected: Mapping[str, Any] | str | None = None,
        tolerance: float = 1e-4,
        allow_other_tensors: bool = False,
        keep_versions: int = 0,
        timeout_s: float = 600.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.source = source
        self.repository = repository
        self.model = model
        self.sample = sample
        self.expected = expected
        self.tolerance = tolerance
        self.allow_other_tensors = allow_other_tensors
        self.keep_versions = keep_versions
        self.timeout_s = timeout_s

    def execute(self, context: Any) -> dict[str, Any]:
        """Publish the model. Raises AirflowException, AirflowFailException for a source that is no model."""
        try:
            sample = self._sample()
            with opened_source(Path(self.source), Path(self.repository), self.model) as source:
                publication = Publication(
                    source,
                    Path(self.repository),
                    sample,
                    allows_other_tensors=self.allow_other_tensors,
                    keep_versions=self.keep_versions,
                    timeout_s=self.timeout_s,
                )
                done = self.hook.run(lambda client: publish(client, publication, self.log.info))
        except (SourceError, SampleError) as error:
            raise AirflowFailException(f"connection '{self.conn_id}': {error}") from error
        except (PublishError, OSError) as error:
            raise AirflowException(f"connection '{self.conn_id}': {error}") from error
        return {"model": done.model, "version": done.version, "path": str(done.path)}

    def _sample(self) -> TrialSample | None:
        if self.sample is None:
            if self.expected is not None:
                raise SampleError("`expected` has no `sample` to compare with; set both")
            return None
        expected = None if self.expected is None else read_values(self.expected, "outputs")
        return TrialSample(read_sample(self.sample).inputs, expected, self.tolerance)

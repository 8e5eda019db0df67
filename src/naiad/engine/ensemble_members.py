"""The members of an ensemble that is being loaded: their configurations, or why the ensemble cannot have them."""

from naiad.config.model_config_pb2 import ModelConfig, ModelEnsembling
from naiad.core.errors import InferError, invalid_argument
from naiad.core.model import ModelState, model_key
from naiad.engine.served import Router


def find_members(config: ModelConfig, router: Router) -> dict[str, ModelConfig]:
    """Return the configurations of the models of all steps, by name. Raises InferError in Triton's words."""
    members: dict[str, ModelConfig] = {}
    for step in config.ensemble_scheduling.step:
        version = "" if step.model_version < 0 else str(step.model_version)
        try:
            member = router.served(model_key(step.model_namespace, step.model_name), version)
        except InferError as error:
            raise _missing_member(config.name, step, router, error) from None
        members[step.model_name] = member.config
    return members


def _missing_member(ensemble: str, step: ModelEnsembling.Step, router: Router, error: InferError) -> InferError:
    name = step.model_name
    key = model_key(step.model_namespace, name)
    rows = [row for row in router.repository_index() if row.name == key and row.version]
    if not rows:
        return invalid_argument(
            f"ensemble {ensemble} contains models that are not available or ambiguous: {name}; {error.message}"
        )
    opening = f"ensemble '{ensemble}' depends on '{name}'"
    if any(row.state is ModelState.READY for row in rows) and step.model_version >= 0:
        return invalid_argument(
            f"{opening} whose required version {step.model_version} is not loaded. {error.message}"
        )
    reason = next((row.reason for row in rows if row.reason), error.message)
    return invalid_argument(
        f"{opening} which has no loaded version. Model '{name}' loading failed with error: {reason}"
    )

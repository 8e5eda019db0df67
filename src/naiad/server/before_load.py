"""What a server refuses after it has read all configurations and before it loads a model."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from naiad.backend.cores import usable_cores
from naiad.config.backends import PYTHON_RUNTIME, canonical_name
from naiad.config.execution_tensors import execution_config
from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelWarmup
from naiad.config.tensors.padding import read_padding
from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.core.errors import InferError
from naiad.core.request import InferRequest, RequestHeader, ignore_response
from naiad.core.tensor import TensorSpec
from naiad.engine.admission import AdmissionRules
from naiad.engine.loading.budget import LoadBudget
from naiad.options.load_limits import LoadLimitOptions
from naiad.repository.agents.api import AgentContext
from naiad.repository.agents.chain import AgentRegistry
from naiad.repository.agents.checksum import ChecksumAgent
from naiad.repository.model_check import ModelReport
from naiad.server.process.memory import usable_memory_bytes


def check_before_load(reports: Sequence[ModelReport]) -> None:
    """Add what a server with default limits refuses: in models without an error so far, and in their ensembles."""
    limits = LoadLimitOptions().resolved(memory_bytes=usable_memory_bytes(), cores=usable_cores())
    budget, agents = LoadBudget(limits), AgentRegistry()
    for report in reports:
        if report.is_ok:
            _check_agents(report, agents)
            _check_budget(report, budget)
    for report in reports:
        if report.is_ok:
            _check_warm_up(report)
    _check_members({report.name: report for report in reports})


def _check_agents(report: ModelReport, agents: AgentRegistry) -> None:
    """Check that the agents exist; those that only read files of the repository are executed."""
    may_have_other_files = not report.path.is_dir()
    for position, description in enumerate(report.config.model_repository_agents.agents):
        try:
            agent = agents.get(description.name)
            may_have_other_files = may_have_other_files or not isinstance(agent, ChecksumAgent)
            if not may_have_other_files:
                agent.load(AgentContext(report.name, report.path, dict(description.parameters), _no_directory))
        except InferError as error:
            report.add(error.message, f"model_repository_agents.agents[{position}]")


def _no_directory() -> NoReturn:
    raise TypeError("the agent for checksums brings no other files")


def _check_budget(report: ModelReport, budget: LoadBudget) -> None:
    config = report.config
    has_processes = canonical_name(config.backend) == "python" or config.runtime == PYTHON_RUNTIME
    excess = budget.excess(config, version_count=max(1, len(report.versions)), has_processes=has_processes)
    if excess is not None:
        report.add(excess.message, report.path)


def _check_warm_up(report: ModelReport) -> None:
    """Check the samples as requests, where the configuration says what the inputs are."""
    config = report.config
    if not config.input or not all(each.dims and each.data_type != DataType.TYPE_INVALID for each in config.input):
        return
    for position, sample in enumerate(config.model_warmup):
        if not sample.batch_size:
            continue  # it is not executed
        try:
            _admit(config, sample)
        except InferError as error:
            report.add(f"warmup sample '{sample.name}': {error.message}", f"model_warmup[{position}]")


def _admit(config: ModelConfig, sample: ModelWarmup) -> None:
    rules = AdmissionRules(config if read_padding(config) is not None else execution_config(config))
    rows = (1,) if config.max_batch_size > 0 else ()
    specs = [
        TensorSpec(name, BY_CONFIG_NUMBER[entry.data_type], (*rows, *entry.dims))
        for name, entry in sorted(sample.inputs.items())
    ]
    rules.admit(InferRequest(RequestHeader(model_name=config.name, inputs=specs), [], ignore_response))


def _check_members(reports: Mapping[str, ModelReport]) -> None:
    """Check that the models of ensembles can be loaded, in the versions that are asked for; members come first."""
    left = [report for report in reports.values() if report.is_ok and report.config.HasField("ensemble_scheduling")]
    while True:
        broken = [report for report in left if _has_bad_member(report, reports)]
        if not broken:
            return
        left = [report for report in left if report not in broken]


def _has_bad_member(report: ModelReport, reports: Mapping[str, ModelReport]) -> bool:
    """Return whether an ensemble cannot be loaded because of its members; its report then says why."""
    for position, step in enumerate(report.config.ensemble_scheduling.step):
        member, path = reports.get(step.model_name), f"ensemble_scheduling.step[{position}]"
        if member is None:
            continue  # reported with the repository
        opening = f"ensemble '{report.name}' depends on '{member.name}'"
        if not member.is_ok:
            expected = f"a model without an error; the errors of '{member.name}' are in this list"
            report.add(f"{opening}, which cannot be loaded", f"{path}.model_name", expected=expected)
        elif step.model_version > 0 and step.model_version not in member.versions:
            served = ", ".join(map(str, member.versions)) or "none"
            report.add(
                f"{opening} whose required version {step.model_version} is not loaded",
                f"{path}.model_version",
                text=str(step.model_version),
                expected=f"-1, or a version that is served: {served}",
            )
    return not report.is_ok

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.config.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.core.errors import InferError, internal
from naiad.core.request import InferRequest
from naiad.engine.instances.instance_resources import Resources
from naiad.engine.instances.instances import instance_specs
from naiad.engine.loading.loader import ModelLoader
from naiad.engine.serving.served import ServedProxy
from naiad.options.execution_limits import ResourceAmount
from naiad.repository.model_plan import ModelPlan
from naiad.repository.stores.store import LocalStore, ModelEntry
from support.engine_parts import ScriptedInstance, StepLoop

TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


class RecordingModel(Model):
    def __init__(self, failing: Collection[int] = ()) -> None:
        self.failing = failing
        self.instances: dict[int, ScriptedInstance] = {}
        self.closed = False

    def create_instance(self, spec: InstanceSpec) -> Instance:
        if spec.index in self.failing:
            raise internal(f"instance {spec.name} has no luck")
        instance = self.instances[spec.index] = ScriptedInstance()
        return instance

    def close(self) -> None:
        self.closed = True


class RecordingBackend(Backend):
    name = "recording"

    def __init__(self) -> None:
        self.model = RecordingModel()
        self.contexts: list[ModelContext] = []

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        completed = ModelConfig()
        completed.CopyFrom(context.config)
        completed.max_batch_size = completed.max_batch_size or 4
        return completed

    def default_instance_count(self, context: ModelContext) -> int:
        return 2

    def load(self, context: ModelContext) -> Model:
        self.contexts.append(context)
        return self.model


class OneBackend:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def names(self) -> list[str]:
        return [self._backend.name]

    def runtime_of(self, name: str) -> str:
        return ""

    def get_for(self, config: ModelConfig, model: str, settings: Mapping[str, str]) -> Backend:
        assert (config.backend, config.runtime) == (self._backend.name, "")
        return self._backend


@pytest.fixture
def backend() -> RecordingBackend:
    return RecordingBackend()


def make_loader(backend: Backend, **options: object) -> ModelLoader:
    return ModelLoader(loop=StepLoop(), backends=OneBackend(backend), usable_cores=2, **options)  # type: ignore[arg-type]


def make_entry(root: Path, config: str, versions: tuple[int, ...] = (1,)) -> ModelEntry:
    for version in versions:
        (root / "m" / str(version)).mkdir(parents=True)
    (root / "m" / "config.pbtxt").write_text('backend: "recording"\n' + config)
    return LocalStore(root).open_model("m")


def test_plan_selects_the_newest_version_by_default(tmp_path: Path, backend: RecordingBackend) -> None:
    plan = make_loader(backend).plan(make_entry(tmp_path, TENSORS, (1, 3, 2)))
    assert plan.versions == [3]
    assert plan.config.name == "m"


def test_plan_rejects_empty_selection_with_the_choices(tmp_path: Path, backend: RecordingBackend) -> None:
    entry = make_entry(tmp_path, TENSORS + "version_policy { specific { versions: [ 9 ] } }", (1, 2))
    with pytest.raises(InferError) as caught:
        make_loader(backend).plan(entry)
    assert "at least one version must be available under the version policy of model 'm'" in caught.value.message
    assert "1, 2" in caught.value.message


@pytest.mark.parametrize("auto_complete", [True, False])
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
        ("max_batch_size: 4 dynamic_batching { preferred_batch_size: 0 }", "dynamic batching preferred size must be"),
        (
            "max_batch_size: 4 dynamic_batching { preferred_batch_size: 5 }",
            "dynamic batching preferred size must be <=",
        ),
        ("dynamic_batching { priority_levels: 3 }", "default priority level must be in range [1, 3] for m"),
        ('platform: "ensemble"', "Ensemble model 'm' must have platform type 'ensemble' and empty backend type"),
        ("ensemble_scheduling { }", "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble"),
        ('name: "n"', "unexpected directory name 'm' for model 'n', directory name must equal model name"),
        ("junk { }", "failed to read text proto from "),
    ],
)
def test_mistakes_are_named_before_missing_versions(
    tmp_path: Path, backend: RecordingBackend, config: str, words: str, auto_complete: bool
) -> None:
    (tmp_path / "m").mkdir()
    entry = make_entry(tmp_path, TENSORS + config, versions=())
    with pytest.raises(InferError) as caught:
        make_loader(backend, auto_complete=auto_complete).plan(entry)
    assert caught.value.message.startswith(words)


@pytest.mark.parametrize(
    "tensors", ['input [ { name: "IN" dims: [ 0 ] } ]', 'output [ { name: "OUT" dims: [ 4 ] } ]']
)
def test_tensors_are_checked_earlier_without_auto_complete(
    tmp_path: Path, backend: RecordingBackend, tensors: str
) -> None:
    entry = make_entry(tmp_path, tensors.replace("name", "data_type: TYPE_INVALID name"))
    with pytest.raises(InferError, match="must specify 'data_type'"):
        make_loader(backend, auto_complete=False).plan(entry)


def test_unsupported_reason_of_a_plan_fails_each_version(tmp_path: Path, backend: RecordingBackend) -> None:
    loader = make_loader(backend)
    plan = loader.plan(make_entry(tmp_path, 'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 0 ] } ]'))
    with pytest.raises(InferError, match=r"^model input 'IN' dimension must be integer >= 1, or -1"):
        loader.load(plan, 1)
    assert not backend.contexts


def test_load_completes_creates_instances_and_serves(tmp_path: Path, backend: RecordingBackend) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "labels.txt").write_text("cat\ndog\n")
    tensors = TENSORS.replace('name: "OUT"', 'name: "OUT" label_filename: "labels.txt"')
    loader = make_loader(backend, backend_config={"": {"a": "1", "b": "1"}, "recording": {"b": "2"}})
    served = loader.load(loader.plan(make_entry(tmp_path, tensors)), 1)
    (context,) = backend.contexts
    assert (context.name, context.version, context.usable_cores) == ("m", 1, 2)
    assert context.version_dir == tmp_path / "m" / "1"
    assert context.backend_config == {"a": "1", "b": "2"}
    assert served.config.max_batch_size == 4
    assert sorted(backend.model.instances) == [0, 1]
    assert served.labels == {"OUT": ["cat", "dog"]}
    assert served.load_duration_ns > 0
    assert served.stop(timeout_s=5.0)
    assert backend.model.closed


def test_without_auto_complete_the_backend_is_not_asked(tmp_path: Path, backend: RecordingBackend) -> None:
    loader = make_loader(backend, auto_complete=False)
    served = loader.load(loader.plan(make_entry(tmp_path, TENSORS)), 1)
    assert served.config.max_batch_size == 0
    assert len(served.config.instance_group) == 1
    assert served.stop(timeout_s=5.0)


def test_failed_instance_closes_other_instances_and_model(tmp_path: Path, backend: RecordingBackend) -> None:
    backend.model.failing = [1]
    loader = make_loader(backend)
    plan = loader.plan(make_entry(tmp_path, TENSORS + "instance_group [ { count: 3 } ]"))
    with pytest.raises(InferError, match="instance m_0_1 has no luck"):
        loader.load(plan, 1)
    assert sorted(backend.model.instances) == [0, 2]
    assert all(instance.closed for instance in backend.model.instances.values())
    assert backend.model.closed


LIMITED = 'instance_group [ { count: 2 rate_limiter { resources [ { name: "R" global: true count: 4 } ] } } ]'


def test_impossible_resource_need_fails_before_loading(tmp_path: Path, backend: RecordingBackend) -> None:
    # R4
    loader = make_loader(backend, resources=Resources([ResourceAmount("R", 3)]))
    plan = loader.plan(make_entry(tmp_path, TENSORS + LIMITED))
    with pytest.raises(InferError, match='"R" is limited to 3'):
        loader.load(plan, 1)
    assert not backend.contexts


def test_failed_load_leaves_no_claim(tmp_path: Path, backend: RecordingBackend) -> None:
    backend.model.failing = [1]
    resources = Resources()
    loader = make_loader(backend, resources=resources)
    with pytest.raises(InferError, match="has no luck"):
        loader.load(loader.plan(make_entry(tmp_path, TENSORS + LIMITED)), 1)
    assert resources.usage() == []


def test_rate_limiter_that_is_off_is_mentioned(
    tmp_path: Path, backend: RecordingBackend, caplog: pytest.LogCaptureFixture
) -> None:
    loader = make_loader(backend)
    served = loader.load(loader.plan(make_entry(tmp_path, TENSORS + LIMITED)), 1)
    assert "--rate-limit=execution_count" in caplog.text
    assert served.stop(timeout_s=5.0)


class Forwarding(ServedProxy):
    def submit(self, request: InferRequest) -> None:
        self.served.submit(request)

    def cancel(self, request: InferRequest) -> bool:
        return self.served.cancel(request)

    def is_waiting(self, request: InferRequest) -> bool:
        return self.served.is_waiting(request)


class TestUpdate:
    @staticmethod
    def plan(root: Path, loader: ModelLoader, groups: str) -> ModelPlan:
        (root / "m" / "config.pbtxt").write_text(f'backend: "recording"\n{TENSORS}\n{groups}')
        return loader.plan(LocalStore(root).open_model("m"))

    def test_instances_that_stay_are_kept(self, tmp_path: Path, backend: RecordingBackend) -> None:
        loader = make_loader(backend)
        (tmp_path / "m" / "1").mkdir(parents=True)
        served = loader.load(self.plan(tmp_path, loader, "instance_group [ { count: 2 } ]"), 1)
        first, second = served.instances
        update = loader.update(self.plan(tmp_path, loader, "instance_group [ { count: 3 } ]"), 1, served)
        assert update is not None
        assert list(served.instances) == [first, second]
        assert update.commit() is None
        assert list(served.instances)[:2] == [first, second]
        assert [group.count for group in served.config.instance_group] == [3]
        assert len(backend.contexts) == 1
        update = loader.update(self.plan(tmp_path, loader, "instance_group [ { count: 1 } ]"), 1, served)
        assert update is not None
        left = update.commit()
        assert left is not None
        assert left.stop(5.0)
        assert (first.closed, second.closed) == (False, True)
        assert served.stop(timeout_s=5.0)

    def test_version_behind_proxies_stays(self, tmp_path: Path, backend: RecordingBackend) -> None:
        # Sequence models of several processes have a proxy: a reload would lose their sequences.
        loader = make_loader(backend)
        (tmp_path / "m" / "1").mkdir(parents=True)
        served = loader.load(self.plan(tmp_path, loader, "instance_group [ { count: 1 } ]"), 1)
        proxy = Forwarding(Forwarding(served))
        update = loader.update(self.plan(tmp_path, loader, "instance_group [ { count: 2 } ]"), 1, proxy)
        assert update is not None
        assert update.commit() is None
        assert len(proxy.instances) == 2
        assert [group.count for group in proxy.config.instance_group] == [2]
        assert served.stop(timeout_s=5.0)

    def test_failed_instance_changes_nothing(self, tmp_path: Path, backend: RecordingBackend) -> None:
        loader = make_loader(backend)
        (tmp_path / "m" / "1").mkdir(parents=True)
        served = loader.load(self.plan(tmp_path, loader, "instance_group [ { count: 1 } ]"), 1)
        backend.model.failing = [2]
        with pytest.raises(InferError, match="no luck"):
            loader.update(self.plan(tmp_path, loader, "instance_group [ { count: 3 } ]"), 1, served)
        assert backend.model.instances[1].closed
        assert not backend.model.instances[0].closed
        assert [group.count for group in served.config.instance_group] == [1]
        assert served.stop(timeout_s=5.0)

    def test_discarded_instances_are_closed(self, tmp_path: Path, backend: RecordingBackend) -> None:
        loader = make_loader(backend)
        (tmp_path / "m" / "1").mkdir(parents=True)
        served = loader.load(self.plan(tmp_path, loader, "instance_group [ { count: 1 } ]"), 1)
        update = loader.update(self.plan(tmp_path, loader, "instance_group [ { count: 2 } ]"), 1, served)
        assert update is not None
        update.discard()
        assert backend.model.instances[1].closed
        assert len(served.instances) == 1
        assert served.stop(timeout_s=5.0)

    def test_another_kind_of_device_needs_a_load(self, tmp_path: Path, backend: RecordingBackend) -> None:
        loader = make_loader(backend)
        (tmp_path / "m" / "1").mkdir(parents=True)
        served = loader.load(self.plan(tmp_path, loader, "instance_group [ { count: 1 } ]"), 1)
        plan = self.plan(tmp_path, loader, "instance_group [ { count: 1 kind: KIND_MODEL } ]")
        assert loader.update(plan, 1, served) is None
        assert served.stop(timeout_s=5.0)

    def test_other_passive_instances_need_a_load(self, tmp_path: Path, backend: RecordingBackend) -> None:
        loader = make_loader(backend)
        (tmp_path / "m" / "1").mkdir(parents=True)
        group = "instance_group [ { count: 1 }, { count: %d passive: true } ]"
        served = loader.load(self.plan(tmp_path, loader, group % 1), 1)
        assert loader.update(self.plan(tmp_path, loader, group % 2), 1, served) is None
        more = group.replace("{ count: 1 }", "{ count: 2 }") % 1
        assert loader.update(self.plan(tmp_path, loader, more), 1, served) is not None
        assert served.stop(timeout_s=5.0)

    def test_instances_that_share_resources_need_a_load(self, tmp_path: Path, backend: RecordingBackend) -> None:
        loader = make_loader(backend, resources=Resources())
        (tmp_path / "m" / "1").mkdir(parents=True)
        served = loader.load(self.plan(tmp_path, loader, LIMITED), 1)
        assert loader.update(self.plan(tmp_path, loader, "instance_group [ { count: 3 } ]"), 1, served) is None
        assert served.stop(timeout_s=5.0)
        served = loader.load(self.plan(tmp_path, loader, "instance_group [ { count: 2 } ]"), 1)
        assert loader.update(self.plan(tmp_path, loader, LIMITED), 1, served) is None
        assert served.stop(timeout_s=5.0)


class GpuBackend(RecordingBackend):
    def gpu_unsupported_reason(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("", ["m_0_gpu0", "m_0_gpu1"]),
        ("instance_group [ { kind: KIND_GPU count: 2 gpus: [ 1 ] } ]", ["m_0_0_gpu1", "m_0_1_gpu1"]),
        ("instance_group [ { kind: KIND_CPU count: 1 } ]", ["m_0_0"]),
    ],
)
def test_instances_are_on_gpus_where_there_are_some(tmp_path: Path, group: str, names: list[str]) -> None:
    loader = make_loader(GpuBackend(), gpu_count=2)
    served = loader.load(loader.plan(make_entry(tmp_path, TENSORS + group)), 1)
    assert [spec.name for spec in instance_specs(served.config)] == names
    assert served.stop(timeout_s=5.0)


def test_backend_without_gpu_support_rejects_gpus(tmp_path: Path, backend: RecordingBackend) -> None:
    loader = make_loader(backend, gpu_count=2)
    served = loader.load(loader.plan(make_entry(tmp_path, TENSORS)), 1)
    assert [spec.kind for spec in instance_specs(served.config)] == ["KIND_CPU"] * 2
    assert served.stop(timeout_s=5.0)
    (tmp_path / "m" / "config.pbtxt").write_text(
        'backend: "recording"\n' + TENSORS + "instance_group [ { kind: KIND_GPU } ]"
    )
    plan = loader.plan(LocalStore(tmp_path).open_model("m"))
    said = (
        "instance group m_0 of model 'm' has kind KIND_GPU, but backend 'recording' does not use GPUs (GPUs "
        "found: 2); or use KIND_CPU or KIND_AUTO"
    )
    with pytest.raises(InferError, match=re.escape(said)):
        loader.load(plan, 1)


def test_group_with_gpus_needs_a_gpu(tmp_path: Path) -> None:
    loader = make_loader(GpuBackend())
    plan = loader.plan(make_entry(tmp_path, TENSORS + "instance_group [ { kind: KIND_GPU } ]"))
    with pytest.raises(InferError, match="has kind KIND_GPU but no GPUs are available"):
        loader.load(plan, 1)


def test_instances_are_named_by_group_and_number() -> None:
    config = ModelConfig(name="m")
    config.instance_group.add(name="first", count=2, kind=ModelInstanceGroup.KIND_CPU)
    config.instance_group.add(name="m_1", count=1, kind=ModelInstanceGroup.KIND_MODEL)
    assert [(spec.name, spec.index, spec.kind) for spec in instance_specs(config)] == [
        ("first_0", 0, "KIND_CPU"),
        ("first_1", 1, "KIND_CPU"),
        ("m_1_0", 2, "KIND_MODEL"),
    ]


def test_passive_instances_exist_but_execute_nothing(tmp_path: Path, backend: RecordingBackend) -> None:
    groups = "instance_group [ { name: 'p' count: 2 passive: true }, { name: 'a' count: 1 } ]"
    loader = make_loader(backend)
    served = loader.load(loader.plan(make_entry(tmp_path, TENSORS + groups)), 1)
    made = backend.model.instances
    assert sorted(made) == [0, 1, 2]
    assert list(served.instances) == [made[0]]
    assert not any(instance.closed for instance in made.values())
    assert served.stop(timeout_s=5.0)
    assert all(instance.closed for instance in made.values())
    assert backend.model.closed


def test_failed_passive_instance_leaves_nothing(tmp_path: Path, backend: RecordingBackend) -> None:
    groups = "instance_group [ { count: 2 passive: true }, { count: 1 } ]"
    backend.model.failing = [2]
    loader = make_loader(backend)
    with pytest.raises(InferError, match="has no luck"):
        loader.load(loader.plan(make_entry(tmp_path, TENSORS + groups)), 1)
    assert [instance.closed for instance in backend.model.instances.values()] == [True]
    assert backend.model.closed


def test_one_group_must_execute(tmp_path: Path, backend: RecordingBackend) -> None:
    entry = make_entry(tmp_path, TENSORS + "instance_group [ { count: 1 passive: true } ]")
    with pytest.raises(InferError, match="all instances are passive, so none executes requests"):
        make_loader(backend).plan(entry)


def test_names_and_numbers_of_passive_instances() -> None:
    config = ModelConfig(name="m")
    config.instance_group.add(name="p", count=1, kind=ModelInstanceGroup.KIND_CPU, passive=True)
    config.instance_group.add(name="a", count=2, kind=ModelInstanceGroup.KIND_CPU)
    assert [(spec.name, spec.index) for spec in instance_specs(config)] == [("a_0", 0), ("a_1", 1)]
    assert [(spec.name, spec.index) for spec in instance_specs(config, passive=True)] == [("p_0", 2)]


POLICIES = """
instance_group [ { name: 'a' count: 1 kind: KIND_CPU }, { name: 'b' count: 1 kind: KIND_CPU host_policy: 'one' },
                 { name: 'c' count: 1 kind: KIND_MODEL }, { name: 'd' count: 1 host_policy: 'two' },
                 { name: 'p' count: 1 kind: KIND_CPU host_policy: 'one' passive: true } ]
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound here")
def test_instances_start_on_cores_of_host_policies(
    tmp_path: Path, backend: RecordingBackend, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = os.sched_getaffinity(0)
    one = frozenset({min(allowed)})
    made_on: dict[str, set[int]] = {}

    class WatchingModel(RecordingModel):
        def create_instance(self, spec: InstanceSpec) -> Instance:
            made_on[spec.name] = os.sched_getaffinity(0)
            return super().create_instance(spec)

    backend.model = WatchingModel()
    loader = make_loader(backend, host_policies={"one": one, "cpu": frozenset(allowed)})
    served = loader.load(loader.plan(make_entry(tmp_path, TENSORS + POLICIES)), 1)
    assert backend.contexts[0].host_policies == {"one": one, "cpu": allowed}
    assert made_on == {"a_0": allowed, "b_0": one, "c_0": allowed, "d_0": allowed, "p_0": one}
    cores = [backend.model.instances[index].cores for index in range(5)]
    assert cores == [allowed, one, set(), set(), one]
    assert "has 'host_policy: \"two\"', but the server has no policy of that name" in caplog.text
    assert "--host-policy=two,cpu-cores=..." in caplog.text
    assert 'host_policy: "one"' not in caplog.text
    assert served.stop(timeout_s=5.0)

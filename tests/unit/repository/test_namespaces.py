"""Resolution of names that several repositories have."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from naiad.core.model import UNLOADED, IndexEntry, ModelKey, ModelState, model_key, name_of
from naiad.engine.lookup.missing import rows_named
from naiad.engine.lookup.model_table import with_unique_names
from naiad.repository.catalog import Catalog
from naiad.repository.lifecycle import Lifecycle, ReadyRule
from naiad.repository.model_plan import ModelPlan, by_dependency, member_names
from naiad.repository.stores.namespaces import Namespaces
from naiad.repository.stores.store import LocalStore, ModelEntry


class Version:
    def stop(self, timeout_s: float) -> bool:
        return True


class Loader:
    """A directory `uses-x` makes the model an ensemble of x."""

    def plan(self, entry: ModelEntry) -> ModelPlan:
        config = ModelConfig(name=entry.name)
        for child in entry.model_dir.iterdir():
            if child.name.startswith("uses-"):
                config.ensemble_scheduling.step.add(
                    model_name=child.name.removeprefix("uses-"), model_namespace="elsewhere"
                )
        return ModelPlan(entry, config, [1])

    def load(self, plan: ModelPlan, version: int) -> Version:
        return Version()

    def config_of(self, loaded: Version) -> ModelConfig:
        return ModelConfig()

    def update(self, plan: ModelPlan, version: int, loaded: Version) -> None:
        return None


def make_stores(root: Path, **models: list[str]) -> list[LocalStore]:
    """Make a repository for each key; a model is a name, or `name<member` for an ensemble."""
    for store, names in models.items():
        for text in names:
            name, _, member = text.partition("<")
            (root / store / name / "1").mkdir(parents=True)
            if member:
                (root / store / name / f"uses-{member}").mkdir()
    return [LocalStore(root / store) for store in models]


def linked(root: Path, namespaces: Namespaces, ensemble: ModelKey, member: str) -> str:
    config = ModelConfig()
    config.ensemble_scheduling.step.add(model_name=member)
    namespaces.link(ensemble, config)
    return Path(config.ensemble_scheduling.step[0].model_namespace).relative_to(root).as_posix()


def test_key_equals_text_and_has_parts() -> None:
    key = ModelKey("/srv/a", "m")
    assert (key, key.namespace, key.name, name_of(key)) == ("/srv/a::m", "/srv/a", "m", "m")
    assert {key: 1}["/srv/a::m"] == 1
    assert model_key("", "m") == "m"
    assert not isinstance(model_key("", "m"), ModelKey)
    assert name_of("/srv/a::m") == "/srv/a::m"  # without namespaces a directory may be called so


def test_member_resolves_in_own_namespace_first(tmp_path: Path) -> None:
    namespaces = Namespaces(make_stores(tmp_path, a=["m", "only"], b=["m"], c=[]))
    assert linked(tmp_path, namespaces, ModelKey(str(tmp_path / "b"), "e"), "m") == "b"
    assert linked(tmp_path, namespaces, ModelKey(str(tmp_path / "b"), "e"), "only") == "a"
    with pytest.raises(InferError, match=r"ensemble .*/c::e contains models that are not available or ambiguous: m$"):
        linked(tmp_path, namespaces, ModelKey(str(tmp_path / "c"), "e"), "m")


def test_what_counts_as_there_can_be_said(tmp_path: Path) -> None:
    namespaces = Namespaces(make_stores(tmp_path, a=["m"], b=["m"]))
    home = ModelKey(str(tmp_path / "a"), "e")
    namespaces.look_at(lambda key: key == f"{tmp_path / 'b'}::m")
    assert namespaces.links(home, ["m"]) == {f"{tmp_path / 'b'}::m"}
    namespaces.look_at(lambda key: True)
    assert namespaces.links(home, ["m"]) == {f"{tmp_path / 'a'}::m"}


def test_name_resolves_to_all_models_of_name(tmp_path: Path) -> None:
    namespaces = Namespaces(make_stores(tmp_path, a=["m"], b=["m", "n"]))
    first, second = (str(tmp_path / each) for each in "ab")
    assert namespaces.holders("m") == [f"{first}::m", f"{second}::m"]
    assert namespaces.holders("n") == [f"{second}::n"]
    assert namespaces.holders("missing") == [f"{first}::missing"]
    assert namespaces.holders(f"{second}::m") == [f"{second}::m"]
    assert isinstance(namespaces.holders(f"{second}::m")[0], ModelKey)


def test_one_repository_given_twice_is_refused(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, a=["m"])
    with pytest.raises(InferError, match="is given twice"):
        Namespaces([*stores, *stores])


def test_the_catalog_loads_models_of_equal_names(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, a=["m", "e<m"], b=["m", "e<m"])
    published: dict[str, Mapping[int, Version]] = {}
    catalog = Catalog(
        stores,
        Loader(),
        lambda ready, name: published.update(ready),
        namespaces=Namespaces(stores),
        ready_rule=ReadyRule("m,e"),
    )
    assert catalog.load_all()
    assert sorted(published) == [f"{tmp_path / store}::{model}" for store in "ab" for model in "em"]
    assert catalog.is_ready()
    assert catalog.named("m") == [f"{tmp_path / 'a'}::m", f"{tmp_path / 'b'}::m"] == catalog.known_as("m")
    plan = catalog.plan(catalog.stores.find(ModelKey(str(tmp_path / "b"), "e")))
    assert member_names(plan.config) == {f"{tmp_path / 'b'}::m"}
    member = catalog.plan(catalog.stores.find(ModelKey(str(tmp_path / "b"), "m")))
    assert [[each.entry.key for each in group] for group in by_dependency([plan, member])] == [
        [member.entry.key],
        [plan.entry.key],
    ]


def test_configured_namespaces_are_ignored_without_namespaces(tmp_path: Path) -> None:
    catalog = Catalog(make_stores(tmp_path, a=["m", "e<m"]), Loader(), lambda ready, name: None)
    assert member_names(catalog.plan(catalog.stores.find("e")).config) == {"m"}
    assert (catalog.named("m"), catalog.known_as("m")) == (["m"], ["m"])


def test_failed_model_is_published_empty_until_unwanted() -> None:
    published: dict[str, Mapping[int, Version]] = {}

    def publish(ready: Mapping[str, Mapping[int, Version]], name: str) -> None:
        published.clear()
        published.update(ready)

    lifecycle: Lifecycle[Version] = Lifecycle(publish)
    first, second = ModelKey("a", "m"), ModelKey("b", "m")
    version = Version()
    lifecycle.begin_load(first, [1])
    lifecycle.swap(first, {1: version})
    lifecycle.fail_model(second, "broken")
    assert published == {first: {1: version}, second: {}}
    lifecycle.forgive(second)
    assert published == {first: {1: version}}


def test_unique_name_reaches_its_model() -> None:
    served = object()
    rows = {ModelKey("a", "m"): {"": served}, ModelKey("a", "n"): {"": served}}
    known = {**rows, ModelKey("b", "n"): {}, ModelKey("b", "o"): {}}
    table = with_unique_names(rows, known)  # type: ignore[arg-type]  # what is served does not matter
    assert set(table) == {"a::m", "a::n", "m"}
    plain = {"m": {"": served}}
    assert with_unique_names(plain, plain) is plain  # type: ignore[arg-type, comparison-overlap]


def row(namespace: str, state: ModelState, reason: str = "") -> IndexEntry:
    return IndexEntry(ModelKey(namespace, "m"), "1", state, reason)


def test_rows_of_name_are_of_wanted_model() -> None:
    ready, gone = row("a", ModelState.READY), row("b", ModelState.UNAVAILABLE, UNLOADED)
    leaving, broken = row("c", ModelState.UNLOADING), row("d", ModelState.UNAVAILABLE, "broken")
    assert rows_named([ready, gone, leaving], "m") == [ready]
    assert rows_named([gone, leaving], "m") == [gone, leaving]
    assert rows_named([ready, gone, broken], "d::m") == [broken]
    assert rows_named([ready], "n") == []
    with pytest.raises(InferError, match="There are 2 identifiers of model 'm' in global map"):
        rows_named([ready, gone, broken], "m")

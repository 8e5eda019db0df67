"""The page: its pipeline is one that Airflow accepts, and it names what the provider has."""

from airflow.dag_processing.dagbag import DagBag

from naiad.integrations.airflow import operators, sensors
from naiad.integrations.airflow.connection import EXTRA
from support.page_blocks import DOCS, section_blocks


def test_pipeline_of_the_page_is_valid(tmp_path):
    (block,) = [each for each in section_blocks("airflow.md", "Example") if each.language == "python"]
    (tmp_path / "pipeline.py").write_text(block.text)
    bag = DagBag(dag_folder=str(tmp_path), bundle_path=tmp_path, bundle_name="page")
    assert not bag.import_errors
    dag = bag.dags["publish_iris"]
    assert dag.task_ids == ["publish", "ready", "measure"]
    assert dag.get_task("ready").upstream_task_ids == {"publish"}


def test_page_names_what_there_is():
    text = (DOCS / "airflow.md").read_text()
    classes = [*operators.__all__, "NaiadModelReadySensor", "NaiadHook"]
    assert hasattr(sensors, "NaiadModelReadySensor")
    assert not [name for name in [*classes, *EXTRA] if f"`{name}" not in text]

"""Packages served by a real server, and exported into repositories, servers and folders."""

import shutil

import numpy as np
import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.tools.optimize import package
from naiad.tools.optimize.package.package_files import opened
from naiad.tools.optimize.package.package_signature import ExportError
from support import packaged_models
from support.packaged_models import VISION, naiad
from support.waiting import wait_until


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    labels = tmp_path_factory.mktemp("labels") / "labels.txt"
    labels.write_text("\n".join(f"class {number}" for number in range(10)))
    return packaged_models.write(tmp_path_factory.mktemp("archive"), labels=labels)


@pytest.fixture(scope="module")
def folder(archive, tmp_path_factory):
    target = tmp_path_factory.mktemp("folder") / "anything"
    with opened(archive) as contents:
        contents.copy(target)
    return target


@pytest.fixture
def repository(archive, tmp_path):
    """A repository with one version of the model."""
    home = tmp_path / "models"
    home.mkdir()
    package.export(archive, home)
    return home


def probabilities(running, version=""):
    """Return the answer of a server to the first sample."""
    image = VISION.samples[0]["IMAGE"]
    tensor = {"name": "IMAGE", "datatype": "FP32", "shape": [1, *image.shape], "data": image.ravel().tolist()}
    suffix = f"/versions/{version}" if version else ""
    answer = running.post(f"/v2/models/colors{suffix}/infer", {"inputs": [tensor]})
    assert answer.status == 200, answer.body
    (output,) = (each for each in answer.json["outputs"] if each["name"] == "PROBABILITIES")
    return np.array(output["data"], np.float32)


def expected():
    return packaged_models.source().infer({"IMAGE": VISION.samples[0]["IMAGE"][None]})["PROBABILITIES"][0]


def config_of(repository):
    parsed = parse_pbtxt((repository / "colors/config.pbtxt").read_text())
    assert not parsed.problems
    return parsed.config


# --- serving --------------------------------------------------------------------------------------------------------


def test_archive_and_folder_are_served(start_server, archive, folder, tmp_path):
    cache = {"NAIAD_CACHE": str(tmp_path / "cache")}
    for path in (archive, folder):
        running = start_server(None, str(path), environment=cache)
        running.wait_ready()
        assert probabilities(running) == pytest.approx(expected(), abs=1e-6)
    (unpacked,) = (tmp_path / "cache/packages").iterdir()
    with opened(archive) as contents:
        assert unpacked.name == contents.manifest.digest


@pytest.mark.parametrize(
    ("file", "reason"), [("1/model.onnx", "1/model.onnx is missing"), ("manifest.json", "manifest.json is missing")]
)
def test_damaged_package_is_not_served(start_server, folder, tmp_path, file, reason):
    shutil.copytree(folder, tmp_path / "changed")
    (tmp_path / "changed" / file).unlink()
    running = start_server(None, str(tmp_path / "changed"))
    assert running.wait_exit() == 1
    assert reason in running.log_text()


# --- repositories ---------------------------------------------------------------------------------------------------


def test_first_export_makes_a_model(repository):
    files = {path.relative_to(repository).as_posix() for path in repository.rglob("*") if path.is_file()}
    assert files == {"colors/config.pbtxt", "colors/labels.txt", "colors/1/model.onnx"}
    config = config_of(repository)
    assert (config.name, config.max_batch_size, list(config.input[0].dims)) == ("colors", 8, [3, 8, 8])


def test_next_export_is_next_version(repository, archive):
    before = (repository / "colors/config.pbtxt").read_text()
    done = package.export(archive, repository)
    assert (done.version, done.places) == (2, [str(repository / "colors/2")])
    assert (repository / "colors/config.pbtxt").read_text() == before
    assert sorted(path.name for path in repository.iterdir()) == ["colors"]


def test_configuration_of_operator_stays(repository, archive):
    file = repository / "colors/config.pbtxt"
    file.write_text(
        file.read_text().replace("max_batch_size: 8", "max_batch_size: 4")
        + 'version_policy { all { } } parameters { key: "own" value { string_value: "1" } }'
    )
    package.export(archive, repository)
    config = config_of(repository)
    assert (config.max_batch_size, config.HasField("version_policy")) == (8, True)
    assert config.parameters["own"].string_value == "1"


def test_other_tensors_are_refused(repository, archive):
    file = repository / "colors/config.pbtxt"
    before = file.read_text().replace("dims: [3, 8, 8]", "dims: [3, 9, 9]")
    file.write_text(before)
    with pytest.raises(ExportError, match=r"input 'IMAGE' is FP32 \[-1, 3, 9, 9\] there and FP32 \[-1, 3, 8, 8\] in"):
        package.export(archive, repository)
    assert [path.name for path in (repository / "colors").iterdir() if path.is_dir()] == ["1"]
    assert file.read_text() == before


def test_model_without_configuration_is_compared(repository, archive):
    (repository / "colors/config.pbtxt").unlink()
    assert package.export(archive, repository).version == 2
    text = packaged_models.models.text()
    (repository / "colors/1/model.onnx").write_bytes(text.proto.SerializeToString())
    shutil.rmtree(repository / "colors/2")
    (repository / "colors/config.pbtxt").unlink()
    with pytest.raises(ExportError, match="input 'IDS' is INT64"):
        package.export(archive, repository)


def test_other_backend_is_refused(repository, archive):
    (repository / "colors/config.pbtxt").write_text('backend: "python"')
    with pytest.raises(ExportError, match="has backend python, the package onnxruntime"):
        package.export(archive, repository)


def test_other_labels_are_refused(repository, archive):
    (repository / "colors/labels.txt").write_text("cat\ndog")
    with pytest.raises(ExportError, match=r"the package has another labels\.txt"):
        package.export(archive, repository)


def test_other_name_is_another_model(repository, archive):
    assert "model 'colors2' has version 1" in naiad("export", archive, repository, "--name", "colors2")
    assert "must not be a path" in naiad("export", archive, repository, "--name", "../colors", status=1)
    assert "name the REPOSITORY" in naiad("export", archive, status=2)


def test_polling_server_sees_whole_versions(start_server, repository, archive):
    running = start_server(repository, "--model-control-mode=poll", "--repository-poll-secs=1")
    running.wait_ready()
    assert package.export(archive, repository).version == 2
    wait_until(lambda: running.get("/v2/models/colors/versions/2/ready").status == 200, timeout_s=20)
    assert probabilities(running, "2") == pytest.approx(expected(), abs=1e-6)
    assert "failed to load" not in running.log_text()


# --- servers --------------------------------------------------------------------------------------------------------


def test_push_loads_the_files(start_server, archive, tmp_path):
    (tmp_path / "empty").mkdir()
    running = start_server(tmp_path / "empty", "--model-control-mode=explicit", "--allow-client-model-files=true")
    running.wait_ready()
    url = running.http_url
    assert "model 'colors' has version 1" in naiad("export", archive, "--push", url)
    assert package.export(archive, push=url).version == 2
    assert probabilities(running) == pytest.approx(expected(), abs=1e-6)


def test_push_with_repository_loads_from_it(start_server, archive, tmp_path):
    (tmp_path / "models").mkdir()
    running = start_server(tmp_path / "models", "--model-control-mode=explicit")
    running.wait_ready()
    done = package.export(archive, tmp_path / "models", push=running.http_url)
    assert len(done.places) == 2
    assert probabilities(running) == pytest.approx(expected(), abs=1e-6)


def test_failed_push_takes_the_version_back(start_server, archive, tmp_path):
    for name in ("models", "elsewhere"):
        (tmp_path / name).mkdir()
    running = start_server(tmp_path / "elsewhere", "--model-control-mode=explicit")
    running.wait_ready()
    text = naiad("export", archive, tmp_path / "models", "--push", running.http_url, status=1)
    assert "failed to poll from model repository" in text
    assert list((tmp_path / "models").iterdir()) == []


def test_server_that_is_not_there_is_an_error(archive):
    assert "http://127.0.0.1:9: " in naiad("export", archive, "--push", "http://127.0.0.1:9", status=1)


# --- files ----------------------------------------------------------------------------------------------------------


def test_format_only_writes_the_model(archive, tmp_path):
    assert naiad("export", archive, tmp_path / "edge", "--format-only").split() == [
        str(tmp_path / "edge/colors.onnx")
    ]
    assert (tmp_path / "edge/colors.onnx").read_bytes() == VISION.proto.SerializeToString()
    assert "exists; remove it" in naiad("export", archive, tmp_path / "edge", "--format-only", status=1)

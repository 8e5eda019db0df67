"""Publishing into the repository of a running server: all of it, or nothing."""

import asyncio
import json
import threading

import numpy as np
import pytest

from naiad.client import Client, InferError
from naiad.repository.stores.store import list_version_dirs
from naiad.tools.optimize.package import opened_source
from naiad.tools.publish import Publication, PublishError, SourceError, TrialSample, publish, read_source
from naiad.tools.publish.lock import publishing
from support import onnx_models, packaged_models
from support.server_process import serving
from support.waiting import wait_until

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
SAMPLE = TrialSample({"INPUT0": ROWS.tolist()}, {"OUTPUT0": (ROWS + 1).tolist()})


@pytest.fixture
def repository(tmp_path):
    home = tmp_path / "models"
    home.mkdir()
    return home


@pytest.fixture
def server(repository, tmp_path):
    with serving(tmp_path / "log", f"--model-repository={repository}", "--model-control-mode=explicit") as running:
        yield running


@pytest.fixture
def source(tmp_path):
    """A file whose model adds 1 to its rows."""
    return write(tmp_path / "plus.onnx", onnx_models.add_default(1.0))


def write(path, content):
    path.write_bytes(content)
    return path


def send(server, source, repository, sample=SAMPLE, **settings):
    """Publish as `plus`; return what was published, and the steps."""
    steps = []

    async def run():
        async with Client(f"http://{server.http_url}", timeout_s=60) as client:
            with opened_source(source, repository, "plus") as opened:
                publication = Publication(opened, repository, sample, timeout_s=60, **settings)
                return await publish(client, publication, steps.append)

    return asyncio.run(run()), steps


def answer(server, version=""):
    """Return the first output of the served model to `ROWS`."""
    suffix = f"/versions/{version}" if version else ""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [2, 4], "data": ROWS.ravel().tolist()}
    found = server.post(f"/v2/models/plus{suffix}/infer", {"inputs": [tensor]})
    assert found.status == 200, found.body
    return found.json["outputs"][0]["data"]


def hidden(repository):
    """Return what a publication has left beside models."""
    return [each.name for each in repository.iterdir() if each.name.startswith(".") or "candidate" in each.name]


def test_first_version_is_published(server, source, repository):
    published, steps = send(server, source, repository)
    assert (published.model, published.version) == ("plus", 1)
    assert published.path == repository / "plus/1"
    assert answer(server) == (ROWS + 1).ravel().tolist()
    assert steps == ["load version 1 of 'plus'", "ask 'plus'", "version 1 of 'plus' is ready"]
    assert hidden(repository) == []


def test_next_version_is_tried_first(server, source, repository, tmp_path):
    send(server, source, repository)
    two = write(tmp_path / "two.onnx", onnx_models.add_default(2.0))
    published, steps = send(server, two, repository, TrialSample({"INPUT0": ROWS}, {"OUTPUT0": ROWS + 2}))
    assert published.version == 2
    assert steps[:2] == ["try 'plus.candidate'", "ask 'plus.candidate'"]
    assert answer(server) == (ROWS + 2).ravel().tolist()
    assert hidden(repository) == []
    assert sorted(list_version_dirs(repository / "plus")) == [1, 2]


def test_wrong_answer_changes_nothing(server, source, repository, tmp_path):
    send(server, source, repository)
    two = write(tmp_path / "two.onnx", onnx_models.add_default(2.0))
    with pytest.raises(PublishError, match=r"output 'OUTPUT0' differs .* by up to 1; .* is served still"):
        send(server, two, repository)
    assert answer(server) == (ROWS + 1).ravel().tolist()
    assert list(list_version_dirs(repository / "plus")) == [1]
    assert hidden(repository) == []


def test_first_version_with_wrong_answer_is_removed(server, source, repository):
    wrong = TrialSample({"INPUT0": ROWS}, {"OUTPUT0": ROWS})
    with pytest.raises(PublishError, match="The repository is as it was; the model was not served before"):
        send(server, source, repository, wrong)
    assert list(repository.iterdir()) == []
    assert server.get("/v2/models/plus/ready").status != 200


@pytest.mark.parametrize("content", [b"", b"no model at all", b"\x08\x08\x12\x00"])
def test_damaged_model_changes_nothing(server, source, repository, tmp_path, content):
    send(server, source, repository)
    with pytest.raises(PublishError, match="model 'plus' was not published"):
        send(server, write(tmp_path / "damaged.onnx", content), repository)
    assert answer(server) == (ROWS + 1).ravel().tolist()
    assert hidden(repository) == []


def test_other_tensors_need_permission(server, source, repository, tmp_path):
    send(server, source, repository)
    other = write(tmp_path / "other.onnx", onnx_models.add_sub(("N", 4)))
    with pytest.raises(PublishError, match="input 'INPUT1' is missing now and FP32"):
        send(server, other, repository, None)
    published, _ = send(server, other, repository, None, allows_other_tensors=True)
    assert published.version == 2


def test_clients_never_see_a_failing_version(server, source, repository, tmp_path):
    send(server, source, repository)
    wrong = write(tmp_path / "two.onnx", onnx_models.add_default(2.0))
    answers, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            answers.append(answer(server))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(3):
            with pytest.raises(PublishError):
                send(server, wrong, repository)
    finally:
        stop.set()
        asking.join()
    assert answers
    assert all(each == (ROWS + 1).ravel().tolist() for each in answers)


def test_model_directory_brings_labels_and_configuration(server, source, repository, tmp_path):
    home = tmp_path / "source"
    (home / "3").mkdir(parents=True)
    (home / "3/model.onnx").write_bytes(source.read_bytes())
    (home / "labels.txt").write_text("a\nb\n")
    (home / "config.pbtxt").write_text('name: "source" backend: "onnxruntime" max_batch_size: 4\n')
    send(server, source, repository)
    published, _ = send(server, home, repository)
    assert published.version == 2
    assert (repository / "plus/labels.txt").exists()
    assert server.get("/v2/models/plus/config").json["max_batch_size"] == 4


def test_failed_directory_restores_configuration(server, source, repository, tmp_path):
    send(server, source, repository)
    (repository / "plus/config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 8\n')
    home = tmp_path / "source"
    (home / "1").mkdir(parents=True)
    (home / "1/model.onnx").write_bytes(source.read_bytes())
    (home / "config.pbtxt").write_text(
        'backend: "onnxruntime" input [ { name: "X" data_type: TYPE_FP32 dims: 1 } ]\n'
    )
    with pytest.raises(PublishError):
        send(server, home, repository)
    assert (repository / "plus/config.pbtxt").read_text() == 'backend: "onnxruntime" max_batch_size: 8\n'
    assert not (repository / "plus/.uploading").exists()


def test_package_is_published(server, repository, tmp_path):
    archive = packaged_models.write(tmp_path)

    async def run():
        async with Client(f"http://{server.http_url}", timeout_s=60) as client:
            with opened_source(archive, repository) as opened:
                return await publish(client, Publication(opened, repository, timeout_s=60))

    published = [asyncio.run(run()).version for _ in range(2)]
    assert published == [1, 2]
    assert server.get("/v2/models/colors/ready").status == 200


def test_old_versions_are_removed(server, source, repository):
    for _ in range(3):
        send(server, source, repository, keep_versions=2)
    assert sorted(list_version_dirs(repository / "plus")) == [2, 3]


def test_leftovers_of_a_killed_publication_go(server, source, repository):
    send(server, source, repository)
    (repository / "plus.candidate/1").mkdir(parents=True)
    (repository / ".plus.publishing").touch()
    assert send(server, source, repository)[0].version == 2
    assert hidden(repository) == []


def test_second_publication_is_refused(server, source, repository):
    with (
        publishing(repository, "plus"),
        pytest.raises(PublishError, match="another process publishes model 'plus'"),
    ):
        send(server, source, repository)


def test_repository_of_another_server_is_noticed(server, source, repository, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(PublishError, match=r"model 'plus' was not published: .*failed to poll from model repository"):
        send(server, source, tmp_path / "elsewhere")
    send(server, source, repository)
    with pytest.raises(PublishError, match="was not published"):
        send(server, source, tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_unselected_version_is_explained(server, source, repository):
    send(server, source, repository)
    (repository / "plus/config.pbtxt").write_text("version_policy { specific { versions: [ 1 ] } }\n")
    with pytest.raises(PublishError, match="the model's version_policy selects it"):
        send(server, source, repository)
    assert answer(server) == (ROWS + 1).ravel().tolist()
    assert list(list_version_dirs(repository / "plus")) == [1]


def test_candidate_is_of_any_version(server, source, repository):
    send(server, source, repository)
    (repository / "plus/config.pbtxt").write_text("version_policy { specific { versions: [ 2, 3 ] } }\n")
    assert send(server, source, repository)[0].version == 2


def test_cancelled_publication_is_taken_back(server, source, repository, tmp_path):
    send(server, source, repository)
    two = read_source(write(tmp_path / "two.onnx", onnx_models.add_default(2.0)), "plus")

    async def run():
        def cancel_at_last_step(step):
            if step == "load version 2 of 'plus'":
                asyncio.get_running_loop().call_later(0.1, running.cancel)

        async with Client(f"http://{server.http_url}", timeout_s=60) as client:
            sample = TrialSample({"INPUT0": ROWS})
            running = asyncio.ensure_future(
                publish(client, Publication(two, repository, sample), cancel_at_last_step)
            )
            await running

    (repository / "plus/config.pbtxt").write_text(
        'model_warmup [ { name: "w" batch_size: 1 count: 20000 inputs { key: "INPUT0" value { data_type: TYPE_FP32 '
        "dims: 4 zero_data: true } } } ] max_batch_size: 8\n"
    )
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    # The server goes on with a load whose client is gone; only then it is certain what is served.
    wait_until(lambda: "LOADING" not in server.post("/v2/repository/index").body.decode(), "the load does not end")
    assert answer(server) == (ROWS + 1).ravel().tolist()
    assert list(list_version_dirs(repository / "plus")) == [1]
    assert hidden(repository) == []


def test_polling_server_follows_the_repository(repository, source, tmp_path):
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-secs=0")
    with serving(tmp_path / "log", f"--model-repository={repository}", *flags) as server:
        assert send(server, source, repository)[0].version == 1
        two = write(tmp_path / "two.onnx", onnx_models.add_default(2.0))
        with pytest.raises(PublishError, match="differs"):
            send(server, two, repository)
        with pytest.raises(PublishError, match="was not published"):
            send(server, write(tmp_path / "bad.onnx", b"no model"), repository)
        assert list(list_version_dirs(repository / "plus")) == [1]


@pytest.mark.parametrize(
    ("name", "text"),
    [("missing.onnx", "does not exist"), ("notes.txt", "cannot be served"), ("empty", "cannot be served")],
)
def test_path_without_model_is_named(server, repository, tmp_path, name, text):
    (tmp_path / "notes.txt").write_text("some words")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=text) as raised:
        send(server, tmp_path / name, repository)
    assert str(tmp_path / name) in str(raised.value)
    assert list(repository.iterdir()) == []


def test_wrong_sample_is_explained(server, source, repository):
    send(server, source, repository)
    with pytest.raises(PublishError, match="the sample has input 'x', which model 'plus' does not have"):
        send(server, source, repository, TrialSample({"x": [1]}))
    with pytest.raises(PublishError, match="input 'INPUT0' of the sample is no FP32 tensor"):
        send(server, source, repository, TrialSample({"INPUT0": [["a"]]}))


def test_server_without_permission_refuses(repository, source, tmp_path):
    flags = ("--model-control-mode=explicit", "--http-restricted-api=model-repository:admin=secret")
    with serving(tmp_path / "log", f"--model-repository={repository}", *flags) as server:
        with pytest.raises(InferError, match="admin"):
            send(server, source, repository)
        assert list(repository.iterdir()) == []
        assert json.loads(server.get("/v2").body)["name"]

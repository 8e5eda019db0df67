"""One PyTorch classifier in a server, in several formats, asked by tritonclient."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.grpc as triton

from support.digits_serving import connected
from support.torch_digits import (
    CONFIG,
    SOURCE,
    save_exported,
    save_module,
    save_torchscript,
    trained_digits,
    write_config,
)

DELAYED = CONFIG.replace("dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 20000 }")
ISOLATED = CONFIG + ' parameters { key: "isolation" value { string_value: "process" } }'
RUNTIME = CONFIG + ' runtime: "model.py" instance_group { count: 2 kind: KIND_CPU }'


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    repository = tmp_path_factory.mktemp("models")
    digits = trained_digits()
    for name, config in {"torchscript": CONFIG, "batched": DELAYED, "isolated": ISOLATED}.items():
        write_config(save_torchscript(digits.module, repository / name / "1" / "model.pt"), config)
    save_exported(digits.module, repository / "exported" / "1" / "model.pt2", digits.images[:2])
    write_config(save_module(SOURCE, digits.module, repository / "module" / "1" / "model.py"), CONFIG)
    write_config(save_module(SOURCE, digits.module, repository / "runtime" / "1" / "model.py"), RUNTIME)
    with connected(repository, tmp_path_factory) as client:
        yield client


def ask(client, model, start, count):
    images = trained_digits().images[start : start + count].numpy()
    tensor = triton.InferInput("image" if model == "exported" else "INPUT__0", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    return client.infer(model, [tensor]).as_numpy("OUTPUT__0")


@pytest.mark.parametrize("model", ["torchscript", "isolated", "exported", "module", "runtime"])
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_probabilities_equal_pytorch(client, model, rows):
    expected = trained_digits().probabilities(20)
    answers = [ask(client, model, start, rows) for start in (0, 8)]
    for start, answer in zip((0, 8), answers, strict=True):
        np.testing.assert_allclose(answer, expected[start : start + rows], atol=1e-6)


def test_served_classifier_knows_digits(client):
    labels = trained_digits().labels[:200].numpy()
    answers = [ask(client, "torchscript", start, 10) for start in range(0, 200, 10)]
    assert (np.concatenate(answers).argmax(1) == labels).mean() > 0.85


def test_exported_program_needs_no_configuration(client):
    config = client.get_model_config("exported", as_json=True)["config"]
    assert config["max_batch_size"] == 4
    assert config["platform"] == "torch_aoti"
    (image,), (output,) = config["input"], config["output"]
    assert (image["name"], image["data_type"], image["dims"]) == ("image", "TYPE_FP32", ["1", "8", "8"])
    assert (output["name"], output["data_type"], output["dims"]) == ("OUTPUT__0", "TYPE_FP32", ["10"])


def test_concurrent_requests_form_batches(client):
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda start: ask(client, "batched", start, 1), range(64)))
    np.testing.assert_allclose(np.concatenate(answers), trained_digits().probabilities(64), atol=1e-6)
    (statistics,) = client.get_inference_statistics("batched").model_stats
    assert statistics.execution_count < statistics.inference_count

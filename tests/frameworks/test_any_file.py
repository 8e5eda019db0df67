"""`naiad serve FILE...`: model files of all formats under names of their own, in one server."""

import joblib
import lightgbm
import numpy as np
import openvino
import pytest
import skops.io
import torch
import torch._dynamo
import tritonclient.http as triton_http
from sklearn.linear_model import LogisticRegression

from naiad.cli.inspect.inspect import inspect
from support.digits_classifier import digits_classifier
from support.forests import DIGITS, train_xgboost
from support.hugging_face_models import label_config, write_bert, write_tokenizer
from support.onnx_digits import onnx_digits
from support.openvino_models import digits_model
from support.server_process import ServerProcess, serving
from support.tensorflow_models import keras_digits, save_digits
from support.tflite_models import digits_tflite
from support.torch_digits import save_exported, save_torchscript, trained_digits

ROWS = digits_classifier().images[:16]
TABLE = DIGITS.data[:16].astype(np.float32)


def write_networks(root):
    """The classifier in the formats of networks; return the paths."""
    (root / "network").write_bytes(onnx_digits())
    (root / "small.tflite").write_bytes(digits_tflite())
    openvino.save_model(digits_model(), root / "intel.xml", compress_to_fp16=False)
    keras_digits().save(root / "layers.keras")
    save_digits(root / "saved.v2")
    return [root / name for name in ("network", "small.tflite", "intel.xml", "layers.keras", "saved.v2")]


def write_forests(root):
    """Forests and estimators of digits; return the paths, and what their libraries answer."""
    booster = train_xgboost(DIGITS, objective="multi:softprob", num_class=10)
    booster.save_model(root / "boosted.json")
    booster.save_model(root / "binary.ubj")
    gradient = lightgbm.train(
        {"objective": "multiclass", "num_class": 10, "num_threads": 1, "verbose": -1},
        lightgbm.Dataset(DIGITS.data, DIGITS.target),
        3,
    )
    gradient.save_model(root / "leaves.txt")
    linear = LogisticRegression(max_iter=200).fit(DIGITS.data, DIGITS.target)
    joblib.dump(linear, root / "linear.joblib")
    skops.io.dump(linear, root / "regression.skops")
    labels = linear.predict(TABLE)
    boosted = booster.inplace_predict(TABLE)
    answers = {
        "boosted.json": boosted,
        "binary.ubj": boosted,
        "leaves.txt": gradient.predict(TABLE, num_threads=1),
        "linear.joblib": labels[:, None],
        "regression.skops": labels[:, None],
    }
    return {root / name: answer for name, answer in answers.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Path and input of every file to the expected answer."""
    root = tmp_path_factory.mktemp("files")
    expected = {path: (ROWS, digits_classifier().probabilities(ROWS)) for path in write_networks(root)}
    expected |= {path: (TABLE, answer) for path, answer in write_forests(root).items()}
    images = trained_digits().images[:16]
    save_exported(trained_digits().module, root / "exported.bin", images)
    expected[root / "exported.bin"] = (images.numpy(), trained_digits().probabilities(16))
    return expected


@pytest.fixture(scope="module")
def server(files, tmp_path_factory):
    root = tmp_path_factory.mktemp("server")
    script = save_torchscript(trained_digits().module, root / "script.pt")
    write_bert(root / "bert", "ForSequenceClassification", **label_config(("bad", "good")))
    write_tokenizer(root / "bert")
    flags = ("--input=script:image:FP32:-1,1,8,8", "--output=script:OUTPUT__0:FP32:-1,10", "--allow-pickle")
    paths = (*files, script, root / "bert")
    with serving(root / "log", *map(str, paths), *flags) as running:
        yield running


def predictions(server, model, body):
    answer = server.post(f"/v2/models/{model}/generate", body)
    assert answer.status == 200, (model, answer.body)
    return answer.json["predictions"]


def test_all_formats_take_569_rows(files, server):
    for path, (rows, expected) in files.items():
        many = np.resize(rows, (569, *rows.shape[1:]))
        found = predictions(server, path.name if path.is_dir() else path.stem, many.tolist())
        first = [next(iter(row.values())) if isinstance(row, dict) else row for row in found]
        wanted = np.resize(expected, (569, *np.shape(expected)[1:])).reshape(569, -1)
        np.testing.assert_allclose(np.reshape(first, (569, -1)), wanted, atol=2e-5, err_msg=path.name)
    rows = trained_digits().images[:16].numpy()
    found = predictions(server, "script", np.resize(rows, (569, *rows.shape[1:])).tolist())
    np.testing.assert_allclose(found[:16], trained_digits().probabilities(16), atol=2e-5)


def test_directory_of_hugging_face_takes_texts(server):
    found = predictions(server, "bert", ["a good film"] * 569)
    assert len(found) == 569
    assert {row["label"] for row in found} <= {"bad", "good"}


def infer(client, model, rows):
    """Send rows to a model with one input, in the datatype of the model; return its first output."""
    (declared,) = client.get_model_metadata(model)["inputs"]
    tensor = triton_http.InferInput(declared["name"], list(rows.shape), declared["datatype"])
    tensor.set_data_from_numpy(rows.astype(np.float64 if declared["datatype"] == "FP64" else np.float32))
    result = client.infer(model, [tensor])
    return result.as_numpy(result.get_response()["outputs"][0]["name"])


def test_files_of_all_formats_give_their_answers(files, server):
    with triton_http.InferenceServerClient(server.http_url.removeprefix("http://")) as client:
        for path, (rows, expected) in files.items():
            name = path.name if path.is_dir() else path.stem
            np.testing.assert_allclose(infer(client, name, rows), expected, atol=2e-5, err_msg=path.name)


def test_files_of_all_formats_are_described(files):
    for path, (rows, expected) in files.items():
        found = inspect(path)
        if path.suffix == ".joblib":
            assert "loading a pickle executes its code" in found.problems[0]
            continue
        assert found.producer or path.name == "network", path
        assert found.operators or path.suffix == ".ubj", path
        assert found.problems == [], path
        assert list(found.inputs[0].shape) == [-1, *rows.shape[1:]], path
        assert list(found.outputs[0].shape) == [-1, *expected.shape[1:]], path
        assert found.batching.startswith("yes"), path


def failed_start(tmp_path, *arguments):
    """Start a server that cannot start; return its log in one line."""
    running = ServerProcess(tmp_path / "log", *map(str, arguments))
    assert running.wait_exit() == 1
    return " ".join(running.log_text().split())


def test_torchscript_file_says_what_to_write(tmp_path):
    path = save_torchscript(trained_digits().module, tmp_path / "net.pth")
    log = failed_start(tmp_path, path)
    assert "is a TorchScript archive, which has no datatypes and shapes" in log
    assert "--input image:FP32:-1,30 --output OUTPUT__0:FP32:-1,2" in log
    assert "'input' (image) and 'output' (OUTPUT__0, ...: 1)" in log
    assert f"{tmp_path}/net/config.pbtxt, with the file as {tmp_path}/net/1/model.pt" in log


def test_state_dict_is_refused_with_the_fix(tmp_path):
    torch.save(trained_digits().module.state_dict(), tmp_path / "weights.bin")
    assert "torch.export.save" in failed_start(tmp_path, tmp_path / "weights.bin")


def test_pickle_needs_permission(tmp_path):
    joblib.dump(LogisticRegression(), tmp_path / "linear.joblib")
    assert "start the server with --allow-pickle" in failed_start(tmp_path, tmp_path / "linear.joblib")


def test_files_of_one_name_are_both_named(tmp_path):
    (tmp_path / "net.onnx").write_bytes(onnx_digits())
    (tmp_path / "net.tflite").write_bytes(digits_tflite())
    log = failed_start(tmp_path, tmp_path / "net.onnx", tmp_path / "net.tflite")
    assert f"{tmp_path}/net.onnx" in log
    assert f"{tmp_path}/net.tflite" in log

"""Saves a model that is in memory, so that subprocesses can read it."""

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_Saver = Callable[[Any, Path], None]
"""Writes a model to a path."""


def save(model: Any, folder: Path, name: str) -> Path | None:
    """Return the file of a model in `folder`; None for a Python callable.

    The frameworks are not imported: the classes of a model name their own. Raises ValueError for an object of another
    kind, and for a module with classes that a subprocess cannot import.
    """
    found = _saver(model)
    if found is None:
        if callable(model):
            return None
        raise ValueError(
            f"model is a {type(model).__module__}.{type(model).__qualname__}; expected a path, or a model of PyTorch "
            "(nn.Module, ScriptModule, ExportedProgram), ONNX, Keras, scikit-learn, XGBoost, LightGBM, or a "
            "function"
        )
    suffix, write = found
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}{suffix}"
    if suffix == ".keras":
        # Keras writes the time into its files: equal content keeps its file, and with it its conversions.
        target = folder / f"{name}-{_keras_digest(model)}{suffix}"
        if target.is_file():
            return target
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as temporary:
        unfinished = Path(temporary, target.name)
        write(model, unfinished)
        shutil.move(unfinished, target)
    return target


def _saver(model: Any) -> tuple[str, _Saver] | None:
    classes = {f"{each.__module__.partition('.')[0]}.{each.__name__}" for each in type(model).__mro__}
    savers: dict[str, tuple[str, _Saver]] = {
        "torch.ScriptModule": (".pt", lambda each, path: each.save(str(path))),
        "torch.Module": (".pt", _save_module),
        "torch.ExportedProgram": (".pt2", lambda each, path: sys.modules["torch"].export.save(each, str(path))),
        "onnx.ModelProto": (".onnx", _save_onnx),
        "keras.Model": (".keras", lambda each, path: each.save(str(path))),
        "xgboost.Booster": (".json", lambda each, path: each.save_model(str(path))),
        "xgboost.XGBModel": (".json", lambda each, path: each.get_booster().save_model(str(path))),
        "lightgbm.Booster": (".txt", lambda each, path: each.save_model(str(path))),
        "lightgbm.LGBMModel": (".txt", lambda each, path: each.booster_.save_model(str(path))),
        "sklearn.BaseEstimator": (".joblib", _save_estimator),
    }
    return next((saver for name, saver in savers.items() if name in classes), None)


def _save_module(module: Any, path: Path) -> None:
    torch = sys.modules["torch"]
    names = sorted({type(each).__qualname__ for each in module.modules() if type(each).__module__ == "__main__"})
    if not names:
        torch.save(module, path)
        return
    try:
        import cloudpickle
    except ImportError:
        raise ValueError(
            f"the classes {', '.join(names)} are of the script itself, where a subprocess does not find them; "
            "move them to a module that is imported, or pip install cloudpickle"
        ) from None
    torch.save(module, path, pickle_module=cloudpickle)


def _save_estimator(estimator: Any, path: Path) -> None:
    sys.modules["joblib"].dump(estimator, path)  # scikit-learn imports it.


def _save_onnx(model: Any, path: Path) -> None:
    try:
        path.write_bytes(model.SerializeToString(deterministic=True))
    except ValueError as error:  # Protobuf has a limit of 2 GiB.
        raise ValueError(
            f"{error}; save the model with onnx.save(save_as_external_data=True) and pass the path"
        ) from None


def _keras_digest(model: Any) -> str:
    sha = hashlib.sha256(model.to_json().encode())
    for weight in model.get_weights():
        sha.update(weight.tobytes())
    return sha.hexdigest()[:16]

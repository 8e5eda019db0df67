"""Libraries that compute forests, behind one interface.

The library that wrote a file reads it best and computes it fastest: XGBoost for XGBoost's files, LightGBM for
LightGBM's. treelite reads all formats; it computes checkpoints, and the files of a library that is not installed.
"""

import abc
import ctypes
import importlib.util
import json
import logging
import threading
import warnings
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from naiad.backend.trees.booster_features import lightgbm_features, xgboost_features
from naiad.backend.trees.forest_file import ForestFile, reason_of
from naiad.backend.trees.lightgbm_text import readable_text
from naiad.backend.trees.tree_nodes import check_treelite, check_xgboost
from naiad.backend.trees.xgboost_attributes import XGBoostAttributes, check_rounds, read_attributes, stored_attributes
from naiad.config.tensors.features import Features
from naiad.core.errors import InferError, internal
from naiad.core.tensor import Array

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Forest:
    """What a file says of its model."""

    feature_count: int
    class_count: int
    """0 for a model that is no classifier: regression, ranking, anomaly scores."""
    objective: str
    """As the library names it, for messages."""
    score_count: int
    """Columns of `TreeEngine.predict`: 1 for a binary classifier with one score, otherwise classes or targets."""
    labels: tuple[object, ...] = ()
    """Labels of the classes that the file has, if they are others than 0, 1, 2, and so on."""
    missing: float | None = None
    """A value besides NaN that means missing, if the file has one."""
    features: Features = field(default_factory=lambda: Features(null_is_nan=True))
    """Names and categories that the file has."""


class TreeEngine(abc.ABC):
    """One loaded model. Its methods may be called from several threads."""

    name: ClassVar[str]
    has_contributions: ClassVar[bool] = True
    forest: Forest

    @abc.abstractmethod
    def predict(self, rows: Array) -> Array:
        """Return the scores [n, score_count] of `rows` [n, feature_count]; NaN is a missing value."""

    def contributions(self, rows: Array) -> Array:
        """Return SHAP values [n, features + 1], with classes [n, classes, features + 1]; the bias is the last one."""
        raise NotImplementedError

    def shape_contributions(self, values: Array) -> Array:
        """Return SHAP values in the shape that `contributions` promises."""
        width = self.forest.feature_count + 1
        is_single = self.forest.score_count == 1
        return values.reshape((len(values), width) if is_single else (len(values), -1, width))


class XGBoostEngine(TreeEngine):
    """XGBoost's `inplace_predict`."""

    name: ClassVar[str] = "xgboost"

    def __init__(self, file: ForestFile, thread_count: int, best_iteration: str = "auto") -> None:
        import xgboost

        self._xgboost = xgboost
        _check_version(file, str(xgboost.__version__))
        try:
            data = bytearray(_xgboost_data(file))
            self._booster: Any = xgboost.Booster({"nthread": thread_count}, model_file=data)
            # The objective is looked up by the first use.
            learner = json.loads(self._booster.save_config())["learner"]
        except xgboost.core.XGBoostError as error:
            raise file.load_error("XGBoost", error) from error
        if learner["gradient_booster"]["name"] == "gblinear":
            raise file.error("is a linear model (booster gblinear), no forest; train it with booster gbtree")
        attributes = read_attributes(file, self._booster.attributes(), best_iteration)
        check_rounds(file, attributes, self._booster.num_boosted_rounds())
        self._rounds = (0, attributes.rounds)
        self._thread_count = thread_count
        self._lock = threading.Lock()
        self._objective: str = learner["objective"]["name"]
        self.forest = _xgboost_forest(learner, self._objective, attributes, xgboost_features(self._booster))
        # `multi:softmax` is trained as softprob, but predicts labels.
        self._is_softmax = self._objective == "multi:softmax"

    def predict(self, rows: Array) -> Array:
        """See `TreeEngine.predict`."""
        scores = self._booster.inplace_predict(
            rows,
            iteration_range=self._rounds,
            predict_type="margin" if self._is_softmax else "value",
            validate_features=False,
        ).reshape(len(rows), -1)
        return _softmax(scores) if self._is_softmax else scores

    def contributions(self, rows: Array) -> Array:
        """See `TreeEngine.contributions`."""
        matrix = self._xgboost.DMatrix(rows, nthread=self._thread_count, feature_types=self._booster.feature_types)
        # XGBoost: `predict` is not safe for threads with booster dart.
        with self._lock:
            values = self._booster.predict(
                matrix, pred_contribs=True, validate_features=False, iteration_range=self._rounds
            )
        return self.shape_contributions(values)


def _xgboost_forest(learner: Any, objective: str, attributes: XGBoostAttributes, features: Features) -> Forest:
    model = learner["learner_model_param"]
    target_count, class_count = int(model["num_target"]), int(model["num_class"])
    score_count = max(class_count, target_count)
    if objective in _BINARY_OBJECTIVES and target_count == 1:
        class_count = 2
    count = int(model["num_feature"])
    return Forest(count, class_count, objective, score_count, attributes.labels, attributes.missing, features)


_BINARY_OBJECTIVES = ("binary:logistic", "binary:hinge")
"""Those with a score from 0 to 1; `binary:logitraw` is a margin."""


def _check_version(file: ForestFile, installed: str) -> None:
    """Refuse a file of a later major version; XGBoost reads what earlier ones have written."""
    version = file.xgboost_version()
    if version is None or version[0] == int(installed.partition(".")[0]):
        return
    text = f"was written by XGBoost {version[0]}.{version[1]}, installed is {installed}"
    if version[0] > int(installed.partition(".")[0]):
        raise file.error(
            f"{text}: its major version is later; install xgboost>={version[0]}, or save the model with {installed}"
        )
    _log.info("model '%s': %s %s", file.model, file.path, text)


def _xgboost_data(file: ForestFile) -> bytes:
    """Return a file whose trees XGBoost and treelite can follow. Raises InferError(INVALID_ARG)."""
    data = _read(file)
    if file.model_type in ("xgboost_json", "xgboost_ubj"):
        try:
            check_xgboost(data, is_json=file.model_type == "xgboost_json")
        except ValueError as error:
            raise file.error(f"{error}; copy the file again") from None
    return data


class LightGBMEngine(TreeEngine):
    """LightGBM's C API: its `Booster.predict` takes 10 us more for a batch, as long as one row of a small forest."""

    name: ClassVar[str] = "lightgbm"

    def __init__(self, file: ForestFile, thread_count: int) -> None:
        import lightgbm

        try:
            # As text: a path would have to be ASCII on some systems.
            text, count = _lightgbm_text(file)
            self._booster: Any = lightgbm.Booster(model_str=text)
        except lightgbm.basic.LightGBMError as error:
            raise file.load_error("LightGBM", error) from error
        if self._booster.num_trees() != count:
            raise file.error(
                f"is damaged: LightGBM reads {self._booster.num_trees()} of its {count} trees; copy the file again"
            )
        objective = next((line[10:] for line in text.splitlines() if line.startswith("objective=")), "none")
        self._error = lightgbm.basic.LightGBMError
        self._thread_count = thread_count
        self._library: Any = lightgbm.basic._LIB
        self._parameters = ctypes.c_char_p(f"num_threads={thread_count}".encode())
        columns: int = self._booster.num_model_per_iteration()
        is_classifier = objective.startswith(("binary", "multiclass"))
        class_count = max(columns, 2) if is_classifier else 0
        features = lightgbm_features(self._booster, text)
        self.forest = Forest(self._booster.num_feature(), class_count, objective, columns, features=features)

    def predict(self, rows: Array) -> Array:
        """See `TreeEngine.predict`."""
        # LGBM_BoosterPredictForMat computes FP32 (its type 0) and FP64 (1).
        rows = np.ascontiguousarray(rows, np.float64 if rows.dtype == np.float64 else np.float32)
        scores = np.empty((len(rows), self.forest.score_count))
        count = ctypes.c_int64()
        status = self._library.LGBM_BoosterPredictForMat(
            self._booster._handle, ctypes.c_void_p(rows.ctypes.data), int(rows.dtype == np.float64),
            ctypes.c_int32(rows.shape[0]), ctypes.c_int32(rows.shape[1]), _ROW_MAJOR, _NORMAL, 0, _ALL_ITERATIONS,
            self._parameters, ctypes.byref(count), ctypes.c_void_p(scores.ctypes.data),
        )  # fmt: skip
        if status or count.value != scores.size:
            self._library.LGBM_GetLastError.restype = ctypes.c_char_p
            raise internal(f"LightGBM: {self._library.LGBM_GetLastError().decode(errors='replace')}")
        return scores

    def contributions(self, rows: Array) -> Array:
        """See `TreeEngine.contributions`."""
        try:
            values = self._booster.predict(rows, pred_contrib=True, num_threads=self._thread_count)
        except self._error as error:
            raise internal(f"LightGBM cannot compute SHAP values of this model: {reason_of(error)}") from error
        return self.shape_contributions(np.asarray(values))


_ROW_MAJOR, _NORMAL, _ALL_ITERATIONS = 1, 0, -1
"""Layout, kind of prediction (C_API_PREDICT_NORMAL) and number of iterations of LightGBM's C API."""


def _lightgbm_text(file: ForestFile) -> tuple[str, int]:
    """Return the text that LightGBM can read, and its number of trees. Raises InferError(INVALID_ARG)."""
    try:
        return readable_text(_read(file).decode("utf-8", "replace"))
    except ValueError as error:
        raise file.error(str(error)) from None


class TreeliteEngine(TreeEngine):
    """treelite's reference implementation, GTIL."""

    name: ClassVar[str] = "treelite"
    has_contributions: ClassVar[bool] = False

    def __init__(
        self, file: ForestFile, thread_count: int, best_iteration: str = "auto", *, allow_unknown_field: bool = False
    ) -> None:
        import treelite

        attributes = XGBoostAttributes()
        if file.model_type.startswith("xgboost"):
            attributes = read_attributes(file, stored_attributes(file), best_iteration)

        self._predict = treelite.gtil.predict
        self._thread_count = thread_count
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # fields that are unknown and allowed
                self._model: Any = _load_treelite(treelite, file, attributes, allow_unknown_field)
            check_treelite(self._model)
        except treelite.TreeliteError as error:
            raise file.load_error("treelite", error) from error
        except ValueError as error:
            raise file.error(f"{error}; copy the file again") from None
        header = self._model.get_header_accessor()
        task, targets = int(header.get_field("task_type")[0]), int(header.get_field("num_target")[0])
        columns = int(max(header.get_field("num_class")))
        is_classifier = task in (_BINARY, _MULTICLASS)
        if is_classifier and targets > 1:
            raise file.error(f"is a classifier with {targets} targets; save one forest for each target")
        objective = header.get_field("postprocessor")
        class_count = max(columns, 2) if is_classifier else 0
        self.forest = Forest(
            self._model.num_feature, class_count, objective, max(columns, targets), attributes.labels,
            attributes.missing,
        )  # fmt: skip

    def predict(self, rows: Array) -> Array:
        """See `TreeEngine.predict`."""
        scores: Array = self._predict(self._model, rows, nthread=self._thread_count)
        # [n, targets, classes], one of them 1.
        return scores.reshape(len(rows), -1)


_BINARY, _MULTICLASS = 0, 2
"""treelite's numbers of tasks."""


def _load_treelite(treelite: Any, file: ForestFile, attributes: XGBoostAttributes, allow_unknown_field: bool) -> Any:
    path = str(file.path)
    if file.model_type == "treelite_checkpoint":
        return treelite.Model.deserialize(path)
    if file.model_type == "lightgbm":
        if _ZERO_AS_MISSING in _read(file):
            raise file.error(
                "was trained with zero_as_missing, which treelite does not apply: it would return other numbers; set "
                "parameter 'engine' to lightgbm, and install it (pip install lightgbm)"
            )
        _lightgbm_text(file)
        return treelite.frontend.load_lightgbm_model(path)
    _xgboost_data(file)
    if attributes.rounds:
        return treelite.frontend.from_xgboost_json(_best_rounds(file, attributes))
    if file.model_type == "xgboost":
        return treelite.frontend.load_xgboost_model_legacy_binary(path)
    form = file.model_type.removeprefix("xgboost_").replace("ubj", "ubjson")
    return treelite.frontend.load_xgboost_model(path, format_choice=form, allow_unknown_field=allow_unknown_field)


_ZERO_AS_MISSING = b"[zero_as_missing: 1]"


def _best_rounds(file: ForestFile, attributes: XGBoostAttributes) -> str:
    """Return the first rounds of an XGBoost file as JSON. Raises InferError(INVALID_ARG) without XGBoost."""
    rounds = attributes.rounds
    opening = f"was trained with early stopping and predicts with its first {rounds} rounds, which treelite cannot"
    remedy = "set parameter 'best_iteration' to false to predict with all rounds"
    if file.model_type == "xgboost":
        raise file.error(f"{opening} in the old binary format; save it with XGBoost 2 as JSON, or {remedy}")
    try:
        import xgboost
    except ImportError:
        raise file.error(f"{opening} without the package xgboost; install it, or {remedy}") from None
    booster = xgboost.Booster(model_file=bytearray(_read(file)))
    check_rounds(file, attributes, booster.num_boosted_rounds())
    return bytes(booster[:rounds].save_raw("json")).decode()


ENGINES = ("auto", XGBoostEngine.name, LightGBMEngine.name, TreeliteEngine.name)
"""Values of the parameter `engine`."""


def choose_engine(file: ForestFile, wanted: str) -> str:
    """Return the name of the engine for a file: `wanted`, or the first that is installed of those that read it.

    Raises InferError(INVALID_ARG) when the wanted one does not read the format or none of them is installed.
    """
    own = {"xgboost_json": "xgboost", "xgboost_ubj": "xgboost", "lightgbm": "lightgbm"}.get(file.model_type)
    readers = [own, "treelite"] if own else ["treelite"]
    if wanted != "auto" and wanted not in readers:
        raise file.error(
            f"has the format {file.model_type}, which the engine '{wanted}' does not read; set parameter 'engine' to "
            f"{' or '.join(readers)}, or remove it"
        )
    candidates = readers if wanted == "auto" else [wanted]
    for name in candidates:
        if importlib.util.find_spec(name) is not None:
            return name
    raise file.error(f"needs the package {' or '.join(candidates)}: pip install 'naiad[trees]'")


def open_engine(
    file: ForestFile,
    wanted: str,
    thread_count: int,
    best_iteration: str = "auto",
    *,
    allow_unknown_field: bool = False,
) -> TreeEngine:
    """Load a model with the engine that `choose_engine` names. Raises InferError(INVALID_ARG)."""
    name = choose_engine(file, wanted)
    if best_iteration == "true" and not file.model_type.startswith("xgboost"):
        raise file.error(
            f"has the format {file.model_type}, which does not say the best round, but parameter 'best_iteration' is "
            "true; remove the parameter: LightGBM saves only the best rounds"
        )
    try:
        if name == XGBoostEngine.name:
            return XGBoostEngine(file, thread_count, best_iteration)
        if name == LightGBMEngine.name:
            return LightGBMEngine(file, thread_count)
        return TreeliteEngine(file, thread_count, best_iteration, allow_unknown_field=allow_unknown_field)
    except (InferError, ImportError):
        raise
    except Exception as error:  # the libraries read damaged files with any exception of Python and C++
        raise file.load_error(name, error) from error


def _read(file: ForestFile) -> bytes:
    return file.path.read_bytes()


def _softmax(margins: Array) -> Array:
    exponentials = np.exp(margins - margins.max(axis=1, keepdims=True))
    result: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return result

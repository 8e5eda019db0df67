"""Run a `model.py`, or a model of a backend, in a plain test: no server, no worker process, no sockets.

    from naiad.testing import PythonModel

    def test_adds():
        with PythonModel("models/add_sub") as model:
            outputs = model.infer({"INPUT0": a, "INPUT1": b})
        assert (outputs["OUTPUT0"] == a + b).all()

The model runs in the test's own process, so breakpoints and coverage work. The results of `execute` are checked by
the same rules as in the server; tensors are not copied. Models that it calls are functions of the test, or other
models:

    def double(inputs):
        return {"OUT": inputs["IN"] * 2}

    with PythonModel("models/pipeline", models={"double": double}) as model:
        ...

`BackendModel` does the same for a backend written for naiad:

    with BackendModel(MyBackend(), "models/example") as model:
        outputs = model.infer({"INPUT": rows})
"""

from naiad.testing.backend_model import BackendModel
from naiad.testing.called_models import FakeModel, ModelError
from naiad.testing.python_model import PythonModel

__all__ = ["BackendModel", "FakeModel", "ModelError", "PythonModel"]

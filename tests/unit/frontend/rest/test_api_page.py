"""The list of models, the OpenAPI document and its page."""

import hashlib
import json
import re
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace

import pytest
from openapi_spec_validator import validate

from naiad.core.datatype import DataType
from naiad.core.errors import not_found
from naiad.core.limits.request_limits import unlimited
from naiad.core.model import IndexEntry, ModelMetadata, ModelState, ServerMetadata
from naiad.core.tensor import TensorSpec
from naiad.engine.regions.regions import SharedMemory
from naiad.frontend.access.access import Restrictions
from naiad.frontend.rest.api_page import MAX_MODELS
from naiad.frontend.rest.routes import RestApi
from naiad.operations.table import OPERATIONS, WITHOUT_PAGES
from naiad.options.network.access_options import RequiredHeader
from naiad.protocol.json.management.openapi import MAX_EXAMPLE_ELEMENTS
from support.recording_engine import RecordingEngine

EVIL = "</script><script>alert('1')</script>"


class Engine(RecordingEngine):
    """Ready models by name, and one that was never loaded."""

    is_draining = False
    shared_memory = SharedMemory()
    request_limits = staticmethod(unlimited)

    def __init__(self, models):
        super().__init__()
        self.models = models
        self.decoupled = set()

    def survey_repository(self, ready_only=False):
        ready = [IndexEntry(name, "1", ModelState.READY) for name in self.models]
        return ready if ready_only else [*ready, IndexEntry("never loaded")]

    def server_metadata(self):
        return ServerMetadata("triton", "1.0", [])

    def model_metadata(self, name, version=""):
        if name not in self.models:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        return ModelMetadata(name, ["1"], "onnx", self.models[name], [])

    def is_decoupled(self, name, version=""):
        return name in self.decoupled


def get(engine, path, *, with_page=True, restricted=None, **headers):
    router = RestApi(engine, operations=OPERATIONS if with_page else WITHOUT_PAGES).router()
    if restricted:
        router.restrict(Restrictions({restricted: RequiredHeader("key", "secret")}, "API"))
    answers = []
    context = SimpleNamespace(method="GET", path=path, body=b"", client=None)
    context.headers = {name.encode(): value for name, value in headers.items()}
    context.respond = lambda status, fields, parts: answers.append((status, dict(fields), b"".join(parts)))
    router.handle(context)
    ((status, fields, body),) = answers
    return SimpleNamespace(status=status, headers=fields, body=body)


def document(engine, path="/openapi.json", **more):
    answer = get(engine, path, **more)
    assert answer.status == 200
    return json.loads(answer.body)


def model_paths(api):
    return [path for path, methods in api["paths"].items() if "x-inputs" in methods.get("post", {})]


X = TensorSpec("x", DataType.FP32, (-1, 4))
TENSORS = {datatype: [TensorSpec("t", datatype, (-1, 2))] for datatype in DataType}


def test_models_are_listed_with_states():
    listed = json.loads(get(Engine({"m": [X]}), "/v2/models").body)
    assert listed["models"] == [
        {"name": "m", "version": "1", "state": "READY", "ready": True},
        {"name": "never loaded", "ready": False},
    ]


def test_document_is_valid_openapi():
    engine = Engine({f"m-{datatype.value}": inputs for datatype, inputs in TENSORS.items()} | {EVIL: [X]})
    engine.decoupled = {"m-BYTES"}
    validate(document(engine))


@pytest.mark.parametrize(("name", "title"), [("triton", "naiad"), ("scoring-eu", "scoring-eu")])
def test_document_has_the_name_of_the_server(name, title):
    engine = Engine({})
    engine.views.server_metadata = lambda: ServerMetadata(name, "1.0", [])
    assert document(engine)["info"]["title"] == f"{title}: KServe v2 over REST"


def test_every_route_has_a_summary():
    operations = [each for methods in document(Engine({}))["paths"].values() for each in methods.values()]
    assert len(operations) > 30
    assert [each for each in operations if not (each["summary"] and each["tags"][0])] == []


def test_model_has_paths_with_bodies():
    api = document(Engine({"iris": [X, TensorSpec("s", DataType.BYTES, (-1, 1))]}))
    infer, generate = (api["paths"][f"/v2/models/iris/{name}"]["post"] for name in ("infer", "generate"))
    body = infer["requestBody"]["content"]["application/json"]["example"]
    assert body["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.5] * 4},
        {"name": "s", "datatype": "BYTES", "shape": [1, 1], "data": ["text"]},
    ]
    assert generate["requestBody"]["content"]["application/json"]["example"] == {"x": [0.5] * 4, "s": "text"}
    assert infer["x-inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 4]}


def test_decoupled_model_has_a_stream():
    engine = Engine({"m": [X]})
    engine.decoupled = {"m"}
    assert model_paths(document(engine)) == ["/v2/models/m/generate_stream"]


def test_large_inputs_have_no_example_data():
    api = document(Engine({"m": [TensorSpec("x", DataType.UINT8, (-1, MAX_EXAMPLE_ELEMENTS + 1))]}))
    content = api["paths"]["/v2/models/m/infer"]["post"]["requestBody"]["content"]["application/json"]
    assert content["example"]["inputs"][0]["data"] == []


def test_document_is_bounded_by_models():
    engine = Engine({f"m{number:05}": [X] for number in range(10_000)})
    assert len(model_paths(document(engine))) == 2 * MAX_MODELS
    assert model_paths(document(engine, "/v2/models/m09999/openapi.json"))[0] == "/v2/models/m09999/infer"


def test_unknown_model_has_no_document():
    answer = get(Engine({}), "/v2/models/m/openapi.json")
    assert (answer.status, answer.body) == (404, b'{"error":"Request for unknown model: \'m\' is not found"}')


def test_restricted_index_hides_models():
    engine = Engine({"m": [X]})
    assert get(engine, "/v2/models", restricted="model-repository").status == 403
    assert model_paths(document(engine, restricted="model-repository")) == []
    assert len(model_paths(document(engine, restricted="model-repository", key=b"secret"))) == 2


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/v2/models/m/openapi.json"])
def test_page_is_metadata_and_optional(path):
    engine = Engine({"m": [X]})
    assert get(engine, path).status == 200
    assert get(engine, path, restricted="metadata").status == 403
    assert get(engine, path, with_page=False).status == 404
    assert get(engine, "/v2/models", with_page=False).status == 200


def test_page_runs_only_its_own_script():
    answer = get(Engine({}), "/docs")
    policy = answer.headers[b"Content-Security-Policy"].decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for element in ("script", "style"):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", answer.body.decode(), re.DOTALL)
        digest = b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy


def test_page_writes_no_markup_and_loads_nothing():
    page = get(Engine({}), "/docs").body.decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://|\bon\w+=|style=", page
    )


def test_model_names_stay_inside_the_document():
    api = document(Engine({EVIL: [X]}))
    (infer, generate) = model_paths(api)
    assert not set("<>'\"") & set(infer + generate)
    assert api["paths"][infer]["post"]["tags"] == [f"Model {EVIL}"]


def test_openapi_is_imported_on_request_only():
    source = Path(__file__).resolve().parents[4] / "src/naiad"
    importing = [
        path
        for path in source.rglob("*.py")
        if re.search(r"^from naiad.protocol.json.management.openapi", path.read_text(), re.M)
    ]
    assert importing == []

"""Identifiers of generated clients, and the modules that are made of any names."""

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.cli.client_code.client_code import client_code
from naiad.cli.client_code.model_interface import Naming, NoClientError, identifiers
from naiad.cli.client_code.python_client import NAMING as PYTHON
from naiad.cli.client_code.typescript_client import NAMING as TYPESCRIPT
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType


def config(names: list[str], *, is_decoupled: bool = False) -> ModelConfig:
    tensors = [
        {"name": name, "data_type": datatype.config_name, "dims": [-1]}
        for name, datatype in zip(names, [*DataType] * len(names), strict=False)
    ]
    made = ModelConfig(name=names[0], max_batch_size=8, input=tensors, output=tensors)
    made.input[0].optional = True
    made.model_transaction_policy.decoupled = is_decoupled
    return made


def test_names_become_different_identifiers() -> None:
    names = [
        "IN",
        "in",
        "tensors",
        "Of_Result",
        "two words",
        "two_words",
        "class",
        "0",
        "__init__",
        "é",
        "",
        "np",
        "IN_2",
    ]
    assert identifiers(names, PYTHON) == [
        *(
            "in_",
            "in__2",
            "tensors_",
            "of_result_",
            "two_words",
            "two_words_2",
            "class_",
            "tensor_0",
            "init__",
            "tensor",
            "tensor_2",
            "np_",
        ),
        "in_2",
    ]
    assert identifiers(["IN", "class", "a-b", "constructor"], TYPESCRIPT) == ["IN", "class", "a_b", "constructor_"]


@given(st.lists(st.text(max_size=12), max_size=20), st.booleans())
def test_identifiers_are_allowed_and_differ(names: list[str], is_lower: bool) -> None:
    found = identifiers(names, Naming(PYTHON.reserved, is_lower))
    assert len(set(found)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) and name not in PYTHON.reserved for name in found)


@given(
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), min_size=1, max_size=16), st.booleans()
)
def test_python_module_of_any_names_is_python(names: list[str], is_decoupled: bool) -> None:
    code = client_code(names[0], config(names, is_decoupled=is_decoupled), "python")
    tree = ast.parse(code)
    (model,) = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(model) == names[0]


def test_names_add_no_code_to_a_module() -> None:
    evil = "*/ } evil(); interface X { /*"
    made = ModelConfig(name="m", input=config(["@OUTPUT_SPECS@"]).input, output=config([evil]).output)
    code = client_code("m", made, "typescript")
    texts_and_comments = r'"(?:[^"\\\n]|\\.)*"|`[^`]*`|/\*.*?\*/|//[^\n]*'
    assert "evil()" not in re.sub(texts_and_comments, "", code, flags=re.DOTALL)
    assert code.count('name: "@OUTPUT_SPECS@"') == 1


def test_what_has_no_client_is_said() -> None:
    with pytest.raises(NoClientError, match="names no inputs and outputs; ask a server"):
        client_code("m", ModelConfig(name="m"), "python")
    with pytest.raises(NoClientError, match="decoupled: it sends any number of responses"):
        client_code("m", config(["IN"], is_decoupled=True), "typescript")
    both = config(["IN"], is_decoupled=True)
    both.sequence_batching.direct.SetInParent()
    with pytest.raises(NoClientError, match="is decoupled and takes sequences"):
        client_code("m", both, "python")

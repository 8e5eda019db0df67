"""The parameters `load_policy`, `idle_unload_s` and `min_residence_s`."""

import pytest

from naiad.config.forms.findings import Findings
from naiad.config.load_policy import LoadPolicy, check_load_policy, read_load_policy
from naiad.config.model_config_pb2 import ModelConfig


def config(**parameters: str) -> ModelConfig:
    made = ModelConfig(name="m")
    for name, text in parameters.items():
        made.parameters[name].string_value = text
    return made


def test_parameters_have_priority_over_the_server() -> None:
    default = LoadPolicy(is_on_demand=True, idle_unload_s=60.0, min_residence_s=1.0)
    assert read_load_policy(config(), default) == default
    assert read_load_policy(config(load_policy="pinned"), default).is_on_demand is False
    own = config(load_policy="on-demand", idle_unload_s="5", min_residence_s="0.5")
    assert read_load_policy(own, LoadPolicy()) == LoadPolicy(True, 5.0, 0.5)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"load_policy": "lazy"}, "parameter 'load_policy' has an unknown value"),
        ({"idle_unload_s": "-1"}, "parameter 'idle_unload_s' is not a time in seconds"),
        ({"min_residence_s": "nan"}, "parameter 'min_residence_s' is not a time in seconds"),
        ({"min_residence_s": "soon"}, "parameter 'min_residence_s' is not a time in seconds"),
        ({"load_policy": "pinned", "idle_unload_s": "5"}, "has no effect on a pinned model"),
    ],
)
def test_mistakes_name_the_parameter(parameters: dict[str, str], text: str) -> None:
    findings = Findings(config(**parameters))
    check_load_policy(findings)
    assert text in findings.problems[0].message


def test_valid_parameters_have_no_findings() -> None:
    findings = Findings(config(load_policy="on-demand", idle_unload_s="0", min_residence_s="3600"))
    check_load_policy(findings)
    assert findings.problems == []

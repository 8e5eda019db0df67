"""`pb_utils.ModelConfig`, which `auto_complete_config` fills in, and look-ups in a configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from naiad.worker.api.arguments import text


class ModelConfig:
    """A model configuration that can be completed, never contradicted: the file takes precedence."""

    def __init__(self, model_config: str) -> None:
        """`model_config` is the configuration as JSON."""
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration; do not change it."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch size. Raises ValueError when the configuration has a larger one."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in {self._function()} specified "
                f"max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Choose dynamic batching. Raises ValueError when the configuration has another scheduler."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but {self._function()} "
                    "tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:  # noqa: A002 - Triton's name
        """Add an input: a dict of `name`, `data_type`, `dims` and, if it may be left out, `optional`.

        Raises ValueError when one of the first three is missing, when there are others, or when they contradict the
        configuration.
        """
        known = self._find_or_add("input", input, "optional")
        if "optional" in known and "optional" in input and known["optional"] != input["optional"]:
            raise ValueError(
                f"model '{self._name}', tensor '{input['name']}': the model expects optional {input['optional']} "
                f"but the model configuration specifies optional {known['optional']}"
            )
        known.update(input)

    def add_output(self, output: dict[str, Any]) -> None:
        """Add an output: a dict of `name`, `data_type` and `dims`.

        Raises ValueError when one of these is missing, when there are others, or when they contradict the
        configuration.
        """
        self._find_or_add("output", output, "").update(output)

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Set the transaction policy: a dict that may have `decoupled`.

        Raises ValueError for other keys, and when the configuration says otherwise.
        """
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in {self._function()} contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        wanted = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", wanted) != wanted:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                f"already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = wanted

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def _function(self) -> str:
        return f"auto-complete-config function for model '{self._name}'"

    def _find_or_add(self, kind: str, tensor: dict[str, Any], optional: str) -> dict[str, Any]:
        """Return the configured tensor of this name, with which `tensor` agrees; else `tensor` itself, added."""
        self._check_properties(kind, tensor, optional)
        known = _by_name(self._model_config[kind], tensor["name"])
        if known is None:
            self._model_config[kind].append(tensor)
            return tensor
        self._check_agreement(kind, known, tensor)
        return known

    def _check_properties(self, kind: str, properties: dict[str, Any], optional: str) -> None:
        required = ("name", "data_type", "dims")
        valid = [*required, optional] if optional else list(required)
        quoted = [f"'{name}'" for name in valid]
        words = ", ".join(quoted[:-1]) + f" and {quoted[-1]}"
        which = f"{kind} '{properties['name']}'" if "name" in properties else kind
        if any(name not in valid for name in properties):
            raise ValueError(f"{which} in {self._function()} contains property other than {words}.")
        for name in required:
            if name not in properties:
                raise ValueError(f"{which} in {self._function()} is missing '{name}' property.")

    def _check_agreement(self, kind: str, known: dict[str, Any], wanted: dict[str, Any]) -> None:
        name = wanted["name"]
        if known["data_type"] not in ("TYPE_INVALID", wanted["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {known['data_type']} for "
                f"{kind} '{name}', model provides {wanted['data_type']}"
            )
        if known["dims"] and known["dims"] != wanted["dims"]:
            raise ValueError(
                f"model '{self._name}', tensor '{name}': the model expects dims {wanted['dims']} but the model "
                f"configuration specifies dims {known['dims']}"
            )


def _by_name(tensors: Sequence[dict[str, Any]], name: str | bytes) -> dict[str, Any] | None:
    if isinstance(name, (bytes, bytearray)):
        name = text(name, "expected name")
    return next((tensor for tensor in tensors if tensor["name"] == name), None)


def get_input_config_by_name(model_config: dict[str, Any], name: str | bytes) -> dict[str, Any] | None:
    """Return the properties of an input in a configuration, or None."""
    return _by_name(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: dict[str, Any], name: str | bytes) -> dict[str, Any] | None:
    """Return the properties of an output in a configuration, or None."""
    return _by_name(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Return whether a configuration has the decoupled transaction policy."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))

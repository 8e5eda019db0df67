"""The tensors of an execution: tensors of clients, and tensors that the server adds and keeps."""

from naiad.config.model_config_pb2 import DataType, ModelConfig, ModelSequenceBatching
from naiad.config.tensors.padding import added_inputs, added_names

Control = ModelSequenceBatching.Control

_VALUE_TYPES = {
    "int32_false_true": DataType.TYPE_INT32,
    "fp32_false_true": DataType.TYPE_FP32,
    "bool_false_true": DataType.TYPE_BOOL,
}


def control_type(control: Control) -> int:
    """Return the datatype of a control tensor: that of its values, or its own for a correlation id."""
    for name, datatype in _VALUE_TYPES.items():
        if getattr(control, name):
            return int(datatype)
    return int(control.data_type)


def execution_config(config: ModelConfig) -> ModelConfig:
    """Return a configuration with the inputs and outputs that a backend executes.

    Sequence controls and implicit states are inputs of the model, and states are outputs, although clients neither
    send nor receive them; the same holds for masks and lengths of padded inputs. Without any of these it is `config`
    itself.
    """
    batching = config.sequence_batching
    added = added_inputs(config)
    if not (added or batching.control_input or batching.state):
        return config
    extended = ModelConfig()
    extended.CopyFrom(config)
    for tensor in added:
        extended.input.add(name=tensor.name, data_type=tensor.datatype.config_number, dims=tensor.dims)
    for control_input in batching.control_input:
        if control_input.control:
            extended.input.add(name=control_input.name, data_type=control_type(control_input.control[0]), dims=[1])
    outputs = {output.name for output in config.output}
    for state in batching.state:
        extended.input.add(name=state.input_name, data_type=state.data_type, dims=state.dims)
        if state.output_name not in outputs:
            extended.output.add(name=state.output_name, data_type=state.data_type, dims=state.dims)
    return extended


def server_inputs(config: ModelConfig) -> set[str]:
    """Return the names of the inputs that the server adds to a request."""
    return sequence_inputs(config) | added_names(config)


def sequence_inputs(config: ModelConfig) -> set[str]:
    """Return the names of the inputs with sequence controls."""
    batching = config.sequence_batching
    return {tensor.name for tensor in batching.control_input} | {state.input_name for state in batching.state}


def batch_inputs(config: ModelConfig) -> set[str]:
    """Return the names of the inputs that are made from the shapes of a batch before its execution."""
    return {name for batch_input in config.batch_input for name in batch_input.target_name}


def server_outputs(config: ModelConfig) -> set[str]:
    """Return the names of the outputs that the server keeps."""
    return {state.output_name for state in config.sequence_batching.state}

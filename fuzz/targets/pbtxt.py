"""config.pbtxt: where our reader reports nothing, google.protobuf's agrees; what that refuses is reported."""

from collections.abc import Hashable
from random import Random

from google.protobuf import text_format

from fuzz.mutation import mutate_bytes, mutate_pieces
from fuzz.target import Target
from naiad.config.forms.pbtxt.text_format import format_config, parse_pbtxt
from naiad.config.forms.pbtxt.token_cursor import MAX_PROBLEMS
from naiad.config.model_config_pb2 import ModelConfig
from naiad.config.problem import errors_of
from naiad.config.validate.model import validate


def check(data: bytes) -> Hashable:
    """Read the text with both readers, and validate and write what was read."""
    text = data.decode("utf-8", "replace")
    parsed = parse_pbtxt(text)
    assert len(parsed.problems) <= MAX_PROBLEMS + 2
    lines = text.count("\n") + 1
    for problem in parsed.problems:
        assert problem.message
        assert 0 <= problem.line <= lines  # 0: the whole file
    errors = errors_of(parsed.problems)
    try:
        expected = text_format.Parse(text, ModelConfig())
    except (text_format.ParseError, ValueError):
        assert errors, "google.protobuf refuses what was read without a problem"
    else:
        if not errors:
            assert parsed.config == expected
    if not errors:
        again = parse_pbtxt(format_config(parsed.config))
        assert not errors_of(again.problems)
        assert again.config == parsed.config
    found = validate(parsed.config)
    return tuple(problem.message.split()[0] for problem in parsed.problems[:3]), len(errors) > 3, len(list(found)) % 4


def restructure(data: bytes, random: Random) -> bytes:
    """Change the order of lines or of words."""
    separator = random.choice((b"\n", b" "))
    pieces = data.split(separator)
    if random.random() < 0.5:
        return separator.join(mutate_pieces(pieces, random))
    at = random.randrange(len(pieces))
    pieces[at] = random.choice(TOKENS) if random.random() < 0.5 else mutate_bytes(pieces[at], random)
    return separator.join(pieces)


TOKENS = tuple(
    rb"""name input output dims data_type instance_group kind count dynamic_batching preferred_batch_size parameters
    key value string_value max_batch_size ensemble_scheduling step sequence_batching oldest direct control_input
    version_policy latest all specific versions { } [ ] < > : , ; # // = - -1 0 08 0x1F 1e9 1.5f inf nan -inf true
    false True t f "x" 'y' "\n" "\x41" "\101" "\u00e9" "\U0001F600" "\400" "\ "unterminated 'mixed" TYPE_FP32
    TYPE_BOGUS KIND_CPU KIND_GPU 99999999999999999999 [type.googleapis.com/x] 1 -9223372036854775808""".split()
)


def seeds() -> list[bytes]:
    """Return configurations as people write them."""
    return [
        b'name: "m"\nmax_batch_size: 8\ninput [ { name: "A" data_type: TYPE_FP32 dims: [ 3, -1 ] } ]\n'
        b'output [ { name: "B" data_type: TYPE_INT8 dims: 4 } ]\ninstance_group [ { count: 2 kind: KIND_CPU } ]\n',
        b"dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }\n"
        b'parameters: { key: "a" value: { string_value: "b" } }\n',
        b'version_policy: { specific: { versions: [1, 2] } } # comment\nbackend: "onnxruntime"',
        b'ensemble_scheduling { step [ { model_name: "x" model_version: -1 input_map { key: "k" value: "v" } } ] }',
        b'sequence_batching < max_sequence_idle_microseconds: 5 control_input [ < name: "S" control [ < '
        b"kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] > ] > ] >\n",
        b'input: [{name: \'A\', dims: [1]; data_type: TYPE_STRING}, {name: "B" "C"}] model_warmup { name: "w" }',
    ]


TARGET = Target("pbtxt", check, seeds, TOKENS, restructure)

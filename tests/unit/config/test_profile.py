"""The profile of a model: its file, and files that are wrong."""

import pytest

from naiad.config.model_profile import ModelProfile, format_profile, parse_profile
from naiad.core.errors import InferError

PROFILE = ModelProfile(100.0, 20.0, 8, 250.0, (1, 6))


def test_file_gives_the_profile_back():
    assert parse_profile(format_profile(PROFILE)) == PROFILE
    assert parse_profile('{"fixed_us": 1, "row_us": 0, "later": []}') == ModelProfile(1.0, 0.0)


def test_duration_is_fixed_and_per_row():
    assert PROFILE.duration_ns(4) == 180_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"row_us": 1}', "fixed_us is 'None'"),
        ('{"fixed_us": -1, "row_us": 1}', "fixed_us is '-1'; use a number of 0 or more"),
        ('{"fixed_us": NaN, "row_us": 1}', "fixed_us is 'nan'"),
        ('{"fixed_us": 1' + "0" * 400 + ', "row_us": 1}', "use a number of 0 or more"),
        ('{"fixed_us": true, "row_us": 1}', "fixed_us is 'True'"),
        ('{"fixed_us": 0, "row_us": 0}', "are both 0"),
        ('{"fixed_us": 1, "row_us": 1, "largest_rows": "8"}', "largest_rows is '8'"),
        ('{"fixed_us": 1, "row_us": 1, "warm_batch_sizes": [[1]]}', "warm_batch_sizes is not a list"),
    ],
)
def test_wrong_file_names_the_field(text, words):
    with pytest.raises(InferError) as failure:
        parse_profile(text)
    assert words in failure.value.message

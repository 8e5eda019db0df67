"""The choice of optimization profiles; needs no TensorRT."""

import pytest

from naiad.backend.tensorrt.profiles import (
    OptimizationProfile,
    ProfileShapes,
    choose_profile,
    max_rows,
    no_profile,
    select_profiles,
)
from naiad.core.errors import InferError


def profile(index, low, high, other=(1, 1)):
    return OptimizationProfile(index, {"x": ProfileShapes(low, high), "y": ProfileShapes(other, other)})


LARGE = profile(0, (1, 3), (32, 3))
SMALL = profile(1, (1, 3), (4, 3))
WIDE = profile(2, (1, 3), (4, 300))
ALL = [LARGE, SMALL, WIDE]


def test_selected_profiles_begin_with_smallest():
    assert select_profiles(ALL, ["0", "2", "1", "1"], "m", "g") == [SMALL, LARGE, WIDE]


def test_first_profile_is_default():
    assert select_profiles(ALL, [], "m", "g") == [LARGE]


@pytest.mark.parametrize("text", ["3", "-1", "", "first", "9" * 30])
def test_unknown_profiles_are_refused(text):
    with pytest.raises(InferError, match=r"model 'm': instance group 'g' has profile .* write numbers from 0 to 2"):
        select_profiles(ALL, [text], "m", "g")


@pytest.mark.parametrize(
    ("shape", "chosen"),
    [((4, 3), SMALL), ((5, 3), LARGE), ((1, 4), WIDE), ((33, 3), None), ((4, 3, 1), None), ((-1, 3), SMALL)],
)
def test_smallest_profile_that_fits_is_chosen(shape, chosen):
    ordered = select_profiles(ALL, ["0", "1", "2"], "m", "g")
    assert choose_profile(ordered, {"x": shape, "y": (1, 1)}) == chosen


def test_all_inputs_must_fit():
    assert choose_profile(ALL, {"x": (4, 3), "y": (2, 1)}) is None
    message = no_profile("model 'm':", {"x": (4, 3), "y": (2, 1)}, [SMALL], ALL).message
    assert message == (
        "model 'm': input 'y' of shape [2,1] fits no optimization profile: profile 1 takes [1,1]; use a shape in "
        "these ranges, or build the engine with a profile for it"
    )


def test_rows_fit_all_inputs():
    assert max_rows([profile(0, (1, 3), (8, 3), (6, 1))]) == 6
    assert max_rows([profile(0, (1, 3), (8, 3), (6, 1)), profile(1, (1, 3), (7, 3), (7, 1))]) == 7
    assert max_rows([OptimizationProfile(0, {"x": ProfileShapes((), ())})]) == 0

from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.perf.statistics.server_figures import metric_figures, samples

TEXT = """# HELP nv_gpu_utilization GPU utilization rate
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-1",name="a \\"b\\" }"} 0.5
nv_gpu_utilization{gpu_uuid="GPU-2"} NaN
nv_cpu_utilization 0.25 1700000000000
process_resident_memory_bytes 1.5e8
nv_inference_count{model="m"} 7
nv_cpu_memory_used_bytes oops
nv_cpu_memory_used_bytes{broken 7
"""


def test_families_of_interest_are_parsed():
    assert samples(TEXT) == [
        ("nv_gpu_utilization", 'gpu_uuid="GPU-1",name="a \\"b\\" }"', 0.5),
        ("nv_cpu_utilization", "", 0.25),
        ("process_resident_memory_bytes", "", 1.5e8),
    ]


def test_scrapes_become_series_in_time_order():
    scrapes = [(2_000_000_000, "nv_cpu_utilization 0.1\n"), (3_000_000_000, "nv_cpu_utilization 0.3\n")]
    (found,) = metric_figures(scrapes, 1_000_000_000)
    assert (found.name, found.at_s, found.values) == ("nv_cpu_utilization", [1.0, 2.0], [0.1, 0.3])


def test_number_of_series_is_bounded():
    text = "".join(f'nv_gpu_utilization{{gpu_uuid="{number}"}} 1\n' for number in range(1000))
    assert len(metric_figures([(0, text)], 0)) == 256


@given(st.text())
def test_any_text_is_accepted(text):
    metric_figures([(0, text), (1, f"nv_gpu_{text}")], 0)

"""Reports of an optimization: terminal, CSV, page."""

import csv
import re
from dataclasses import replace

import pytest

from naiad.tools.optimize.report import text_table, write_csv, write_html
from naiad.tools.optimize.report.candidate_figures import figures_of
from support import optimizer_results as results


@pytest.fixture
def result():
    return results.result()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_html(results.result(), path)
    return path.read_text()


def rows(result, path):
    write_csv(result, path)
    with path.open() as file:
        return {row["candidate"]: row for row in csv.DictReader(file)}


def test_gain_compares_figures_measured_alike(result):
    gains = {each.outcome.candidate.name: each for each in figures_of(result)}
    assert gains["source"].throughput_gain == 1.0
    assert gains["openvino-int8"].throughput_gain == pytest.approx(6900 / 1900)
    assert gains["openvino-int8"].latency_gain == pytest.approx((1240 + 180) / (420 + 180))
    assert gains["onnx-fp16"].latency_gain == pytest.approx(1240 / 1720)
    assert gains["litert-float"].latency_gain is None


def test_failed_measurements_do_not_count(result):
    source = result.outcomes[0]
    broken = [replace(each, error="no answer") for each in source.profiles]
    made = replace(result, outcomes=[replace(source, profiles=broken, served=replace(source.served, error="lost"))])
    (figures,) = figures_of(made)
    assert (figures.latency, figures.throughput, figures.throughput_gain) == (None, None, None)


def test_table_begins_with_winner_and_reason(result):
    lines = text_table(result).splitlines()
    assert lines[0] == result.why
    (winner,) = (line for line in lines if line.startswith("*"))
    assert winner.split()[1:] == [
        "openvino-int8",
        "int8",
        "passed",
        "served",
        "0.6",
        "6,210",
        "2.37",
        "/",
        "3.63",
        "41",
        "0.02",
    ]


def test_table_warns_of_figures_measured_differently(result):
    assert "Compare latencies and rates that were measured alike" in text_table(result)
    assert "measured alike" not in text_table(replace(result, outcomes=result.outcomes[:1]))


def test_table_has_every_reason(result):
    text = text_table(result)
    assert "litert-float: failed: operator GridSample has no counterpart: TransformError" in text
    assert "tensorrt-fp16: not run here: there is no GPU" in text


def test_table_without_winner_says_why(result):
    assert text_table(replace(result, winner="", why="all were rejected")).startswith("all were rejected")


def test_csv_has_a_row_for_each_candidate(result, tmp_path):
    found = rows(result, tmp_path / "report.csv")
    assert list(found) == [each.candidate.name for each in result.outcomes]
    winner = found["openvino-int8"]
    assert (winner["is_winner"], winner["worst_absolute"]) == ("True", "scores=0.02")
    assert float(winner["served_throughput_per_s"]) == 6210
    assert (found["tensorrt-fp16"]["latency_us"], found["tensorrt-fp16"]["reason"]) == ("", "there is no GPU")


def test_page_needs_no_network(page):
    assert not re.search(r"<script|<link|src=|@import|href=\"http", page)


def test_page_has_winner_and_charts(page):
    assert page.index("3.6 times the source") < page.index("<table")
    assert page.count("<svg") == 4
    for heading in ("Latency", "Throughput", "Accuracy over speed: onnx-int8-minmax", "Memory", "Run"):
        assert f"<h2>{heading}</h2>" in page


def test_page_has_output_and_values_of_failures(page):
    row = next(each for each in page.split("<tr") if ">values<" in each)
    cells = re.findall(r"<td[^>]*>([^<]*)", row)
    assert cells[:7] == ["onnx-int8-minmax", "values", "scores", "17", "[0, 3]", "0.874", "0.118"]


def test_page_has_environment_and_command(page):
    assert "AMD EPYC 9R14" in page
    assert "naiad optimize digits.onnx --data digits.npz" in page


def test_names_are_escaped(result, tmp_path):
    bad = results.failed("<b>", "<script>")
    write_html(replace(result, outcomes=[bad], winner=""), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<script>" not in text
    assert "&lt;b&gt;" in text

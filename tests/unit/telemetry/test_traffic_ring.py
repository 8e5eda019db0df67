"""The files of a recording: their bound, their continuation, and files that are not recordings."""

import json

import pytest

from naiad.telemetry.traffic import RingFile

SIZE = 1 << 12


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def append(ring, number, length=100):
    line = json.dumps({"n": number}).encode().ljust(length - 1) + b"\n"
    ring.append((line,), len(line))


def test_older_half_is_dropped(tmp_path):
    path, older = tmp_path / "t", tmp_path / "t.1"
    ring = RingFile(str(path), SIZE)
    for number in range(500):
        append(ring, number)
        ring.flush()
        assert path.stat().st_size <= SIZE // 2
        assert not older.exists() or older.stat().st_size <= SIZE // 2
    ring.close()
    numbers = [line["n"] for file in (older, path) for line in lines(file) if "n" in line]
    assert numbers == list(range(500 - len(numbers), 500))
    assert len(numbers) > SIZE // 2 // 100
    assert "naiad_traffic" in lines(path)[0]
    assert lines(path)[0] == lines(older)[0]


def test_longest_line_fits_into_a_file(tmp_path):
    path = tmp_path / "t"
    ring = RingFile(str(path), SIZE)
    for number in range(3):
        append(ring, number, ring.max_line_bytes)
    ring.close()
    assert path.stat().st_size == SIZE // 2
    assert [line.get("n") for line in lines(path)] == [None, 2]


def test_next_process_continues_the_files(tmp_path):
    path = tmp_path / "t"
    for number in range(2):
        ring = RingFile(str(path), SIZE)
        append(ring, number)
        ring.close()
    assert [line.get("n") for line in lines(path)] == [None, 0, None, 1]


def test_only_one_process_records_in_a_file(tmp_path):
    path = tmp_path / "t"
    ring = RingFile(str(path), SIZE)
    for number in range(50):
        append(ring, number)
    with pytest.raises(OSError, match="another server records in it"):
        RingFile(str(path), SIZE)
    ring.close()
    RingFile(str(path), SIZE).close()


def test_incomplete_line_is_ended(tmp_path):
    path = tmp_path / "t"
    RingFile(str(path), SIZE).close()
    with path.open("ab") as file:
        file.write(b'{"arri')
    ring = RingFile(str(path), SIZE)
    append(ring, 1)
    ring.close()
    first, torn, opening, last = path.read_bytes().splitlines()
    assert torn == b'{"arri'
    assert json.loads(opening).keys() == json.loads(first).keys()
    assert json.loads(last) == {"n": 1}


def test_only_its_user_may_read_it(tmp_path):
    RingFile(str(tmp_path / "t"), SIZE).close()
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["t", "t.1"])
def test_other_files_are_not_replaced(tmp_path, name):
    (tmp_path / name).write_text("precious")
    with pytest.raises(OSError, match="is not a recording of this version"):
        RingFile(str(tmp_path / "t"), SIZE)
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize("path", ["/dev/null", "/"])
def test_devices_and_directories_are_no_files(path):
    with pytest.raises(OSError, match="not a regular file"):
        RingFile(path, SIZE)


def test_missing_directory(tmp_path):
    with pytest.raises(FileNotFoundError):
        RingFile(str(tmp_path / "missing" / "t"), SIZE)

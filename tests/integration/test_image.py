"""The Dockerfile: its stages, what it copies, and the user; `make image` builds and starts the image."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "deploy" / "image" / "Dockerfile").read_text()


def stages() -> dict[str, tuple[str, str]]:
    """Return the base and the instructions of each stage by its name."""
    parts = re.split(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, flags=re.MULTILINE)[1:]
    return {name: (base, text) for base, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)}


def test_variants_contain_their_installation_only() -> None:
    for variant in ("core", "onnx", "full", "gpu"):
        base, text = stages()[variant]
        assert base == "base"
        copies = re.findall(r"^COPY (.+)$", text, re.MULTILINE)
        assert copies == [f"--from=build-{variant} /opt/naiad /opt/naiad"]


def test_final_stages_run_nothing_as_root() -> None:
    base, text = stages()["base"]
    assert base == "scratch"
    assert "USER 10001:0" in text
    assert not re.search(r"^(RUN|ENTRYPOINT)", text, re.MULTILINE)


def test_installed_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    used = {name for names in re.findall(r"naiad\[([\w,-]+)\]", DOCKERFILE) for name in names.split(",")}
    assert used <= set(project["optional-dependencies"])
    assert {"naiad", "tritonserver"} <= set(project["scripts"])


def test_copied_files_reach_the_builder() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = [source for line in copied for source in line.split()]
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(sources) == allowed
    assert all((ROOT / source).exists() for source in sources)


def test_compose_builds_a_stage_of_the_file() -> None:
    compose = ROOT / "deploy" / "compose" / "compose.yml"
    build = yaml.safe_load(compose.read_text())["services"]["naiad"]["build"]
    assert (compose.parent / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).exists()
    assert build["target"] in stages()


def test_scripts_have_no_syntax_error() -> None:
    for name in ("build.sh", "try.sh", "install"):
        subprocess.run(["bash", "-n", ROOT / "deploy" / "image" / name], check=True)


def test_image_has_the_command_of_sagemaker(tmp_path: Path) -> None:
    """SageMaker runs `IMAGE serve` with its variables: the installation makes a command of this name."""
    install = (ROOT / "deploy" / "image" / "install").read_text()
    (link,) = re.findall(r"^ln -s (\S+) /opt/naiad/bin/serve$", install, re.MULTILINE)
    command = tmp_path / "serve"
    command.symlink_to(Path(sys.executable).parent / link)
    environ = {"PATH": os.environ["PATH"], "SAGEMAKER_BASE_DIR": str(tmp_path)}
    if "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    finished = subprocess.run([command], capture_output=True, text=True, check=False, env=environ)
    assert finished.returncode != 0
    assert f"{tmp_path}/model has no model" in " ".join(finished.stderr.split())

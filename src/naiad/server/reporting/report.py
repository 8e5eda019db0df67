"""Start-up report: backends in use, models and their states as tables in the log, and why a start has failed."""

import fnmatch
import logging
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.config.problem import errors_of, nearest
from naiad.core.errors import ErrorCode, InferError, excerpt
from naiad.core.model import UNLOADED, IndexEntry, ModelState, name_of
from naiad.engine.engine import Engine
from naiad.options.network.addresses import host_of, is_unix, unix_path
from naiad.options.options import RepositoryOptions, ServerOptions
from naiad.repository.cloud.url import is_cloud_url
from naiad.repository.lifecycle import ReadyRule
from naiad.repository.stores.bare_files import nothing_to_serve
from naiad.repository.stores.stores import DUPLICATE
from naiad.server.ports.listener import addresses, has_tls
from naiad.server.process.process_environment import FailedStartError
from naiad.telemetry.logs.console import GREEN, YELLOW
from naiad.telemetry.logs.log import log_table

if TYPE_CHECKING:
    from naiad.repository.model_check import ModelReport

_log = logging.getLogger(__name__)

_MAX_LOADING = 5


def log_models(engine: Engine, options: RepositoryOptions) -> None:
    """Log the table of model versions: name, version, backend, instances, seconds to load, state and its reason.

    Warns if the repositories contain no model, or lack one of --ready-models. It may read them again: not for the
    event loop.
    """
    rows = engine.views.repository_index()
    is_explicit = options.control_mode == "explicit"
    if options.paths and not rows and not (is_explicit and engine.views.survey_repository()):
        _log.warning("%s", nothing_to_serve(options.paths))
    names = ReadyRule(options.ready_rule).names.difference(row.name for row in rows)
    if absent := names and names.difference(name_of(row.name) for row in engine.views.survey_repository()):
        shown = excerpt(", ".join(sorted(absent)))
        _log.warning(
            "--ready-models=%s: no repository has a model named %s; the server is not ready without it",
            options.ready_models,
            shown,
        )
    headings = ["Model", "Version", "Backend", "Instances", "Load (s)", "Status"]
    log_table(_log, headings, [_model_row(engine, row) for row in rows])


def loading_text(loading: Mapping[str, float], waited_s: float) -> str:
    """Return the models that load, with the seconds since each began, longest first: `densenet (12 s), bert (3 s)`.

    `waited_s` are the seconds of the whole start, shown while no load has begun.
    """
    if not loading:
        return f"reading the model repository ({waited_s:.0f} s)"
    names = sorted(loading, key=lambda name: -loading[name])
    shown = ", ".join(f"{excerpt(name)} ({loading[name]:.0f} s)" for name in names[:_MAX_LOADING])
    more = len(names) - _MAX_LOADING
    return f"{shown} and {more} more" if more > 0 else shown


def first_model(engine: Engine) -> str:
    """Return the name of a ready model; empty without one."""
    return next((row.name for row in engine.views.repository_index(ready_only=True)), "")


def log_ready(options: ServerOptions, bound: Mapping[str, int], *, is_ready: bool, model: str) -> None:
    """Log where to send requests, with a command to copy. `bound` has the bound port by the prefix of its flags."""
    urls = client_urls(options, bound)
    parts = [urls["http"]] if "http" in urls else []
    parts += [f"{flag} {url}" for flag, url in urls.items() if flag != "http"]
    path = f"/v2/models/{model}" if model else "/v2"
    hint = f"; try: curl {_curl_target(urls['http'])}{path}" if "http" in urls else ""
    state = "ready" if is_ready else "serving, not ready"
    color = {"color": GREEN if is_ready else YELLOW}
    _log.info("%s: %s%s", state, ", ".join(parts), hint, extra=color)
    page = dashboard_url(options, urls)
    if page:
        _log.info("dashboard: %s", page, extra=color)


def dashboard_url(options: ServerOptions, urls: Mapping[str, str]) -> str:
    """Return the address of the dashboard for browsers on this machine; empty without one, and on a Unix socket."""
    url = urls.get("http", "")
    return f"{url}/" if options.http.serves_dashboard and url.startswith("http") else ""


def client_urls(options: ServerOptions, bound: Mapping[str, int]) -> dict[str, str]:
    """Return the URLs for clients on this machine by the prefixes of the flags; that of gRPC is `host:port`."""
    urls: dict[str, str] = {}
    for flag, address in addresses(options).items():
        place = _client_place(address.host, bound[flag])
        scheme = "https" if has_tls(options, flag) else "http"
        urls[flag] = place if flag == "grpc" or is_unix(address.host) else f"{scheme}://{place}"
        if len(address.services) > 1:
            urls["grpc"] = place
    if "metrics" in urls:
        urls["metrics"] += "/metrics"
    return urls


def _client_place(host: str, port: int) -> str:
    """Return an address that a client on this machine can use."""
    if is_unix(host):
        return host
    name = host_of(host)
    if name in ("", "0.0.0.0", "::"):
        name = "127.0.0.1"
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _curl_target(url: str) -> str:
    return f"--unix-socket {unix_path(url)} http://localhost" if is_unix(url) else url


def _model_row(engine: Engine, row: IndexEntry) -> Sequence[str]:
    try:
        served = engine.inference.served(row.name, row.version)
    except InferError:
        loaded = ["-", "-", "-"]
    else:
        seconds = served.load_duration_ns / 1e9
        loaded = [served.config.backend or served.config.platform, str(len(served.instances)), f"{seconds:.2f}"]
    state = row.state.value if row.state is not None else "not loaded"
    # A reason may have several lines; a cell has one.
    status = f"{state}: {' '.join(row.reason.split())}" if row.reason else state
    return [row.name, row.version or "-", *loaded, status]


def log_backends(modules: Mapping[str, str], config: Mapping[str, Mapping[str, str]]) -> None:
    """Log the table of backends in use: name, module, settings."""
    rows = []
    for name in sorted(modules):
        settings = {**config.get("", {}), **config.get(name, {})}
        rows.append([name, modules[name], ", ".join(f"{key}={value}" for key, value in settings.items())])
    log_table(_log, ["Backend", "Module", "Config"], rows)


_MAX_PROBLEMS = 20
_CODE = re.compile(rf"^({'|'.join(code.words for code in ErrorCode)}): ")
_PYTHON_PLACE = re.compile(r" At: (\S+)\((\d+)\): .*")
_MISSING_MODULE = re.compile(r"No module named '([\w.]+)'")


def failed_start(
    rows: Sequence[IndexEntry], options: RepositoryOptions, known_backends: Collection[str], gpu_count: int
) -> FailedStartError:
    """Return the error of a start with failed models; reads the repositories."""
    failed = {row.name for row in rows if _has_failed(row)}
    # The findings of `naiad check` have file, line and the expected value; other failures need a load.
    reports = list(_check(options, known_backends, gpu_count))
    checked = {report.name for report in reports if report.name in failed and not report.is_ok}
    problems = [str(each) for report in reports if report.name in checked for each in errors_of(report.problems)]
    problems += [_problem(row) for row in rows if _has_failed(row) and row.name not in checked]
    names = {str(row.name) for row in rows}
    for name in options.load_models:
        if name != "*" and not fnmatch.filter(names, name):
            problems.append(_absent(name, options, [report.name for report in reports]))
    if len(problems) > _MAX_PROBLEMS:
        problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more"]
    commands = " and ".join(f"naiad check {shlex.quote(path)} --load" for path in dict.fromkeys(options.paths))
    hint = f"For more: {commands}. To serve the other models: --exit-on-error=false. For tracebacks: --log-verbose=1."
    return FailedStartError(problems, hint)


def _has_failed(row: IndexEntry) -> bool:
    return row.state is ModelState.UNAVAILABLE and row.reason not in ("", UNLOADED)


def _absent(name: str, options: RepositoryOptions, known: Collection[str]) -> str:
    near = nearest(name, known)
    hint = f"did you mean '{near}'?" if near else "expected the name of a model's directory"
    return f"--load-model={name}: there is no such model in {' or '.join(options.paths)}; {hint}"


def _check(options: RepositoryOptions, known_backends: Collection[str], gpu_count: int) -> "Iterator[ModelReport]":
    """Yield what `naiad check` reports about the models on disk."""
    from naiad.repository.model_check import check_path  # a start without failures does not need it

    for path in options.paths:
        if is_cloud_url(path):
            continue
        try:
            yield from check_path(
                Path(path), known_backends=known_backends, strict=not options.auto_complete, gpu_count=gpu_count
            )
        except (InferError, OSError):
            continue  # the reasons of the failed loads remain


def _problem(row: IndexEntry) -> str:
    text = _CODE.sub("", " ".join(row.reason.split())).replace(f"{os.getcwd()}/", "")
    text = _PYTHON_PLACE.sub(r" (\1:\2)", text)
    text = text.removeprefix(f"model '{row.name}' version {row.version}: ").removeprefix(f"model '{row.name}': ")
    if text == DUPLICATE:
        text += "; rename one of them, or serve one only"
    missing = _MISSING_MODULE.search(text)
    if missing:
        text += f"; expected an installed package: pip install {missing[1]}, or remove the import"
    return f"{row.name}{row.version and f' version {row.version}'}: {text}"

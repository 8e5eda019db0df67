"""Measures points on a running server: variants by loads with a configuration override, load by naiad perf."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from naiad.client import Client, ConnectionFailedError, ErrorCode, InferError
from naiad.config.forms.json_form import config_from_json
from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.analyze.live.analyzed_server import AnalyzedServer, make_client
from naiad.tools.analyze.live.configurations import NO_CONTROL, Configurations
from naiad.tools.analyze.live.metric_figures import figures_of
from naiad.tools.analyze.live.server_resources import ResourceMeter
from naiad.tools.analyze.live.undo_journal import read_journal
from naiad.tools.analyze.point_measurement import Measured, ServerLostError
from naiad.tools.analyze.space import Point
from naiad.tools.analyze.variants import RefusedError
from naiad.tools.measure.result import Interval, Row
from naiad.tools.perf.perf_plan import Concurrency, Load, Measuring, ModelLoad, Plan, RequestRate, ServerTarget, Stop
from naiad.tools.perf.perf_session import Session
from naiad.tools.values.tensor import InputError

_log = logging.getLogger(__name__)
LOAD_TIMEOUT_S = 600.0
_METRICS_INTERVAL_MS = 500
_STABILITY_PERCENT = 1.0
"""A measurement ends before its time only when its interval is as narrow as this."""
_PERCENTILE = 99
_LONGER = 10


class LiveInstrument:
    """An `Instrument` for one event loop.

        async with LiveInstrument(OwnServer([repository]), [ModelPlan("resnet50")]) as instrument:
            measured = await instrument.measure(Point((variant,), concurrency=8), seconds=2.0)

    The end of the block restores the configurations that the models had, also after an exception or a cancellation.
    The process id of the server stays the same, unless it dies.
    """

    def __init__(
        self,
        server: AnalyzedServer,
        models: Sequence[ModelLoad],
        *,
        varied: Sequence[str] = (),
        journal: Path | None = None,
        load_timeout_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        """`models` are under load, with their inputs; `varied` names further models, those that a BLS model calls.

        `journal` is the file from which the configurations can be restored after a crash; a server of one's own
        needs none.
        """
        self.server = server
        self._models = {model.name: model for model in models}
        self._varied = varied
        self._journal = None if server.is_own else journal
        self._load_timeout_s = load_timeout_s
        self._client: Client | None = None
        self._configurations: Configurations | None = None
        self._session: Session | None = None
        self._session_key: object = None
        self._has_just_died = False

    @property
    def configs(self) -> Mapping[str, ModelConfig]:
        """Return the complete configurations of the models and of members of ensembles, as they were."""
        assert self._configurations is not None, "the instrument is not open"
        return self._configurations.configs

    # --- begin and end ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Open the instrument."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore and close; a failure to restore is logged when there is another exception already."""
        try:
            await self.restore()
        except (InferError, ServerLostError) as failure:
            if error is None:
                raise
            _log.error("%s", failure)
        finally:
            await self.close()

    async def open(self) -> None:
        """Start the server or reach it, undo what a killed analysis has left, and read the models.

        Raises ServerLostError; InferError for a model that is not there or does not load, for a server without
        explicit control, and for a journal that another analysis uses.
        """
        try:
            await self.server.start()
            await self._connect(replays=True)
        except ConnectionFailedError as error:
            await self.close()
            raise ServerLostError(self._lost_message(error.message)) from error
        except BaseException:
            await self.close()
            raise

    async def _connect(self, *, replays: bool) -> None:
        service = self.server.service
        self._client = make_client(service, self._load_timeout_s)
        if replays and self._journal is not None and self._journal.exists():
            await _replay(self._client, service, self._journal, is_asked=False)
        configurations = Configurations(self._client, service.url, self._journal)
        self._configurations = configurations
        sources = [*self._models, *self._varied]
        await configurations.read(sources)

    async def restore(self) -> None:
        """Apply the configurations that the models had at the beginning. Raises InferError, ServerLostError."""
        await self._close_session()
        if self._configurations is None or self.server.is_own:
            return
        try:
            await self._configurations.restore()
        except ConnectionFailedError as error:
            raise ServerLostError(self._lost_message(error.message)) from error

    async def close(self) -> None:
        """Disconnect, and end a server of one's own."""
        await self._close_session()
        if self._client is not None:
            self._client.close()
            self._client = None
        self._configurations = None
        await self.server.stop()

    # --- measuring --------------------------------------------------------------------------------------------------

    async def measure(self, point: Point, seconds: float) -> Measured:
        """Apply the point's variants, send its load for about `seconds`, and return the figures.

        A variant that fails is a `Measured` with `error`. Raises ServerLostError when the server has died, one of
        one's own when it dies twice in a row; InferError for a server without explicit control, InputError for data
        that do not fit the models as they are configured.
        """
        began_s = time.monotonic()
        try:
            measured = await self._measured(point, seconds)
        except (InferError, InputError, RefusedError) as error:
            is_configured = not any(each.settings or each.source_model for each in point.variants)
            if NO_CONTROL in str(error) or (isinstance(error, InputError) and is_configured):
                raise
            measured = Measured(point, error=str(error))
        except BaseException:
            await self._close_session()
            raise
        reason = measured.error or next((row.errors[0].message for row in measured.rows.values() if row.errors), "")
        if reason and not await self.server.is_alive():
            await self._revive(reason)
            measured = Measured(point, error=f"the server died: {reason}")
        else:
            self._has_just_died = False
        return replace(measured, duration_s=time.monotonic() - began_s)

    async def _measured(self, point: Point, seconds: float) -> Measured:
        assert self._configurations is not None, "the instrument is not open"
        _check_batch(point, self.configs)
        sources = [each.source_model for each in point.variants if each.source_model]
        await self._configurations.read(sources)
        await self._configurations.apply(point.variants)
        session = await self._session_for(point)
        load = _load_of(point)
        meter = ResourceMeter(self.server.pid)
        meter.start()
        try:
            rows = await _send(session, load, seconds)
            if any(row.request_count == 0 and not row.errors for row in rows):
                # A request takes longer than the measurement.
                rows = await _send(session, load, _LONGER * seconds)
        finally:
            meter.stop()
        measured = _result(point, dict(zip(self._models, rows, strict=True)), meter.metrics())
        return replace(measured, foreign_cores=meter.foreign_cores(), loop_cores=meter.loop_cores())

    async def _session_for(self, point: Point) -> Session:
        """Return an open session for the point; it is kept while the requests stay the same."""
        targets = {each.model: each.source_model or each.model for each in point.variants}
        plans = [
            replace(model, name=targets.get(name, name), batch_size=point.batch_size)
            for name, model in self._models.items()
        ]
        key = (point.batch_size, tuple(_shapes(point, plan.name, self.configs) for plan in plans))
        if self._session is None or key != self._session_key:
            await self._close_session()
            session = Session(
                Plan(
                    self.server.service,
                    plans,
                    Concurrency(1),
                    metrics_url=self.server.metrics_url,
                    metrics_interval_ms=_METRICS_INTERVAL_MS,
                )
            )
            await session.open()
            self._session, self._session_key = session, key
        return self._session

    async def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _revive(self, reason: str) -> None:
        """Start a server of one's own again. Raises ServerLostError."""
        await self._close_session()
        output = f"\n{self.server.output}" if self.server.output else ""
        if not self.server.is_own or self._has_just_died:
            raise ServerLostError(self._lost_message(reason) + output)
        _log.warning("the server died and is started again: %s%s", reason, output)
        self._has_just_died = True
        if self._client is not None:
            self._client.close()
        try:
            await self.server.start()
            await self._connect(replays=False)
        except InferError as error:
            raise ServerLostError(self._lost_message(error.message)) from error

    def _lost_message(self, reason: str) -> str:
        text = f"the server at {self.server.service.url} is lost: {reason}"
        if self._journal is not None and self._journal.exists():
            text += f"; when it is back, `naiad analyze --restore {self._journal}` restores the configurations"
        return text


async def restore_from_journal(path: Path, service: ServerTarget) -> tuple[str, ...]:
    """Restore what a killed analysis has left, and remove the file; return the models.

    Raises InferError(INVALID_ARG) for a file that is no journal, InferError for a load that fails.
    """
    async with make_client(service, LOAD_TIMEOUT_S) as client:
        return await _replay(client, service, path, is_asked=True)


async def _replay(client: Client, service: ServerTarget, path: Path, *, is_asked: bool) -> tuple[str, ...]:
    journal = read_journal(path)
    if journal.is_in_use and not is_asked:
        raise InferError(
            ErrorCode.INVALID_ARG,
            f"another analysis (process {journal.pid}) uses {journal.url}; wait for its end, or restore its "
            f"configurations with `naiad analyze --restore {path}`",
        )
    models = await Configurations(client, service.url, path).replay()
    _log.warning("an analysis did not end properly; restored the configurations of %s", ", ".join(models))
    return models


async def _send(session: Session, load: Load, seconds: float) -> list[Row]:
    measuring = Measuring(
        Stop.CONFIDENCE,
        window_ms=max(1, round(seconds * 1000)),
        max_trials=1,
        stability_percent=_STABILITY_PERCENT,
        percentile=_PERCENTILE,
        # The first requests after a load allocate memory and start threads.
        warmup_requests=load.value if isinstance(load, Concurrency) else 1,
    )
    session.plan = replace(session.plan, measuring=measuring)
    return await session.measure(load)


def _load_of(point: Point) -> Load:
    return RequestRate(point.request_rate) if point.request_rate else Concurrency(point.concurrency)


def _check_batch(point: Point, configs: Mapping[str, ModelConfig]) -> None:
    """Raise RefusedError for requests that a variant cannot take."""
    for each in point.variants:
        config = _config_of(point, each.model, configs)
        if config is not None and point.batch_size > max(1, config.max_batch_size):
            raise RefusedError(
                f"requests of batch size {point.batch_size} exceed max_batch_size {config.max_batch_size}"
            )


def _config_of(point: Point, name: str, configs: Mapping[str, ModelConfig]) -> ModelConfig | None:
    for each in point.variants:
        if each.config_json and name in (each.model, each.source_model):
            return config_from_json(each.config_json)
    return configs.get(name)


def _shapes(point: Point, name: str, configs: Mapping[str, ModelConfig]) -> tuple[object, ...]:
    """Return what the tensors of requests depend on."""
    config = _config_of(point, name, configs)
    if config is None:
        return (name,)
    return name, config.max_batch_size > 0, tuple(each.SerializeToString(deterministic=True) for each in config.input)


def _result(point: Point, rows: Mapping[str, Row], resources: Mapping[str, Interval]) -> Measured:
    for name, row in rows.items():
        if row.request_count == 0:
            reason = row.errors[0].message if row.errors else "no request has ended in time"
            return Measured(point, rows, error=f"model '{name}': {reason}")
    return Measured(point, rows, {name: figures_of(row) | dict(resources) for name, row in rows.items()})

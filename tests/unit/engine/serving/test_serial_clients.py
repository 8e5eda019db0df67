from naiad.config.model_config_pb2 import ModelConfig
from naiad.engine.serving.dispatch.busy_polling import ENOUGH, SerialClients, watch_for_serial_clients


def test_only_the_thousandth_lone_batch_logs_hint():
    watch = SerialClients()
    hints = [watch.observe(1) for _ in range(ENOUGH + 10)]
    assert hints.index(True) == ENOUGH - 1
    assert hints.count(True) == 1


def test_concurrent_request_restarts_the_count():
    watch = SerialClients()
    assert not any(watch.observe(1) for _ in range(ENOUGH - 1))
    assert not watch.observe(2)
    assert not any(watch.observe(1) for _ in range(ENOUGH - 1))
    assert watch.observe(1)


def test_only_models_that_could_batch_are_watched():
    config = ModelConfig(max_batch_size=8)
    assert watch_for_serial_clients(config) is None
    config.dynamic_batching.SetInParent()
    assert watch_for_serial_clients(config) is not None
    config.max_batch_size = 1
    assert watch_for_serial_clients(config) is None

from naiad.config.model_config_pb2 import ModelConfig
from naiad.engine.serving.busy_polling import ENOUGH, SerialClients, watch_for_serial_clients


def test_the_thousandth_batch_alone_is_told_and_no_other():
    watch = SerialClients()
    told = [watch.observe(1) for _ in range(ENOUGH + 10)]
    assert told.index(True) == ENOUGH - 1
    assert told.count(True) == 1


def test_company_begins_the_count_anew():
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

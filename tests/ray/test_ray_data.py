"""ModelMapper in a data set."""

import numpy as np

from naiad.integrations.ray import ModelMapper


def test_a_data_set_gets_outputs(cluster, repository) -> None:
    import ray.data

    pairs = np.arange(1, 401, dtype=np.float32).reshape(200, 2)
    rows = ray.data.from_numpy(pairs).rename_columns({"data": "PAIR"})
    found = rows.map_batches(
        ModelMapper,
        fn_constructor_args=[str(repository), "ratio"],
        batch_size=32,
        compute=ray.data.ActorPoolStrategy(size=2),
    ).to_pandas()
    ratios = {tuple(pair): ratio for pair, ratio in zip(found["PAIR"], found["RATIO"], strict=True)}
    assert ratios == {tuple(pair): np.float32(pair[0] / pair[1]) for pair in pairs}

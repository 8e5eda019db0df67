"""The JAX backend: functions that `jax.export` has serialised."""

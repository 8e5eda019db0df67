"""What a configuration would do under a load: fitted costs, and a simulation with the real schedulers."""

"""What requests carry: random data, data files, recorded traffic; shared memory; and how outputs are validated."""

"""What clients command: loads, unloads and rollouts."""

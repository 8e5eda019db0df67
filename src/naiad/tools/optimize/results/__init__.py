"""What is found out about a candidate: the verdict on its answers, and its figures."""

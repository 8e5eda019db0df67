"""One classifier of digits in every format whose framework is installed, side by side in one server."""

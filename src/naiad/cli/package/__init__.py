"""`naiad verify` and `naiad export`: what is done with a package of naiad optimize."""

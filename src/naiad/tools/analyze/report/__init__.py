"""The result of an analysis as CSV, text and HTML."""

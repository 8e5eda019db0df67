"""Reports of an optimization: for the terminal, as CSV, and as a page with charts."""

from naiad.optimizer.report.html import write_html
from naiad.optimizer.report.tables import text_table, write_csv

__all__ = ["text_table", "write_csv", "write_html"]

"""Reports of an optimization: for the terminal, as CSV, and as a page with charts."""

from naiad.tools.optimize.report.candidate_tables import text_table, write_csv
from naiad.tools.optimize.report.optimize_page import write_html

__all__ = ["text_table", "write_csv", "write_html"]

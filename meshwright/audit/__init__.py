"""`meshwright check`: a recipe's declarations, and the code that they stand on, judged on one process."""

from meshwright.audit.check import check
from meshwright.audit.document import document
from meshwright.audit.report import Report
from meshwright.audit.show import show

__all__ = ["Report", "check", "document", "show"]

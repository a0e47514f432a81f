"""The report of a diagnosis: one HTML page that needs no network."""

from posenet.diagnosis.report.page import REPORT_FILE, write_report

__all__ = ["REPORT_FILE", "write_report"]

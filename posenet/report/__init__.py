"""The report of a diagnosis: one HTML page that needs no network."""

from posenet.report.writer import write_report

__all__ = ["write_report"]

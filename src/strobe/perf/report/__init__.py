"""From records and traces to one `Report`, and from it to HTML, Markdown and JSON. Renderers compute nothing."""

from strobe.perf.report.build import build_report, write_report
from strobe.perf.report.html import render_html
from strobe.perf.report.markdown import render_markdown
from strobe.perf.report.model import Report, decode_report, encode_report

__all__ = ["Report", "build_report", "decode_report", "encode_report", "render_html", "render_markdown", "write_report"]

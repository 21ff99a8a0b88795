"""The JSON twin holds the whole report and knows its version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.core.errors import DataError, RecordVersionError
from strobe.perf.report.build import build_report
from strobe.perf.report.model import decode_report, encode_report
from strobe.perf.report.write import render_html, render_markdown


def test_json_twin_gives_the_report_back(make_run: Callable[..., Path]) -> None:
    report = build_report([make_run(evil=True)])
    data = encode_report(report)
    again = decode_report(data)
    assert again == report
    assert render_html(again) == render_html(report) and render_markdown(again) == render_markdown(report)
    assert json.loads(data)["v"] == 1


def test_other_schemas_and_other_files_are_refused(make_run: Callable[..., Path]) -> None:
    data = json.loads(encode_report(build_report([make_run()])))
    with pytest.raises(RecordVersionError, match="report schema 99"):
        decode_report(json.dumps({**data, "v": 99}).encode())
    for text in (b"", b"[]", b"{}", b'{"v": 1}', b"\xff", json.dumps({**data, "more": 1}).encode()):
        with pytest.raises(DataError, match="not a strobe report"):
            decode_report(text)

"""A small header and a span, as a run writes them."""

from __future__ import annotations

import pytest

from strobe.perf.records.record import Clocks, Git, Header, Machine, Span


@pytest.fixture(scope="session")
def header() -> Header:
    machine = Machine(
        device="cpu",
        device_name="a CPU",
        gpu_count=0,
        gpu_memory_bytes=None,
        driver=None,
        cuda=None,
        torch="2.13.0",
        python="3.11.7",
        os="Linux",
        cpu_name="a CPU",
        cores=2,
        threads=2,
        memory_bytes=None,
        clocks=Clocks(source="none"),
    )
    return Header(
        run="r",
        date="2026-01-01T00:00:00Z",
        strobe="0.1.0",
        git=Git(commit="0" * 40, dirty=True),
        argv=("strobe", "compare"),
        machine=machine,
        baseline="baseline",
        order=("baseline", "turbo", "turbo", "baseline"),
        palindromes=4,
    )


@pytest.fixture(scope="session")
def span() -> Span:
    return Span(
        variant="turbo",
        clip=1,
        order=3,
        palindrome=0,
        name="frame_block",
        index=2,
        start_ns=10,
        value_ns=2**53 + 1,
        clock="perf_counter",
        warmup=False,
    )

"""Metrics and logs for operators: counters and histograms for Prometheus, and one structured log line per event."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0)
ON_TIME_MS: Final = 20.0
"""A picture that is painted at most this much after it was due is on time."""


class Metrics:
    """All metrics of a server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        on: Any = {"registry": self.registry}
        self.streams = Gauge("strobe_streams", "Streams by state.", ["state"], **on)
        self.viewers = Gauge("strobe_viewers", "Connections that watch a stream.", **on)
        self.blocks = Histogram("strobe_block_seconds", "Time that the device worked for a frame block.", buckets=_SECONDS, **on)
        self.phases = Histogram(
            "strobe_block_phase_seconds", "Parts of a frame block, where they are taken apart.", ["phase"], buckets=_SECONDS, **on
        )
        self.encode = Histogram(
            "strobe_encode_seconds", "Time to encode one picture.", buckets=(0.001, 0.002, 0.005, *_SECONDS), **on
        )
        self.prompt_to_pixel = Histogram(
            "strobe_prompt_to_pixel_seconds", "From a prompt's arrival until a viewer says that its first picture is painted.",
            buckets=_SECONDS, **on,
        )  # fmt: skip
        self.painted = Counter("strobe_pictures_painted_total", "Pictures that viewers painted, on time or late.", ["when"], **on)
        self.pictures = Counter("strobe_pictures_sent_total", "Pictures sent, by codec.", ["codec"], **on)
        self.sent_bytes = Counter("strobe_sent_bytes_total", "Bytes of pictures sent.", **on)
        self.stalls = Counter("strobe_stalls_total", "Times that a viewer ran dry.", **on)
        self.stall_seconds = Counter("strobe_stall_seconds_total", "Seconds that viewers waited after running dry.", **on)
        self.refused = Counter("strobe_refused_total", "Streams and connections that were refused, by reason.", ["reason"], **on)
        self.queued = Gauge("strobe_queued_frames", "Frames made and not painted, over all streams.", **on)
        self.busy = Counter("strobe_device_busy_seconds_total", "Time that frame blocks held the device.", **on)
        self.suspend = Histogram(
            "strobe_suspend_seconds", "Time that the device was held to move a stream to main memory.", buckets=_SECONDS, **on
        )
        self.wake = Histogram(
            "strobe_wake_seconds", "Time that the device was held to bring back a stream.", buckets=_SECONDS, **on
        )
        self.stream_bytes = Gauge(
            "strobe_stream_bytes", "Device memory of one more stream of the default preset, as measured at the start.", **on
        )
        self.suspended = Counter("strobe_suspends_total", "Streams moved to main memory.", **on)
        self.resumed = Counter("strobe_resumes_total", "Streams opened again by their secret.", **on)
        self.kept = Counter(
            "strobe_kept_total", "Logs and snapshots of streams written to the folder of `--keep`.", ["what"], **on
        )
        self.kept_bytes = Counter("strobe_kept_bytes_total", "Bytes of snapshots written there.", **on)
        self.keep_copy = Histogram(
            "strobe_keep_copy_seconds", "Time that the device was held to copy a snapshot.", buckets=_SECONDS, **on
        )
        self.not_kept = Counter("strobe_not_kept_total", "Logs and snapshots that could not be written there.", **on)
        self.taken_over = Counter(
            "strobe_taken_over_total", "Streams taken over from another server, by exactness.", ["bits"], **on
        )
        self.not_recorded = Counter("strobe_not_recorded_total", "Clips of viewers that could not be written to their end.", **on)
        self.failed = Counter("strobe_failed_streams_total", "Streams that an error ended.", **on)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def log_event(event: str, **fields: Any) -> None:
    """Write one event as a line of JSON to stderr: no prompt and no secret ever goes there."""
    line = {"time": round(time.time(), 3), "event": event, **fields}
    sys.stderr.write(json.dumps(line, ensure_ascii=True) + "\n")

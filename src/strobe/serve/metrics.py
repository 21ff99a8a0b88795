"""Metrics and logs for operators: counters and histograms for Prometheus, and one structured log line per event."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0)
ON_TIME_MS: Final = 20.0
"""A picture that is painted at most this much after it was due is on time."""


class Metrics:
    """All metrics of a server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge, counter = partial(Gauge, registry=self.registry), partial(Counter, registry=self.registry)
        seconds = partial(Histogram, registry=self.registry, buckets=_SECONDS)
        self.streams = gauge("strobe_streams", "Streams by state.", ["state"])
        self.viewers = gauge("strobe_viewers", "Connections that watch a stream.")
        self.blocks = seconds("strobe_block_seconds", "Time that the device worked for a frame block.")
        self.phases = seconds("strobe_block_phase_seconds", "Parts of a frame block, where they are taken apart.", ["phase"])
        self.encode = seconds("strobe_encode_seconds", "Time to encode one picture.", buckets=(0.001, 0.002, 0.005, *_SECONDS))
        self.prompt_to_pixel = seconds(
            "strobe_prompt_to_pixel_seconds", "From a prompt's arrival until a viewer says that its first picture is painted."
        )
        self.painted = counter("strobe_pictures_painted_total", "Pictures that viewers painted, on time or late.", ["when"])
        self.pictures = counter("strobe_pictures_sent_total", "Pictures sent, by codec.", ["codec"])
        self.sent_bytes = counter("strobe_sent_bytes_total", "Bytes of pictures sent.")
        self.stalls = counter("strobe_stalls_total", "Times that a viewer ran dry.")
        self.stall_seconds = counter("strobe_stall_seconds_total", "Seconds that viewers waited after running dry.")
        self.refused = counter("strobe_refused_total", "Streams and connections that were refused, by reason.", ["reason"])
        self.queued = gauge("strobe_queued_frames", "Frames made and not painted, over all streams.")
        self.busy = counter("strobe_device_busy_seconds_total", "Time that frame blocks held the device.")
        self.suspend = seconds("strobe_suspend_seconds", "Time that the device was held to move a stream to main memory.")
        self.wake = seconds("strobe_wake_seconds", "Time that the device was held to bring back a stream.")
        self.stream_bytes = gauge(
            "strobe_stream_bytes", "Device memory of one more stream of the default preset, as measured at the start."
        )
        self.suspended = counter("strobe_suspends_total", "Streams moved to main memory.")
        self.resumed = counter("strobe_resumes_total", "Streams opened again by their secret.")
        self.kept = counter("strobe_kept_total", "Logs and snapshots of streams written to the folder of `--keep`.", ["what"])
        self.kept_bytes = counter("strobe_kept_bytes_total", "Bytes of snapshots written there.")
        self.keep_copy = seconds("strobe_keep_copy_seconds", "Time that the device was held to copy a snapshot.")
        self.not_kept = counter("strobe_not_kept_total", "Logs and snapshots that could not be written there.")
        self.taken_over = counter("strobe_taken_over_total", "Streams taken over from another server, by exactness.", ["bits"])
        self.not_recorded = counter("strobe_not_recorded_total", "Clips of viewers that could not be written to their end.")
        self.failed = counter("strobe_failed_streams_total", "Streams that an error ended.")

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def log_event(event: str, **fields: Any) -> None:
    """Write one event as a line of JSON to stderr: no prompt and no secret ever goes there."""
    line = {"time": round(time.time(), 3), "event": event, **fields}
    sys.stderr.write(json.dumps(line, ensure_ascii=True) + "\n")

"""Sessions that stand ready, so that a stream opens or wakes without recording its passes again: on a GPU that takes seconds."""

from __future__ import annotations

import torch

from strobe.engine.config import EngineConfig
from strobe.engine.model import Model
from strobe.engine.session import Session


class SpareSessions:
    """Sessions of one model on one device that no stream uses. Every method belongs to the thread that owns the device.

    Args:
        model: that they run.
        device: where they are.
        most: kept; further ones are closed. 0: none is, as on a CPU, where a session opens at once.
    """

    def __init__(self, model: Model, device: torch.device, *, most: int) -> None:
        self.model, self.device, self.most = model, device, most
        self._ready: list[Session] = []

    def count(self, config: EngineConfig) -> int:
        """Return how many are ready for a configuration."""
        return sum(session.config.asked == config for session in self._ready)

    def take(self, config: EngineConfig, *, seed: int, prompt: str | None = None) -> Session:
        """Return a session without start frames: one that is ready, or else a new one.

        Raises:
            StrobeError: the prompt is refused, or the device has too little memory.
        """
        for session in self._ready:
            if session.config.asked == config:
                session.restart(prompt, seed=seed)
                self._ready.remove(session)
                return session
        return Session(prompt, preset=config, model=self.model, seed=seed, device=self.device)

    def give(self, session: Session) -> None:
        """Keep a session that a stream no longer needs, or close it."""
        if len(self._ready) < self.most:
            session.cancel()
            self._ready.append(session)
        else:
            session.close()

    def clear(self, keep: EngineConfig | None = None) -> bool:
        """Close those that are ready, but for those of one configuration; return whether there were any."""
        going = [session for session in self._ready if session.config.asked != keep]
        self._ready = [session for session in self._ready if session.config.asked == keep]
        for session in going:
            session.close()
        return bool(going)

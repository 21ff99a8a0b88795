"""Clips written to files and read back."""

from __future__ import annotations

from pathlib import Path

import av
import pytest
import torch
from torch import Tensor

from forked import run
from strobe.core.errors import ConfigError, SessionError, ShapeError
from strobe.engine.video import FORMATS, VideoFile, check_video_path

MIN_PSNR_DB = 36.0


def moving_square(num_frames: int, height: int = 64, width: int = 96) -> Tensor:
    """A red square that moves right over a soft gradient: uint8 [F, Y, X, 3]."""
    frames = torch.linspace(40, 120, width).view(1, 1, width, 1).expand(num_frames, height, width, 3).clone()
    for index in range(num_frames):
        left = 4 + 2 * index % 60
        frames[index, 20:40, left : left + 20] = torch.tensor([220.0, 30.0, 30.0])
    return frames.to(torch.uint8)


def decode(path: Path) -> Tensor:
    frames = []
    with av.open(str(path)) as container:
        try:
            for frame in container.decode(video=0):
                frames.append(torch.from_numpy(frame.to_ndarray(format="rgb24")))
        except av.InvalidDataError:
            pass  # the cut end of a broken file
    return torch.stack(frames)


def psnr_db(frames: Tensor, reference: Tensor) -> float:
    return float(-10 * torch.log10(((frames.float() - reference.float()) / 255).square().mean()))


@pytest.mark.parametrize("suffix", FORMATS)
def test_frames_come_back(tmp_path: Path, suffix: str) -> None:
    frames, path = moving_square(45), tmp_path / f"clip{suffix}"
    with VideoFile(path, fps=16) as video:
        for block in frames.split([1, 4, 40]):
            video.write(block)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name] and video.num_frames == 45
    decoded = decode(path)
    assert decoded.shape == frames.shape
    assert min(psnr_db(*pair) for pair in zip(decoded, frames, strict=True)) >= MIN_PSNR_DB


def test_an_mp4_starts_at_once_and_lasts_as_long_as_its_frames(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    with VideoFile(path, fps=16) as video:
        video.write(moving_square(40))
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat") and b"moof" not in data
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 16 and stream.codec_context.name == "h264" and stream.codec_context.pix_fmt == "yuv420p"
        assert container.duration == pytest.approx(40 / 16 * av.time_base, rel=1e-3)


@pytest.mark.parametrize(("height", "width"), [(63, 95), (64, 95), (63, 96)])
def test_odd_sizes(tmp_path: Path, height: int, width: int) -> None:
    frames, path = moving_square(3, height, width), tmp_path / "clip.mp4"
    with VideoFile(path, fps=16) as video:
        video.write(frames)
    decoded = decode(path)
    assert tuple(decoded.shape[1:3]) == (64, 96)
    assert psnr_db(decoded[:, :height, :width], frames) >= MIN_PSNR_DB


@pytest.mark.parametrize(("suffix", "least"), [(".mp4", 32), (".mkv", 16)])
def test_a_killed_process_leaves_the_earlier_clip_and_what_it_had(tmp_path: Path, suffix: str, least: int) -> None:
    path = tmp_path / f"clip{suffix}"
    path.write_bytes(b"an old one")
    script = (
        "import os, sys, torch\n"
        "from strobe.engine.video import VideoFile\n"
        "video = VideoFile(sys.argv[1], fps=16)\n"
        "for _ in range(5):\n"
        "    video.write(torch.randint(0, 255, (8, 64, 64, 3), dtype=torch.uint8))\n"
        "os._exit(9)\n"
    )
    assert run(script, path).returncode == 9
    assert path.read_bytes() == b"an old one"
    assert len(decode(tmp_path / f"clip.partial{suffix}")) >= least


def fill(path: Path, limit: int) -> str:
    """Write a long clip where a file may have so many bytes; return what is said about it."""
    script = (
        "import resource, signal, sys, torch\n"
        "from strobe.core.errors import StrobeError\n"
        "from strobe.engine.video import VideoFile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "try:\n"
        "    with VideoFile(sys.argv[1], fps=16) as video:\n"
        "        for _ in range(20):\n"
        "            video.write(torch.randint(0, 255, (16, 64, 64, 3), dtype=torch.uint8))\n"
        "except StrobeError as error:\n"
        "    assert video.broken\n"
        "    sys.exit(str(error))\n"
    )
    done = run(script, path)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("suffix", FORMATS)
def test_no_space_is_one_clear_error_that_says_what_is_kept(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"clip{suffix}"
    said = fill(path, 200_000)
    kept = len(decode(path))
    assert kept >= 16
    reason = f"File too large; the first {kept} of its frames are kept; free some space or name another place"
    assert said == f"cannot write {path}: {reason}\n"


def test_an_earlier_clip_outlives_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"an old one")
    said, own = fill(path, 200_000), tmp_path / "clip.partial.mp4"
    assert f"of its frames are kept as {own}; " in said
    assert path.read_bytes() == b"an old one" and len(decode(own)) >= 16


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_earlier_clip_outlives_an_interruption(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"an old one")
    for number in ("", ".2"):  # what an earlier interruption left is kept as well
        with pytest.raises(error), VideoFile(path, fps=16) as video:
            video.write(moving_square(5))
            raise error
        assert video.written == tmp_path / f"clip.partial{number}.mp4"
        assert path.read_bytes() == b"an old one" and len(decode(video.written)) == 5
    with VideoFile(path, fps=16) as video:
        video.write(moving_square(7))
    assert video.written == path and len(decode(path)) == 7


def test_of_a_link_what_it_names_is_kept(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "clip.mp4").write_bytes(b"an old one")
    (tmp_path / "clip.mp4").symlink_to(tmp_path / "there" / "clip.mp4")
    assert "so it is removed" in fill(tmp_path / "clip.mp4", 500)
    assert (tmp_path / "clip.mp4").is_symlink() and len(list((tmp_path / "there").iterdir())) == 1
    assert (tmp_path / "clip.mp4").read_bytes() == b"an old one"
    with VideoFile(tmp_path / "clip.mp4", fps=16) as video:
        video.write(moving_square(5))
    assert (tmp_path / "clip.mp4").is_symlink() and len(decode(tmp_path / "there" / "clip.mp4")) == 5


def test_a_clip_without_frames_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"old")
    VideoFile(path, fps=16).close()
    VideoFile(tmp_path / "new.mp4", fps=16).close()
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_wrong_frames_are_refused(tmp_path: Path) -> None:
    video = VideoFile(tmp_path / "clip.mp4", fps=16)
    frames = moving_square(2)
    with pytest.raises(ShapeError, match="uint8"):
        video.write(frames.float())
    video.write(frames)
    with pytest.raises(ShapeError, match="32x96, the clip is 64x96"):
        video.write(frames[:, :32])
    video.close()
    video.close()
    with pytest.raises(SessionError, match="closed"):
        video.write(frames)
    assert len(decode(tmp_path / "clip.mp4")) == 2


def test_paths_are_checked_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'\.mp5' \(did you mean '\.mp4'\?\)"):
        check_video_path(tmp_path / "clip.mp5")
    with pytest.raises(ConfigError, match="no folder"):
        VideoFile(tmp_path / "missing" / "clip.mp4", fps=16)
    with pytest.raises(ConfigError, match="not positive"):
        VideoFile(tmp_path / "clip.mp4", fps=0)
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(ConfigError, match="cannot write .*it is a folder; name a file, such as"):
        VideoFile(tmp_path / "folder.mp4", fps=16)

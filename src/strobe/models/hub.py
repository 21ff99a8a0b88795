"""Weights by name from the Hugging Face hub, `hf:owner/name@revision/inside`, in the hub's own cache, only when asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from strobe.core.errors import ConfigError, ImplUnavailableError, WeightsError, nearest
from strobe.core.libraries import broken, install
from strobe.models.text.umt5 import ORIGINAL, TOKENIZERS
from strobe.models.vae.wan.weights import FILES

START: Final = "hf:"
TRANSFORMER: Final = ("*.safetensors", "*.json")
"""What is fetched of a folder of weights: no pickles, which may be several gigabytes of the same; name a file to have one."""
RELEASE: Final = (*FILES[:2], ORIGINAL, "text_encoder/*.safetensors", *(f"{folder}/*" for folder in TOKENIZERS))
"""What is fetched of Wan2.1 as released beside its transformer."""
_ADDRESS: Final = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/\s]+))?(?:/(?P<inside>.+?))?/?")


def is_address(place: str | Path | None) -> bool:
    """Return whether a place is named on the hub, not on the disk."""
    return str(place).startswith(START)


def fetch(address: str, patterns: Sequence[str], ignored: Sequence[str] = ()) -> tuple[Path, str]:
    """Fetch files of a repository, those that are not in the hub's cache; progress is shown by the hub's library, on stderr.

    Args:
        address: `hf:owner/name`, then `@` and a branch, tag or commit (without: main), then `/` and a file, a folder, or a
            pattern such as `models/*.pt`.
        patterns: which files of a repository or folder; of a file or pattern: itself.
        ignored: which of them not.

    Returns:
        The file or folder on the disk, and the address with the commit in full.

    Raises:
        ConfigError: it is no address.
        ImplUnavailableError: the hub's library is not installed.
        WeightsError: no network and not in the cache, no such repository, revision or file, or no access.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ConfigError(f"{address}: write hf:owner/name, hf:owner/name@revision or hf:owner/name@revision/file or folder")
    repo, revision, inside = found["repo"], found["revision"] or "main", found["inside"] or ""
    if why := broken("huggingface_hub"):
        why = f"it fetches {address}, and {why}; {install('hub')} installs it"
        raise ImplUnavailableError("huggingface_hub", why, what="integration")
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is of its HTTP client
        GatedRepoError,
        HTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        siblings = HfApi().model_info(repo, revision=revision).siblings or ()
        chosen = _chosen([each.rfilename for each in siblings], inside, patterns, ignored, address)
        literally = [re.sub(r"([*?\[])", r"[\1]", name) for name in chosen]  # patterns that match a name and nothing else
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=literally))
    except GatedRepoError as error:
        raise WeightsError(
            f"{address}: {repo} is gated; accept its terms on its page, then `hf auth login` or set HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise WeightsError(f"{address}: {repo} has no branch, tag or commit {revision!r}; without one it is main") from error
    except RepositoryNotFoundError as error:
        raise WeightsError(
            f"{address}: there is no repository {repo}, or it is private; check the name, or `hf auth login` or set HF_TOKEN"
        ) from error
    except (HTTPError, OfflineModeIsEnabled) as error:
        kept = [*patterns] if not inside else [inside, *(f"{inside}/{pattern}" for pattern in patterns)]
        try:
            folder = Path(snapshot_download(repo, revision=revision, allow_patterns=kept, local_files_only=True))
        except LocalEntryNotFoundError:
            why = " ".join(str(error).split()) or type(error).__name__
            raise WeightsError(
                f"{address}: the hub cannot be reached ({why}) and its cache has no whole copy; go online, or give a folder"
            ) from error
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        chosen = _chosen(names, inside, patterns, ignored, address)
    commit = folder.name
    return folder / _root(chosen, inside), f"{START}{repo}@{commit}" + (f"/{inside}" if inside else "")


def _chosen(names: Iterable[str], inside: str, patterns: Sequence[str], ignored: Sequence[str], address: str) -> list[str]:
    every = sorted(names)
    below = f"{inside}/" if inside else ""
    if inside in every:
        shards = inside.removesuffix(".index.json").removesuffix(".safetensors")
        named = [name for name in every if inside.endswith(".index.json") and fnmatchcase(name, f"{shards}-*.safetensors")]
        return [inside, *named]
    if any(mark in inside for mark in "*?["):
        found = [name for name in every if fnmatchcase(name, inside)]
    else:
        found = [
            name
            for name in every
            if name.startswith(below)
            if any(fnmatchcase(name.removeprefix(below), pattern) for pattern in patterns)
            and not any(fnmatchcase(name.removeprefix(below), pattern) for pattern in ignored)
        ]
    if not found:
        shown = [name for name in every if name.startswith(below)] or every
        listed = ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
        what = f"nothing at {inside}{nearest(inside, every)}" if inside and shown == every else f"no {' or '.join(patterns)}"
        raise WeightsError(f"{address}: it has {what}; name a file of it: {listed or 'it is empty'}")
    return found


def _root(chosen: Sequence[str], inside: str) -> str:
    if not any(mark in inside for mark in "*?["):
        return inside
    return chosen[0] if len(chosen) == 1 else PurePosixPath(inside).parent.as_posix()

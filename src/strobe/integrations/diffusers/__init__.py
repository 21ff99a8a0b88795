"""Video sparse attention in a diffusers pipeline: three lines make it sparse, one puts it back.

```python
from strobe.integrations.diffusers import sparsify

handle = sparsify(pipe, sparsity=0.9)
video = pipe("a red circle moving left").frames[0]
print(handle.report())
handle.restore()
```
"""

from __future__ import annotations

from importlib.util import find_spec

from strobe.core.errors import ImplUnavailableError

if find_spec("diffusers") is None:
    raise ImplUnavailableError(
        "diffusers", "it is not installed; pip install 'strobe[diffusers]' installs it", what="integration"
    )

from strobe.integrations.diffusers.handle import SparseHandle, restore, sparsify
from strobe.integrations.diffusers.report import LayerReport, SparseReport

__all__ = ["LayerReport", "SparseHandle", "SparseReport", "restore", "sparsify"]

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

from strobe.core.errors import ImplUnavailableError
from strobe.core.libraries import broken, install

if why := broken("diffusers.models.transformers.transformer_ltx2") or broken("accelerate"):
    raise ImplUnavailableError("diffusers", f"{why}; {install('diffusers')} installs it", what="integration")

from strobe.integrations.diffusers.handle import SparseHandle, calibrate, restore, sparsify
from strobe.integrations.diffusers.keep import Calibration
from strobe.integrations.diffusers.report import LayerReport, SparseReport

__all__ = ["Calibration", "LayerReport", "SparseHandle", "SparseReport", "calibrate", "restore", "sparsify"]

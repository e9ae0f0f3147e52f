"""Make `import torchvision` work beside a CPU build of torch.

SGLang imports torchvision for images.  The published wheel's compiled operators belong to the CUDA build
and do not load beside a CPU torch; registering their shapes then fails, because an operator that was never
declared cannot be given one.  Declaring the two that are asked for is enough; calling them still fails.

    python declare_vision_operators.py SITE_PACKAGES/torchvision/__init__.py
"""

from __future__ import annotations

import sys
from pathlib import Path

MARK = "# operators declared for a CPU build of torch"
DECLARATION = f"""{MARK}
import torch as _torch

_declared_operators = _torch.library.Library("torchvision", "FRAGMENT")
for _operator in ("nms", "qnms"):
    _declared_operators.define(_operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

"""


def main() -> None:
    module = Path(sys.argv[1])
    source = module.read_text()
    if MARK not in source:
        module.write_text(DECLARATION + source)


if __name__ == "__main__":
    main()

"""Section `[lora]`: train low-rank adapters beside frozen weights, instead of the weights themselves."""

from __future__ import annotations

import difflib
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from hintloop_contract.config.section import PositiveFloat, Section

#: Linear layers that adapters can stand beside, by their Hugging Face names, in the order of a layer.
LORA_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALL_LINEAR: Final = "all-linear"
#: The highest rank that both engines serve.
MAX_RANK = 512


class LoraSection(Section):
    """Low-rank adapters (arXiv 2106.09685): W + alpha / rank * B A, where A and B alone are trained."""

    enabled: bool = False
    """Train adapters; the student's own weights stay as they are."""
    rank: Annotated[int, Field(ge=1, le=MAX_RANK)] = 16
    """Rows of A and columns of B."""
    alpha: PositiveFloat = 32.0
    """Scale of what adapters add, as alpha / rank."""
    dropout: float = 0.0
    """Must be 0: the policy that is differentiated has to be the one that answered."""
    target_modules: list[str] | Literal["all-linear"] = ALL_LINEAR
    """Layers that get adapters, by their Hugging Face names; `all-linear` is every one of them."""
    publish: Literal["adapter", "merged"] = "adapter"
    """What engines are given: the adapter, which they load beside the student's weights, or whole weights into which
    it is merged, for engines that take no adapters."""

    @property
    def as_adapter(self) -> bool:
        """Whether versions are adapters."""
        return self.enabled and self.publish == "adapter"

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the layers with adapters, in the order of :data:`LORA_MODULES`."""
        return tuple(name for name in LORA_MODULES if name in self.target_modules or self.target_modules == ALL_LINEAR)

    @property
    def described(self) -> str:
        """What two runs must have alike to go on from one another's adapters; empty when there are none."""
        return f"rank {self.rank}, alpha {self.alpha:g}, {' '.join(self.modules)}" if self.enabled else ""

    @property
    def scale(self) -> float:
        """What B A is multiplied with: alpha / rank."""
        return self.alpha / self.rank

    @field_validator("dropout")
    @classmethod
    def _none(cls, value: float) -> float:
        if value != 0.0:
            raise ValueError(
                "dropout is refused: the policy that is differentiated would not be the one that answered, and the "
                "ratio between them would be noise; set 0"
            )
        return value

    @field_validator("target_modules", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        if value == ALL_LINEAR or not isinstance(value, str | list):
            return value
        if isinstance(value, str):
            meant = difflib.get_close_matches(value, [ALL_LINEAR], n=1)
            listed = f"'{ALL_LINEAR}'" if meant else f"['{_nearest(value)}']"
            raise ValueError(f"{value!r} is neither a list of layers nor '{ALL_LINEAR}'; write {listed}")
        if not value:
            raise ValueError(f"no layer would be trained; name some of {', '.join(LORA_MODULES)}, or '{ALL_LINEAR}'")
        for name in value:
            if name not in LORA_MODULES:
                raise ValueError(
                    f"{name!r} is no layer that adapters can stand beside; did you mean {_nearest(str(name))!r}? "
                    f"Known are {', '.join(LORA_MODULES)}"
                )
        repeated = {name for name in value if value.count(name) > 1}
        if repeated:
            raise ValueError(f"{', '.join(sorted(repeated))} is named twice; name each layer once")
        return value


def _nearest(name: str) -> str:
    return difflib.get_close_matches(name, LORA_MODULES, n=1, cutoff=0.0)[0]

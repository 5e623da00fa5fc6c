"""Settings of target topics: `[targets."orders.*"]` limits the rate of each topic that matches the pattern."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from bridge.partition.options import PATTERN, TargetLimit


class TargetSettings(BaseModel):
    """The keys of `[targets."PATTERN"]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_per_s: Annotated[float, Field(gt=0, le=1_000_000)]

    def of_each(self, partitions: int) -> TargetLimit:
        """Return the limit of one of the timer topic's `partitions`."""
        return TargetLimit(self.max_per_s / partitions)


def check_target_pattern(pattern: str) -> None:
    if not PATTERN.fullmatch(pattern):
        raise ValueError(f'targets."{pattern}" fits no topic: write a name, with * for any characters and ? for one')

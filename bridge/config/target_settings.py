"""The keys of `[targets."PATTERN"]`: rate limits of the target topics that match the pattern."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from bridge.config.durations import milliseconds
from bridge.intake.target_policy import PATTERN
from bridge.release.target_rate_limits import TargetLimit


class TargetSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_per_s: Annotated[float, Field(gt=0, le=1_000_000)]
    fresh_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    fresh: Annotated[int, BeforeValidator(milliseconds), Field(gt=0)] = 10_000

    def of_each(self, partitions: int) -> TargetLimit:
        """Return the limit of one of the timer topic's `partitions`."""
        return TargetLimit(self.max_per_s / partitions, self.fresh_share, self.fresh)


def check_pattern(pattern: str) -> None:
    """Raise ValueError if the pattern is malformed."""
    if not PATTERN.fullmatch(pattern):
        raise ValueError(f'targets."{pattern}" fits no topic: write a name, with * for any characters and ? for one')

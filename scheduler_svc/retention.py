"""Which blobs of a task's past versions are kept: its spec's section `keep`, and what is needed whatever that says. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from common.spec import TaskSpec

OLD_ANNOUNCEMENTS = 2
"""A step that is recomputed, or settled late, makes a version old that was passed by before."""


@dataclass(frozen=True)
class Kept:
    """Of one task at version `at`."""

    spec: TaskSpec
    at: int
    held: frozenset[int] = frozenset()
    """Versions under evaluation, and the best ones."""

    def has_checkpoint(self, version: int) -> bool:
        keep = self.spec.keep
        return version > self.at - keep.checkpoints or (keep.every > 0 and version % keep.every == 0) or version in self.held

    def has_adapter(self, version: int) -> bool:
        keep = self.spec.keep
        is_chosen = keep.adapters == "all" or (keep.adapters_every > 0 and version % keep.adapters_every == 0)
        return is_chosen or self.has_checkpoint(version) or version > self.at - self._sampled_versions

    def has_batch(self, version: int) -> bool:
        """Of the step that made `version`."""
        return version > self.at - self.spec.keep.batches

    def grown_old(self) -> Iterator[int]:
        """Versions that the latest step may have put out of reach, some of them twice."""
        for reach in (self.spec.keep.checkpoints, self.spec.keep.batches, self._sampled_versions):
            yield from range(max(1, self.at - reach - OLD_ANNOUNCEMENTS), self.at - reach + 1)

    @property
    def _sampled_versions(self) -> int:
        """Groups on their way were pinned to one of so many last versions."""
        return self.spec.algorithm.max_staleness + 2

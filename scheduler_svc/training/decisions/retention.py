"""Retention of a task's adapters, checkpoints and batches: its spec's section `keep`, and what recovery always needs. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from common.spec import TaskSpec

REEXAMINED_VERSIONS = 2
"""Extra versions examined after each step, for steps that were recomputed or settled late."""


@dataclass(frozen=True)
class RetentionWindow:
    """Versions that one task keeps while it is at version `at`."""

    spec: TaskSpec
    at: int
    held: frozenset[int] = frozenset()
    """Versions under evaluation, and the best evaluated versions."""
    lineages: tuple[tuple[int, int], ...] = ()
    """(since, version) of kept checkpoints without a stored state; recomputing `version` needs the checkpoint of `since` and the batches
    after it."""

    def with_lineages(self, since: Mapping[int, int]) -> "RetentionWindow":
        """This window with lineages. `since`: version from which a kept checkpoint is recomputed, by version."""
        return replace(self, lineages=tuple((first, version) for version, first in since.items() if self._is_chosen(version)))

    def has_checkpoint(self, version: int) -> bool:
        return self._is_chosen(version) or any(since <= version <= last for since, last in self.lineages)

    def has_adapter(self, version: int) -> bool:
        keep = self.spec.keep
        is_chosen = keep.adapters == "all" or (keep.adapters_every > 0 and version % keep.adapters_every == 0)
        return is_chosen or self._is_chosen(version) or version > self.at - self._sampled_versions

    def has_batch(self, version: int) -> bool:
        """Whether the batch of the step that made `version` is kept."""
        return version > self.at - self.spec.keep.batches or any(since < version <= last for since, last in self.lineages)

    def superseded_blobs(self) -> Iterator[int]:
        """Versions whose blobs the latest step may have superseded; may contain duplicates."""
        for reach in (self.spec.keep.checkpoints, self.spec.keep.batches, self._sampled_versions):
            yield from range(max(1, self.at - reach - REEXAMINED_VERSIONS), self.at - reach + 1)

    def with_recomputed(self, passed: set[int], since: Mapping[int, int]) -> set[int]:
        """`passed`, and the versions from which those in `passed` are recomputed whose checkpoints have no stored state."""
        return passed.union(*(range(max(1, since[version]), version) for version in passed & since.keys()))

    @property
    def deciding(self) -> frozenset[int]:
        """Versions whose lineages decide which others are superseded; the first of the latest versions reaches back furthest."""
        return self.held | {self.at - self.spec.keep.checkpoints + 1}

    def _is_chosen(self, version: int) -> bool:
        """Whether the spec's section `keep`, or `held`, keeps the version's own checkpoint."""
        keep = self.spec.keep
        return version > self.at - keep.checkpoints or (keep.every > 0 and version % keep.every == 0) or version in self.held

    @property
    def _sampled_versions(self) -> int:
        """Number of latest versions that groups in flight may be pinned to."""
        return self.spec.algorithm.max_staleness + 2

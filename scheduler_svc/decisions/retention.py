"""Which blobs of a task's past versions are kept: its spec's section `keep`, and what is needed whatever that says. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from common.spec import TaskSpec

REEXAMINED_VERSIONS = 2
"""A step that is recomputed, or settled late, makes a version old that was passed by before."""


@dataclass(frozen=True)
class RetentionWindow:
    """Of one task at version `at`."""

    spec: TaskSpec
    at: int
    held: frozenset[int] = frozenset()
    """Versions under evaluation, and the best ones."""
    lineages: tuple[tuple[int, int], ...] = ()
    """(since, version) of kept checkpoints without a state: those from `since` on are needed, and the batches in between."""

    def with_lineages(self, since: Mapping[int, int]) -> "RetentionWindow":
        """`since`: from which version each checkpoint without a state is recomputed."""
        return replace(self, lineages=tuple((first, version) for version, first in since.items() if self._is_chosen(version)))

    def has_checkpoint(self, version: int) -> bool:
        return self._is_chosen(version) or any(since <= version <= last for since, last in self.lineages)

    def has_adapter(self, version: int) -> bool:
        keep = self.spec.keep
        is_chosen = keep.adapters == "all" or (keep.adapters_every > 0 and version % keep.adapters_every == 0)
        return is_chosen or self._is_chosen(version) or version > self.at - self._sampled_versions

    def has_batch(self, version: int) -> bool:
        """Of the step that made `version`."""
        return version > self.at - self.spec.keep.batches or any(since < version <= last for since, last in self.lineages)

    def superseded_blobs(self) -> Iterator[int]:
        """Versions that the latest step may have put out of reach, some of them twice."""
        for reach in (self.spec.keep.checkpoints, self.spec.keep.batches, self._sampled_versions):
            yield from range(max(1, self.at - reach - REEXAMINED_VERSIONS), self.at - reach + 1)

    def with_recomputed(self, passed: set[int], since: Mapping[int, int]) -> set[int]:
        """`passed`, and what their checkpoints without a state were recomputed from."""
        return passed.union(*(range(max(1, since[version]), version) for version in passed & since.keys()))

    @property
    def deciding(self) -> frozenset[int]:
        """Versions whose lineages decide about those that have grown old: of the latest ones, the first reaches back furthest."""
        return self.held | {self.at - self.spec.keep.checkpoints + 1}

    def _is_chosen(self, version: int) -> bool:
        """Whether the version's own checkpoint is kept."""
        keep = self.spec.keep
        return version > self.at - keep.checkpoints or (keep.every > 0 and version % keep.every == 0) or version in self.held

    @property
    def _sampled_versions(self) -> int:
        """Groups on their way were pinned to one of so many last versions."""
        return self.spec.algorithm.max_staleness + 2

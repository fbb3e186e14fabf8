"""Parameters and buffers of the frozen base model: on the device, in host memory, or dropped.

Modules keep their tensor objects, only the data is exchanged, so layers that share a weight, adapters' layers and all other references to
the model's tensors follow. A mapped safetensors file cannot be resized away, but its pages can be released (`device/memory.py`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from common.accelerators.executors import StateMismatch
from trainer_svc.device.memory import bytes_of, moved, paged_out


@dataclass(frozen=True)
class _Place:
    """A parameter or buffer of a module. `full_name`: its name in the model as read from its folder."""

    full_name: str
    module: nn.Module
    name: str
    shape: torch.Size
    dtype: torch.dtype

    @property
    def tensor(self) -> Tensor:
        found = self.module._parameters.get(self.name)
        found = self.module._buffers.get(self.name) if found is None else found
        assert found is not None
        return found


class Weights:
    """Tensors of one model. Create it before layers are replaced: later, names would differ from those of a newly read model."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._places = list(_places(model))
        self.size_bytes = sum(storage.nbytes() for storage in _storages(place.tensor for place in self._places).values())

    def to_host(self) -> None:
        """Move the data off the device: a GPU's to pinned host memory, a CPU's out of this process's memory (`device/memory.py`).

        Tensors that a failed wake left in host memory stay there. Raises: OSError if a CPU's tensors cannot be written; for a GPU's torch's
        RuntimeError if no memory can be page-locked.
        """
        tensors = [place.tensor.data for place in self._places]
        if self._device.type == "cpu":
            self._exchange(paged_out([tensors])[0])
        else:
            pinned = {address: _pinned(storage) for address, storage in _storages(tensors).items() if storage.device.type != "cpu"}
            self._exchange([moved(tensor, pinned) for tensor in tensors])

    def to_device(self) -> None:
        """Move the data back from host memory; on a CPU pages are mapped when they are read."""
        if self._device.type == "cpu":
            return
        tensors = [place.tensor.data for place in self._places]
        copies = {address: bytes_of(storage).to(self._device).untyped_storage() for address, storage in _storages(tensors).items()}
        self._exchange([moved(tensor, copies) for tensor in tensors])

    def drop(self) -> None:
        for place in self._places:
            place.tensor.data = place.tensor.data.new_empty(0)

    def take(self, model: nn.Module) -> None:
        """Move the data of a newly read model, which is empty afterwards, to the device, tensor by tensor.

        Raises: StateMismatch if its tensors have other names, shapes or types.
        """
        fresh = {place.full_name: place for place in _places(model)}
        expected, found = _described(self._places), _described(fresh.values())
        if expected != found:
            different = sorted({name for name, _ in expected.items() ^ found.items()})
            raise StateMismatch(
                f"the base model that was read again has other tensors than before it was parked: {', '.join(different[:3])}"
                f"{f' and {len(different) - 3} more' if len(different) > 3 else ''}; put back the model's folder, or restart this process"
            )
        for place in self._places:
            one = fresh[place.full_name].tensor
            place.tensor.data = one.data.to(self._device)
            one.data = one.data.new_empty(0)

    def _exchange(self, tensors: list[Tensor]) -> None:
        for place, tensor in zip(self._places, tensors, strict=True):
            place.tensor.data = tensor


def _places(model: nn.Module) -> Iterator[_Place]:
    seen = set[int]()
    for prefix, module in model.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and id(tensor) not in seen:  # tied weights are one tensor
                seen.add(id(tensor))
                yield _Place(f"{prefix}.{name}" if prefix else name, module, name, tensor.shape, tensor.dtype)


def _described(places: Iterable[_Place]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {place.full_name: (place.shape, place.dtype) for place in places}


def _storages(tensors: Iterable[Tensor]) -> dict[int, torch.UntypedStorage]:
    """Storages of the tensors by address, without empty ones."""
    found = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage for storage in found if storage.nbytes()}


def _pinned(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Copy in page-locked host memory, from which a GPU reads directly."""
    copy = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=True)
    return copy.copy_(bytes_of(storage)).untyped_storage()

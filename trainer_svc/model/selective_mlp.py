"""Selective MLP: the last layer's, computed for scored positions only, because no later layer mixes tokens."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import Tensor, nn


class SelectiveMLP(nn.Module):
    """Token-wise module that computes selected tokens only; the others get zeros."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._wanted_W: Tensor | None = None

    @contextmanager
    def only(self, wanted_W: Tensor) -> Generator[None]:
        """Context in which only these tokens are computed: flat indices (row · T + column), each once."""
        self._wanted_W = wanted_W
        try:
            yield
        finally:
            self._wanted_W = None

    def forward(self, x_B_T_H: Tensor) -> Tensor:
        if self._wanted_W is None:
            return self.inner(x_B_T_H)
        flat_N_H = x_B_T_H.flatten(0, 1)
        found_1_W_H = self.inner(flat_N_H.index_select(0, self._wanted_W)[None])
        return flat_N_H.new_zeros(flat_N_H.shape).index_copy(0, self._wanted_W, found_1_W_H[0]).view(x_B_T_H.shape)


def select_in_last_mlp(model: nn.Module) -> tuple[SelectiveMLP, tuple[str, ...]] | None:
    """Make the last layer's MLP a `SelectiveMLP`; returns it and the full names that its linear layers had.

    None if the model's last `down_proj` is not in a child of the last of its list of layers. (An expert's is in the last of a
    list of experts, which is an MLP's child.)
    """
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    downs = [name.split(".") for name in names if name.endswith(".down_proj")]
    if not downs or len(downs[-1]) < 4:
        return None
    *path, layers, number, mlp, _ = downs[-1]
    listed = model.get_submodule(".".join([*path, layers]))
    if not isinstance(listed, nn.ModuleList) or int(number) != len(listed) - 1:
        return None
    selective = SelectiveMLP(listed[-1].get_submodule(mlp))
    setattr(listed[-1], mlp, selective)
    prefix = ".".join([*path, layers, number, mlp, ""])
    return selective, tuple(name for name in names if name.startswith(prefix))

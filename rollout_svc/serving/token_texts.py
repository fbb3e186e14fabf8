"""Texts of single tokens, for those who have no tokenizer."""

import numpy as np

from common.messages import TextsRequest, TokenTexts
from rollout_svc.text.chat import Chat


def texts_of(chat: Chat, request: TextsRequest) -> TokenTexts:
    """Raises: ValueError when an id is no token."""
    ids_T = np.frombuffer(request.ids, dtype="<i4")
    if len(ids_T) and not 0 <= ids_T.min() <= ids_T.max() < chat.vocabulary:
        raise ValueError(f"ids from {ids_T.min()} to {ids_T.max()}, but tokens are 0 to {chat.vocabulary - 1}")
    by_id = {token: chat.token_bytes(token) for token in set(ids_T.tolist())}
    return TokenTexts(
        request=request.request,
        texts=[by_id[token] for token in ids_T.tolist()],
        control=bytes(token in chat.control_ids for token in ids_T.tolist()),
        openings=chat.openings,
    )

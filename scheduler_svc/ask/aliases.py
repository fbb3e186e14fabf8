"""Answers about aliases."""

from common.messages import AliasesAnswer, AskAliases
from scheduler_svc.ask.question import Question, page
from scheduler_svc.store.queries import aliases

MOST = 200
"""Maximum aliases of a page."""


async def answer_aliases(question: Question, request: AskAliases) -> AliasesAnswer:
    tenant, _, name = request.after.partition("/")
    async with question.reading() as connection:
        found = await aliases.page(connection, question.tenant, request.name, (tenant, name), most=MOST)
    kept = page(found)
    has_more = len(kept) < len(found) or len(found) == MOST
    return AliasesAnswer(aliases=kept, cursor=f"{kept[-1].tenant}/{kept[-1].name}" if has_more else None)

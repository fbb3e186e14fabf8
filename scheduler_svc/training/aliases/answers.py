"""Answers about aliases."""

from common.messages import AliasesAnswer, AskAliases
from scheduler_svc.tenancy.question import Question, cursor_of_names, names_after, page
from scheduler_svc.training.aliases import queries as aliases

MOST = 200
"""Maximum aliases of a page."""


async def answer_aliases(question: Question, request: AskAliases) -> AliasesAnswer:
    async with question.reading() as connection:
        found = await aliases.page(connection, question.tenant, request.name, names_after(request.after), most=MOST)
    kept = page(found)
    return AliasesAnswer(aliases=kept, cursor=cursor_of_names(kept, len(found), MOST))

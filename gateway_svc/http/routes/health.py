"""Whether the gateway lives, and whether it works."""

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from gateway_svc.http.family import Family
from gateway_svc.http.gateway import gateway_of

router = APIRouter(tags=["health"])
FAMILY = Family(router)


class HealthBody(BaseModel):
    ok: bool
    detail: str


@router.get("/healthz", response_model=HealthBody, responses={503: {"model": HealthBody, "description": "Its event loop stands still."}})
async def alive(request: Request) -> Response:
    """Liveness of the process."""
    good = gateway_of(request).health.alive()
    return _answer(good, "alive" if good else "event loop stalled")


@router.get("/readyz", response_model=HealthBody, responses={503: {"model": HealthBody, "description": "What is missing."}})
async def ready(request: Request) -> Response:
    """Readiness: NATS is connected, a scheduler answers, and the process is not draining."""
    health = gateway_of(request).health
    return _answer(health.ready and health.alive(), health.detail)


def _answer(good: bool, detail: str) -> Response:
    return Response(HealthBody(ok=good, detail=detail).model_dump_json(), 200 if good else 503, media_type="application/json")

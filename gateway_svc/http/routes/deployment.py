"""What the deployment offers and does."""

from fastapi import APIRouter

from gateway_svc.http.family import Family

router = APIRouter(prefix="/v1", tags=["deployment"])
FAMILY = Family(router)

"""The web application: ``uvicorn --factory shelf.api:create_app``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path
from fastapi.responses import FileResponse
from pydantic import BaseModel, HttpUrl

from nonet import Nonet
from nonet.contrib.fastapi import NonetApp, install, lifespan
from shelf.store import Store, store
from shelf.tasks import collect

router = APIRouter()

User = Annotated[str, Path(pattern=r"^[a-z0-9-]{1,32}$")]
Files = Annotated[Store, Depends(store)]


class Page(BaseModel):
    """The body of a request: a page with pictures."""

    address: HttpUrl


@router.post("/shelves/{user}/pages", status_code=202)
async def add(user: User, page: Page, nonet: NonetApp) -> dict[str, str]:
    """Start to collect the pictures of a page; returns the id to ask for."""
    return {"run": await nonet.submit_workflow(collect(user, str(page.address)))}


@router.get("/runs/{id}")
async def run(id: str, nonet: NonetApp) -> dict[str, object]:
    """Return how far it is; 404 if the id is unknown."""
    status = await nonet.workflow(id).status()
    return {"state": status.state, "steps": status.total, "left": status.left}


@router.get("/shelves/{user}")
async def shelf(user: User, files: Files) -> dict[str, str]:
    """Return the shelf: from addresses of pictures to paths of thumbnails."""
    return {address: f"/thumbnails/{name}" for address, name in files.shelf(user).items()}


@router.get("/thumbnails/{name}")
async def thumbnail(
    name: Annotated[str, Path(pattern=r"^[0-9a-f]{32}\.png$")], files: Files
) -> FileResponse:
    """Return a thumbnail."""
    if not files.path(name).exists():
        raise HTTPException(404)
    return FileResponse(files.path(name), media_type="image/png")


def create_app(nonet: Nonet | None = None) -> FastAPI:
    """Create the application.

    Args:
        nonet: an application that is not open yet; None: create it from the environment.
    """
    app = FastAPI(title="shelf", lifespan=lifespan(nonet))
    install(app)  # map errors of Nonet to status codes: 503 if Redis does not answer, 404 …
    app.include_router(router)
    return app

"""A web application that submits tasks: ``uvicorn --factory nonet_example.api:create_app``.

Routes and tasks get their database session from the same function. FastAPI requires its own
``Depends`` as the marker; Nonet accepts that marker in tasks, too.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field

from nonet import Nonet
from nonet.contrib.fastapi import NonetApp, install, lifespan
from nonet_example.database import FileDB
from nonet_example.groups import CleanTransformation
from nonet_example.requests import MOST_FILES, RemoveRequested

router = APIRouter()

# With this scope the session commits before the response is sent. Otherwise a client could receive
# the id of a task whose transaction then fails to commit.
Files = Annotated[FileDB, Depends(FileDB.session, scope="function")]


class Removal(BaseModel):
    """The body of a removal request."""

    vo: str
    lfns: list[str] = Field(min_length=1, max_length=MOST_FILES)


@router.post("/removals", status_code=202)
async def remove(removal: Removal, db: Files, nonet: NonetApp) -> dict[str, str]:
    """Record the request and submit its task in one transaction."""
    files = await db.find(removal.vo, removal.lfns)
    if unknown := sorted(set(removal.lfns) - {file.lfn for file in files}):
        raise HTTPException(404, f"{removal.vo} has no {', '.join(unknown)}")
    db.ask_for_removal(files)
    task = RemoveRequested(removal.vo, removal.lfns)
    return {"task": await nonet.submit(task, transaction=db.sql)}


@router.post("/transformations/{number}/cleaning", status_code=202)
async def clean(number: int, nonet: NonetApp) -> dict[str, object]:
    """Submit a task; a second request gets the same task until that task has ended."""
    handle = await nonet.submit(CleanTransformation(number))
    return {"task": handle, "created": handle.created}


@router.get("/tasks/{id}")
async def state(id: str, nonet: NonetApp) -> dict[str, str]:
    """Return the state of a task; 404 if the id is unknown."""
    return {"state": (await nonet.status(id)).state}


def create_app(nonet: Nonet | None = None) -> FastAPI:
    """Create the application.

    Args:
        nonet: an application that is not open yet; None: create it from the environment.
    """
    app = FastAPI(title="nonet-example", lifespan=lifespan(nonet))
    install(app)  # map errors of Nonet to the status codes 429, 503, 409 and 404
    app.include_router(router)
    return app

"""Log in and out, and the sessions of a user."""

from __future__ import annotations

import math
from secrets import token_hex
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Form, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from nonet.rules.permissions import Action, Principal
from nonet.stores.namespace.sessions import Link
from nonet.web.access.links import new_link
from nonet.web.access.login import Login
from nonet.web.access.requests import address, base_of, origin_of, own_path
from nonet.web.rendering import back, path_of, render
from nonet.web.site import Knower, Site, SiteOf, get_principal, get_site, may

router = APIRouter(include_in_schema=False)

_FLOW_SECONDS = 600
_LONGEST = 1000
# How long a read-only link may last, by its hours.
_LASTS = {1: "an hour", 8: "8 hours", 24: "a day", 168: "a week"}


def get_login(site: SiteOf) -> Login:
    """Return what checks logins; raises 404 if the application around the dashboard does."""
    if not isinstance(site.access, Login):
        raise HTTPException(404, "there is no login here: the application around this page has one")
    return site.access


LoginOf = Annotated[Login, Depends(get_login)]
User = Annotated[Principal, Depends(get_principal)]
Linker = Annotated[Principal, may(Action.LINK)]


@router.get("/login", name="login")
async def page(request: Request, login: LoginOf, next: str = "", code: str = "") -> Response:
    """Ask who the user is. With the code of a one-time link ask only for a click.

    Programs that preview links open this page; only the click spends the code.
    """
    link = await login.browsers.stored.offered(code) if code else None
    return _page(request, login, next, code=code, link=link)


@router.post("/login", name="log_in")
async def log_in(
    request: Request,
    site: SiteOf,
    login: LoginOf,
    name: Annotated[str, Form(max_length=100)],
    password: Annotated[str, Form(max_length=1000)],
    next: Annotated[str, Form()] = "",
) -> Response:
    """Log in a user by its password."""
    if not login.has_passwords:
        raise HTTPException(403, "no users are configured here: set NONET_WEB_USERS")
    user = await login.check_password(name, password, address.get())
    if user is None:
        await site.audit.record(name, "login", "by password", "refused: wrong name or password")
        problem = "The name or the password is wrong."
        return _page(request, login, next, status=401, problem=problem, name=name)
    answer = RedirectResponse(own_path(next, base_of(request.scope)), 303)
    await login.browsers.begin(request, answer, user.name, "file", user.proof)
    await site.audit.record(user.name, "login", f"by password, as {user.role}")
    return answer


@router.post("/login/link", name="log_in_by_link")
async def log_in_by_link(
    request: Request, site: SiteOf, login: LoginOf, code: Annotated[str, Form(max_length=100)]
) -> Response:
    """Log in by a link, which spends its code unless it is read-only."""
    _ensure_links(site)
    await login.count_attempt("address", address.get())
    link = await login.browsers.stored.redeem(code)
    if link is None:
        await site.audit.record("?", "login", "by link", "refused: spent, too old or unknown")
        problem = (
            "This link was used already, is over, or was made with another NONET_WEB_SECRET: ask "
            "an admin for another one, who makes it with 'task-run web link'."
        )
        return _page(request, login, "", status=401, problem=problem)
    await login.withdraw_attempt(address.get())
    answer = RedirectResponse(path_of(request, "overview"), 303)
    name, how, what = f"link:{link.who}", "link", "by one-time link, as admin"
    until = math.inf
    if link.is_read_only:
        until = link.until
        # A user of its own, because a user sees and ends its other sessions.
        name, how, what = f"view:{link.who}:{token_hex(3)}", "view", "by read-only link, as viewer"
    await login.browsers.begin(request, answer, name, how, until=until)
    await site.audit.record(name, "login", what)
    return answer


@router.get("/login/oidc", name="oidc")
async def oidc(request: Request, login: LoginOf, next: str = "") -> Response:
    """Send the browser to the OIDC provider."""
    if login.provider is None:
        raise HTTPException(404, "no OIDC provider is configured: set NONET_WEB_OIDC_ISSUER")
    next = own_path(next, base_of(request.scope))[:_LONGEST]  # it becomes part of a cookie
    url, flow = await login.provider.start(_callback(request), next)
    answer = RedirectResponse(url, 303)
    cookie = login.browsers.cookie(request, "oidc")
    login.browsers.set_cookie(request, answer, cookie, flow, _FLOW_SECONDS)
    return answer


@router.get("/login/callback", name="oidc_callback")
async def oidc_callback(request: Request, site: SiteOf, login: LoginOf) -> Response:
    """Take the answer of the OIDC provider."""
    if login.provider is None:
        raise HTTPException(404, "no OIDC provider is configured: set NONET_WEB_OIDC_ISSUER")
    cookie = login.browsers.cookie(request, "oidc")
    flow = request.cookies.get(cookie, "")
    try:
        found = await login.provider.finish(request.query_params, flow, _callback(request))
        grant = login.grant_of(found.values)
        if grant is None:
            raise HTTPException(
                403,
                f"{found.name} (subject {found.id}) has no role here: its claim "
                f"{site.settings.oidc_claim!r} has {', '.join(found.values) or 'no values'}, and "
                "NONET_WEB_OIDC_ROLES gives none of them a role. Ask an admin of this dashboard.",
            )
    except HTTPException as error:
        if error.status_code == 403:  # else any stranger could fill the audit
            await login.count_attempt("address", address.get())
        await site.audit.record("?", "login", "by OIDC", str(error.detail))
        raise
    answer = RedirectResponse(own_path(found.next, base_of(request.scope)), 303)
    proof = "\n".join(login.roles_in(found.values))
    await login.browsers.begin(request, answer, found.name, "oidc", proof)
    login.browsers.delete_cookie(request, answer, cookie)
    await site.audit.record(found.name, "login", f"by OIDC as {grant.role}, subject {found.id}")
    return answer


@router.post("/logout", name="logout")
async def log_out(
    request: Request,
    site: SiteOf,
    login: LoginOf,
    who: User,
    everywhere: Annotated[bool, Form()] = False,
) -> Response:
    """End the session of this browser, or all sessions of its user."""
    answer = RedirectResponse(path_of(request, "login"), 303)
    await login.browsers.end(request, answer)
    if everywhere:
        for session in await login.browsers.stored.of(who.name):
            await login.browsers.end_other(who.name, session.digest)
    await site.audit.record(who.name, "logout", "everywhere" if everywhere else "here")
    return answer


@router.get("/account", name="account")
async def account(request: Request, site: SiteOf, who: Knower) -> Response:
    """Show a user what it may do, and its sessions."""
    sessions = []
    if isinstance(site.access, Login) and who.session:
        sessions = await site.access.browsers.stored.of(who.name)
    return render(request, "account.html", sessions=sessions, lasts=_LASTS, link="")


@router.post("/account/link", name="make_link")
async def make_link(
    request: Request, site: SiteOf, login: LoginOf, who: Linker, hours: Annotated[int, Form()]
) -> Response:
    """Make a read-only link, and show it in this answer only."""
    _ensure_links(site)
    if hours not in _LASTS:
        raise HTTPException(422, f"hours: choose one of {', '.join(map(str, _LASTS))}")
    async with site.changing(who, Action.LINK, f"read-only link for {_LASTS[hours]}"):
        stored, address = login.browsers.stored, site.settings.address
        link = await new_link(stored, address, who.name, hours * 3600.0)
    sessions = await stored.of(who.name) if who.session else []
    return render(request, "account.html", sessions=sessions, lasts=_LASTS, link=link)


@router.post("/account/sessions/{digest}/end", name="end_session")
async def end_session(
    request: Request, site: SiteOf, login: LoginOf, who: User, digest: str
) -> Response:
    """End another session of the same user."""
    await login.browsers.end_other(who.name, digest)
    await site.audit.record(who.name, "logout", "of another session")
    return back(request, path_of(request, "account"), "Ended that session.")


def _ensure_links(site: Site) -> None:
    if not site.settings.links:
        raise HTTPException(403, "links are switched off: NONET_WEB_LINKS is 0")


def _page(
    request: Request,
    login: Login,
    next: str,
    *,
    status: int = 200,
    code: str = "",
    link: Link | None = None,
    problem: str = "",
    name: str = "",
) -> Response:
    next = own_path(next, base_of(request.scope))
    return render(
        request,
        "login.html",
        status,
        next=next,
        code=code,
        link=link,
        problem=problem,
        name=name,
        has_passwords=login.has_passwords,
        oidc=f"{path_of(request, 'oidc')}?{urlencode({'next': next})}" if login.provider else "",
    )


def _callback(request: Request) -> str:
    """The address to which the OIDC provider sends the browser back."""
    here = f"{request.url.scheme}://{request.headers.get('host', '')}"
    origin = origin_of(get_site(request).settings.url)
    return f"{origin or here}{path_of(request, 'oidc_callback')}"

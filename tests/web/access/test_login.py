"""Log in and out by a password, by a one-time link, and what ends a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from playwright.async_api import Page

from nonet.rules.permissions import Role


async def test_a_user_logs_in_and_out(
    logged_in_page: Callable[[Role], Awaitable[Page]], login_address: str
) -> None:
    """The browser shows who is logged in with which role; after the logout it asks again."""
    page = await logged_in_page(Role.OPERATOR)
    await page.get_by_text("operator").first.click()
    await page.get_by_role("link", name="Account and sessions").click()
    assert "cancel" in await page.inner_text("main")
    await page.get_by_text("operator").first.click()
    await page.get_by_role("button", name="Log out", exact=True).click()
    await page.wait_for_url(f"{login_address}/login")
    await page.goto(login_address)
    assert "/login" in page.url

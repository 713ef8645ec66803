// Keep an open page up to date. While it is visible, it asks for itself every 3 seconds, with the
// ETag of the last answer, and replaces the sections with data-refresh that have changed.
"use strict";
{
  const PAUSE_MS = 3000;
  const PATIENCE_MS = 10000;
  const SCROLLING = ".table, .graph, pre";
  const badge = document.getElementById("connection");
  // The answer to a form has no address of its own: it names the page that it shows.
  const address = new URL(document.body.dataset.read || location.pathname + location.search, location.href);
  const find = (root, selector) => [...root.querySelectorAll(selector)];
  let etag = "";
  let answered = new Date();
  let isAsking = false;
  let timer = 0;

  const show = (text, { isLost = false, href = "" } = {}) => {
    if (badge.textContent === text) return;
    // Read out that no answer comes, and that one comes again, but not each new time.
    badge.setAttribute("aria-live", isLost || badge.classList.contains("lost") ? "polite" : "off");
    badge.classList.toggle("lost", isLost);
    badge.replaceChildren(href ? Object.assign(document.createElement("a"), { href, textContent: text }) : text);
  };
  const { zone = "UTC", zoneName = "UTC" } = document.body.dataset;
  const clock = new Intl.DateTimeFormat("sv", { timeStyle: "medium", timeZone: zone });
  const time = () => `${clock.format(answered)} ${zoneName}`;

  // Whether the user presses a button, answers a question, fills in a form or selects text here.
  const isInUse = (section) => {
    const selected = getSelection();
    return section.matches(":active")
      || section.querySelector(":popover-open, :focus:is(input:not([type=checkbox]), select, textarea)")
      || find(section, "input, textarea").some((one) => one.value !== one.defaultValue || one.checked !== one.defaultChecked)
      || (!selected.isCollapsed && selected.containsNode(section, true));
  };

  // Elements with the same name and attributes; their contents may differ.
  const alike = (root, element) =>
    find(root, element.localName).filter((one) => one.cloneNode().isEqualNode(element.cloneNode()));

  // Open details, scrolled boxes and the focus stay as they are.
  const replace = (old, fresh) => {
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const place = focused ? alike(old, focused).indexOf(focused) : -1;
    const scrolled = find(old, SCROLLING).map((box) => [box.scrollLeft, box.scrollTop]);
    const details = find(fresh, "details");
    find(old, "details").forEach(({ open }, at) => { if (details[at]) details[at].open = open; });
    old.replaceWith(fresh);
    find(fresh, SCROLLING).forEach((box, at) => box.scrollTo(...(scrolled[at] || [0, 0])));
    if (focused) alike(fresh, focused)[place]?.focus({ preventScroll: true });
  };

  // Return whether all sections are as in the answer; those in use are replaced later.
  const update = (fresh) => {
    const changed = find(document, "[data-refresh]")
      .map((section) => [section, fresh.getElementById(section.id)])
      .filter(([section, found]) => found && !section.isEqualNode(found));
    const free = changed.filter(([section]) => !isInUse(section));
    free.forEach(([section, found]) => replace(section, document.adoptNode(found)));
    return free.length === changed.length;
  };

  const take = async (answer) => {
    if (answer.status === 401 || answer.type === "opaqueredirect") {
      return show("your session has ended: log in again", { isLost: true, href: address });
    }
    if (answer.status !== 304 && !answer.ok) {
      const reason = answer.status === 503 ? "Redis or SQL does not answer" : `error ${answer.status}`;
      return show(`no answer since ${time()}: ${reason}`, { isLost: true });
    }
    let isWhole = true;
    if (answer.ok) {
      isWhole = update(new DOMParser().parseFromString(await answer.text(), "text/html"));
      etag = isWhole ? answer.headers.get("ETag") || "" : "";
    }
    answered = new Date();
    show(`as of ${time()}${isWhole ? "" : ", except what you use"}`);
    document.dispatchEvent(new CustomEvent("nonet:refresh"));
  };

  const ask = async () => {
    clearTimeout(timer);
    if (isAsking || document.hidden) return;
    isAsking = true;
    try {
      const headers = { "Nonet-Refresh": "1", ...(etag && { "If-None-Match": etag }) };
      const signal = AbortSignal.timeout(PATIENCE_MS);
      await take(await fetch(address, { headers, signal, cache: "no-store", redirect: "manual" }));
    } catch {
      show(`no answer since ${time()}`, { isLost: true });
    } finally {
      isAsking = false;
      timer = setTimeout(ask, PAUSE_MS);
    }
  };

  if (document.querySelector("[data-refresh]")) {
    show(`as of ${time()}`);
    timer = setTimeout(ask, PAUSE_MS);
    document.addEventListener("visibilitychange", ask);
  }
}

// Live pages. The server says when something has changed; the page then reads itself again and
// updates its sections with data-refresh. One tab of a browser holds the stream of the server, and
// passes its messages on to the others.
"use strict";
{
  const address = document.body.dataset.live;
  const name = `nonet-live:${address}`;
  const badge = document.getElementById("connection");
  const CHECK_MS = 1000;
  const LONGEST_RETRY_MS = 60000;
  const REPLACED_MS = 3000;

  let source = null; // of the tab that holds the stream
  let lastEvent = "";
  let lost = null; // since when
  let isDue = false; // something changed while the page was hidden
  let isReading = false;
  let heardAt = Date.now() - 9000;
  let silentMs = 10000; // without Web Locks: the silence after which a tab opens a stream of its own
  let retryMs = 2000;

  const show = (text, isLost = false) => {
    if (badge.textContent !== text) badge.textContent = text;
    badge.classList.toggle("lost", isLost);
  };
  const live = () => { lost = null; show("live"); };
  const fail = (what) => {
    lost = lost || new Date();
    show(`${what} since ${lost.toLocaleTimeString()}, retrying`, true);
  };

  // ---- Updating: make an old part of the page equal to a new one, but keep what its user did.

  // What identifies a child among its siblings: an id, or for rows the task or lock they are about.
  const keyOf = (node) => {
    if (node.nodeType !== Node.ELEMENT_NODE) return "";
    if (node.id || node.dataset.key) return `#${node.id || node.dataset.key}`;
    if (node.matches("[type=checkbox], [type=radio]")) return `${node.name}=${node.defaultValue}`;
    if (node.matches("input, select, textarea")) return node.name;
    const inside = node.matches("tr, li") && node.querySelector("input[type=checkbox][value], a[href]");
    return inside ? inside.getAttribute("value") || inside.getAttribute("href") : "";
  };

  // Attributes only. The text in a field, a checked box and an open popover are no attributes.
  const updateAttributes = (old, fresh) => {
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      const isOpen = name === "open" && old.matches("details, dialog");
      if (!fresh.hasAttribute(name) && !isOpen) old.removeAttribute(name);
    }
  };

  const updateChildren = (old, fresh) => {
    const keyed = new Map();
    for (const child of old.childNodes) {
      const key = keyOf(child);
      if (key && !keyed.has(key)) keyed.set(key, child);
    }
    const wanted = new Set([...fresh.childNodes].map(keyOf).filter(Boolean));
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const key = keyOf(child);
      // Children that the new page does not have go first, so that others need not move.
      while (at && keyOf(at) && !wanted.has(keyOf(at))) at = remove(at);
      let match = key ? keyed.get(key) : at && !keyOf(at) ? at : null;
      if (match && match.nodeName !== child.nodeName) match = null;
      if (match) {
        keyed.delete(key);
        if (match === at) at = at.nextSibling;
        else old.insertBefore(match, at);
        update(match, child);
      } else {
        old.insertBefore(document.importNode(child, true), at);
      }
    }
    while (at) at = remove(at);
  };

  const remove = (node) => {
    const next = node.nextSibling;
    node.remove();
    return next;
  };

  const update = (old, fresh) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    if (old.isEqualNode(fresh)) return;
    updateAttributes(old, fresh);
    if (!old.hasAttribute("data-drawn")) updateChildren(old, fresh); // a script drew the children
  };

  // Somebody confirms an action or selects text here: wait for the next tick.
  const isBusy = (section) => {
    const selected = getSelection();
    return section.querySelector(":popover-open, dialog[open]")
      || (!selected.isCollapsed && selected.containsNode(section, true));
  };

  const refresh = (fresh) => {
    const focused = document.activeElement;
    for (const section of document.querySelectorAll("[data-refresh]")) {
      const found = fresh.getElementById(section.id);
      if (found && !isBusy(section)) update(section, document.adoptNode(found));
    }
    if (focused.isConnected && focused !== document.activeElement) {
      focused.focus({ preventScroll: true }); // it was moved
    }
    document.dispatchEvent(new CustomEvent("nonet:refresh"));
  };

  const read = async () => {
    if (isReading) return;
    if (document.hidden) { isDue = true; return; }
    isReading = true;
    isDue = false;
    try {
      // The answer to a form has no address of its own: it names the page that it shows.
      const target = new URL(document.body.dataset.read || location.href, location.href);
      const answer = await fetch(target, { headers: { "Nonet-Refresh": "1" }, cache: "no-store" });
      if (answer.redirected && new URL(answer.url).pathname !== target.pathname) {
        show("your session has ended: reload the page to log in", true);
      } else if (answer.ok) {
        refresh(new DOMParser().parseFromString(await answer.text(), "text/html"));
        live();
      } else {
        fail(answer.status === 503 ? "Redis or SQL is away" : `error ${answer.status}`);
      }
    } catch {
      fail("lost");
    } finally {
      isReading = false;
    }
  };

  // ---- Listening.

  const handle = ({ kind, data }) => {
    heardAt = Date.now();
    if (data && data.seconds) silentMs = Math.max(10000, 4000 * data.seconds);
    if (kind === "tick") {
      // Not all tabs at the same instant.
      setTimeout(read, Math.random() * 300);
    } else if (kind === "hello") {
      retryMs = 2000;
      if (lost) read();
      else live();
    } else if (kind === "lost") {
      fail("Redis does not answer");
    } else if (kind === "cut") {
      fail("lost");
    } else if (kind === "event") {
      document.dispatchEvent(new CustomEvent("nonet:event", { detail: data }));
    }
  };

  const start = () => {
    const channel = new BroadcastChannel(name);
    const tell = (message) => { handle(message); channel.postMessage(message); };
    channel.onmessage = ({ data: message }) => {
      // A new tab asks for the state.
      if (message.kind !== "ask") handle(message);
      else if (source) channel.postMessage({ kind: lost ? "cut" : "hello", data: {} });
    };

    // The stream, until `ended` is called: by the server's word that another tab has one.
    const listen = (ended) => {
      const again = () => {
        setTimeout(() => listen(ended), retryMs);
        retryMs = Math.min(2 * retryMs, LONGEST_RETRY_MS);
      };
      source = new EventSource(`${address}?after=${encodeURIComponent(lastEvent)}`);
      for (const kind of ["hello", "tick", "lost", "event", "end"]) {
        source.addEventListener(kind, (event) => {
          lastEvent = event.lastEventId || lastEvent;
          const data = JSON.parse(event.data);
          if (kind !== "end") return tell({ kind, data });
          if (data.reason === "replaced") { source.close(); source = null; ended(); }
          else if (data.reason === "session") { source.close(); read(); again(); }
        });
      }
      source.onerror = () => {
        tell({ kind: "cut" });
        // After an error status the browser does not try again itself.
        if (source && source.readyState === EventSource.CLOSED) { read(); again(); }
      };
    };

    if (navigator.locks) {
      // The lock is free when the tab that has it closes. A stream of a page that was left at once
      // may reach the server after ours, and replace it: then open one again.
      const hold = async () => {
        await navigator.locks.request(name, () => new Promise(listen));
        setTimeout(hold, REPLACED_MS);
      };
      hold();
    } else {
      // Without TLS there are no Web Locks: who hears nothing takes the stream.
      const check = () => {
        if (!source && Date.now() - heardAt > silentMs) listen(() => { heardAt = Date.now(); });
      };
      setTimeout(() => setInterval(check, CHECK_MS), CHECK_MS * Math.random());
    }
    channel.postMessage({ kind: "ask" });
  };

  if (address && document.querySelector("[data-refresh]")) {
    start();
    document.addEventListener("visibilitychange", () => { if (!document.hidden && isDue) read(); });
  }
}

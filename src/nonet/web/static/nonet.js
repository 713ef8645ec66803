// What pages do without a reload: copies, the theme, the zone of times, ages and keys.
"use strict";

// Say something to people who do not see it happen.
const say = (text) => { document.getElementById("said").textContent = text; };

// A click on the button of the theme chooses the other one, for this browser.
document.addEventListener("click", (event) => {
  if (!event.target.closest("#theme")) return;
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});

// The empty fields of a search do not lengthen its address.
document.addEventListener("formdata", ({ target, formData }) => {
  if (target.method !== "get") return;
  for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
});

// The buttons of a list say how many of its rows are chosen; without one they act on all that match.
document.addEventListener("change", ({ target }) => {
  const buttons = [...(target.form?.querySelectorAll("[data-chosen]") || [])];
  if (!buttons.length || target.type !== "checkbox") return;
  const boxes = [...target.form.elements].filter((one) => one.type === "checkbox" && one.name);
  if ("all" in target.dataset) boxes.forEach((box) => { box.checked = target.checked; });
  const number = boxes.filter((box) => box.checked).length;
  for (const button of buttons) {
    button.dataset.all ??= button.textContent;
    button.textContent = number ? button.dataset.chosen.replace("{n}", number) : button.dataset.all;
  }
});

// The server shows times in the zone of this cookie.
document.addEventListener("click", (event) => {
  if (!event.target.closest("#zone")) return;
  const { zone, read } = document.body.dataset;
  const chosen = zone === "UTC" ? new Intl.DateTimeFormat().resolvedOptions().timeZone : "UTC";
  if (chosen === zone) return say("the zone of this browser is UTC");
  document.cookie = `nonet_zone=${chosen}; path=/; max-age=31536000; samesite=strict`;
  if (read) location.assign(read);
  else location.reload();
});

// <time-ago> says how long ago the <time> before it was. Its text is in a shadow tree, so that a
// refresh does not take it for a change of the page.
customElements.define("time-ago", class extends HTMLElement {
  connectedCallback() {
    if (!this.shadowRoot) this.attachShadow({ mode: "open" });
    this.show();
    this.timer = setInterval(() => this.show(), 10000);
  }

  disconnectedCallback() { clearInterval(this.timer); }

  show() {
    const seconds = (Date.now() - Date.parse(this.previousElementSibling.dateTime)) / 1000;
    const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
    const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= 2 * size) || ["s", 1];
    const text = `${Math.floor(Math.abs(seconds) / size)} ${unit}`;
    this.shadowRoot.textContent = seconds < -5 ? `in ${text}` : seconds < 5 ? "now" : `${text} ago`;
  }
});

// A button with data-copy copies that text.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = "Copied";
  say("copied");
  setTimeout(() => { button.textContent = "Copy"; say(""); }, 2000);
});

// Keys of one letter hinder people who speak to their computer: the list of keys turns them off.
const keys = document.getElementById("keys");
const useKeys = document.getElementById("use-keys");
if (useKeys) {
  useKeys.checked = localStorage.getItem("keys") !== "off";
  useKeys.addEventListener("change", () => localStorage.setItem("keys", useKeys.checked ? "on" : "off"));
}

// "g" and then the key of a page opens it; "/" goes to the first field, "?" lists the keys.
let previous = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !useKeys?.checked) return;
  if (event.target.matches("input, textarea, select")) return;
  if (previous === "g") {
    document.querySelector(`nav.pages a[data-key="${CSS.escape(event.key)}"]`)?.click();
  } else if (event.key === "?") {
    keys.showPopover();
  } else if (event.key === "/") {
    const field = document.querySelector("main form.search :is(input:not([type=hidden]), select)");
    if (field) { event.preventDefault(); field.focus(); }
  }
  previous = event.key;
});

// A form survives the end of its session: the tab keeps what is sent, but secrets, and the login leads back to
// the page of the form with #kept. Any other page forgets it.
{
  const KEPT = "nonet-form";
  const here = location.pathname + location.search;
  document.addEventListener("submit", ({ target }) => {
    if (target.method !== "post" || target.closest(".login")) return;
    const isKept = (name) => name !== "csrf" && target.elements[name]?.type !== "password";
    const fields = [...new FormData(target)].filter(([name, value]) => isKept(name) && typeof value === "string");
    sessionStorage.setItem(KEPT, JSON.stringify({ here, action: target.getAttribute("action"), fields }));
  });
  const fill = (form, fields) => {
    for (const field of form.elements) {
      const sent = fields.findIndex(([name]) => name === field.name);
      if (["checkbox", "radio"].includes(field.type)) {
        field.checked = fields.some(([name, value]) => name === field.name && value === field.value);
      } else if (field.type !== "hidden" && sent >= 0) {
        [[, field.value]] = fields.splice(sent, 1);
      }
    }
    form.closest("[popover]")?.showPopover();
  };
  const kept = JSON.parse(sessionStorage.getItem(KEPT));
  if (!document.querySelector(".login")) sessionStorage.removeItem(KEPT);
  if (location.hash === "#kept") {
    history.replaceState(null, "", here);
    const form = [...document.forms].find((one) => one.getAttribute("action") === kept?.action);
    if (form && kept.here === here) fill(form, kept.fields);
    const text = "Nothing was changed: your login had ended. What you entered is here again: check it, and send it.";
    const message = Object.assign(document.createElement("p"), { className: "message bad", role: "alert", textContent: text });
    document.getElementById("main").prepend(message);
  }
}

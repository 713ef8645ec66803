// What pages do without a reload: live parts, copies, the theme and keys.
"use strict";

// On a phone the pages are one line that scrolls: show the current one.
document.querySelector("nav.pages [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

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

// The button of a list says how many of its rows are chosen; without one it acts on all that match.
document.addEventListener("change", ({ target }) => {
  const button = target.form?.querySelector("[data-chosen]");
  if (!button || target.type !== "checkbox") return;
  const boxes = [...target.form.elements].filter((one) => one.name === "task_id" && one.type === "checkbox");
  if ("all" in target.dataset) boxes.forEach((box) => { box.checked = target.checked; });
  const number = boxes.filter((box) => box.checked).length;
  button.dataset.all ??= button.textContent;
  button.textContent = number ? button.dataset.chosen.replace("{n}", number) : button.dataset.all;
});

// A button with data-copy copies that text.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.classList.add("copied");
  setTimeout(() => button.classList.remove("copied"), 1200);
});

// "g" and then the key of a page opens it; "/" goes to the search field.
let previous = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, textarea, select")) return;
  if (previous === "g") {
    const link = document.querySelector(`nav.pages a[data-key="${CSS.escape(event.key)}"]`);
    if (link) link.click();
  } else if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (field) { event.preventDefault(); field.focus(); }
  }
  previous = event.key;
});

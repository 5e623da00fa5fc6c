"use strict";
// Times are shown in the zone that is chosen; without script, and in addresses, they are in UTC.
const zone = document.getElementById("zone");
const isLocal = () => zone?.value === "local";
const wall = (date) => new Date(date - (isLocal() ? date.getTimezoneOffset() * 60000 : 0)).toISOString().slice(0, -1);
const offset = (date) => {
  const minutes = -date.getTimezoneOffset(), pad = (number) => String(Math.floor(number)).padStart(2, "0");
  return `${minutes < 0 ? "-" : "+"}${pad(Math.abs(minutes) / 60)}:${pad(Math.abs(minutes) % 60)}`;
};
const showTimes = (root) => {
  for (const each of root.querySelectorAll("time:not([title]), [data-at]")) {
    const date = new Date(each.dataset.at ?? each.dateTime), [from, to] = (each.dataset.part ?? "0,23").split(",");
    if (isNaN(date)) continue;
    const text = wall(date).slice(from, to), isExact = to > 19; // the zone of the others is that of the choice above
    each.textContent = isExact ? text + (isLocal() ? offset(date) : "Z") : text.replace("T", " ") + (isLocal() || from > 0 ? "" : "Z");
  }
};
const instants = [...document.querySelectorAll("[type=datetime-local]")].map((input) => [input, input.value && new Date(`${input.value}Z`)]);
if (zone) {
  zone.options[0].textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
  zone.value = localStorage.getItem("zone") ?? "local";
  zone.hidden = false;
  const change = () => {
    for (const [input, date] of instants) if (date) input.value = wall(date);
    showTimes(document);
  };
  zone.addEventListener("change", () => {
    localStorage.setItem("zone", zone.value);
    change();
  });
  change();
}
document.addEventListener("formdata", (event) => {
  for (const input of event.target.querySelectorAll("[type=datetime-local]")) {
    if (input.value) event.formData.set(input.name, new Date(input.value + (isLocal() ? "" : "Z")).toISOString());
  }
});

const all = document.getElementById("all");
if (all) {
  all.hidden = false;
  all.addEventListener("change", () => {
    for (const each of document.querySelectorAll("td [type=checkbox]")) each.checked = all.checked;
  });
}

// Sorts the rows that are shown; the address orders all of them, by due time.
for (const head of document.querySelectorAll("th[data-sort]")) {
  const sort = document.createElement("button");
  Object.assign(sort, { type: "button", className: "sort", textContent: head.textContent, title: "Sort the rows shown" });
  sort.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0], order = head.ariaSort === "ascending" ? -1 : 1;
    const text = (row) => row.cells[head.cellIndex].textContent.trim();
    for (const each of head.parentElement.cells) each.ariaSort = null;
    head.ariaSort = order > 0 ? "ascending" : "descending";
    body.append(...[...body.rows].sort((a, b) => order * text(a).localeCompare(text(b), undefined, { numeric: true })));
  });
  head.replaceChildren(sort);
}

// A text that is cut gets a button to copy all of it.
const decorate = (root) => {
  showTimes(root);
  for (const text of root.querySelectorAll(".cut")) {
    const box = text.closest("td, dd, h1, h2, li") ?? text;
    if (text.scrollWidth <= text.clientWidth || box.querySelector(".copy")) continue;
    const copy = document.createElement("button");
    Object.assign(copy, { type: "button", className: "copy", textContent: "⧉", title: "Copy" });
    copy.setAttribute("aria-label", `Copy ${text.title.slice(0, 40)}`);
    copy.addEventListener("click", () => { // navigator.clipboard needs TLS
      getSelection().selectAllChildren(text);
      copy.textContent = document.execCommand("copy") ? "✓" : "✗";
      getSelection().removeAllRanges();
    });
    box.classList.add("has-copy");
    box.append(copy);
  }
};
decorate(document);

// Refresh the live part every few seconds, unless it is paused, the page is hidden, or the user works in that part.
const live = document.querySelector("[data-refresh]");
if (live) {
  const pause = document.getElementById("pause"), state = document.getElementById("refresh-state");
  const isPaused = () => pause.getAttribute("aria-pressed") === "true";
  const isInUse = () => String(document.getSelection()) || live.contains(document.activeElement);
  const refresh = async () => {
    if (isPaused() || document.hidden || isInUse()) return;
    try {
      const answer = await fetch(location.href, { redirect: "error" });
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      state.textContent = "";
      if (isPaused() || isInUse()) return;
      const fresh = page.getElementById(live.id);
      if (!fresh) return location.reload(); // it has ended: another page follows
      const opened = new Set(Array.from(live.querySelectorAll("details[open]"), (each) => each.id));
      for (const each of fresh.querySelectorAll("details")) each.open = opened.has(each.id);
      live.replaceChildren(...fresh.childNodes);
      decorate(live);
    } catch {
      state.textContent = "No answer: the figures are old. The page tries again.";
    }
  };
  pause.hidden = false;
  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(!isPaused()));
    refresh();
  });
  document.addEventListener("visibilitychange", refresh);
  setInterval(refresh, 1000 * Number(live.dataset.refresh));
}

// Keys go to the element that names them. They can be turned off, as speech input types letters (WCAG 2.1.4).
const keys = document.getElementById("keys");
if (keys) {
  keys.closest("footer").hidden = false;
  keys.checked = localStorage.getItem("keys") !== "off";
  keys.addEventListener("change", () => localStorage.setItem("keys", keys.checked ? "on" : "off"));
  document.addEventListener("keydown", (event) => {
    const isTyped = event.target.closest("textarea, input:not([type=checkbox])");
    if (isTyped || !keys.checked || event.ctrlKey || event.altKey || event.metaKey) return;
    const named = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (!named) return;
    event.preventDefault();
    if (named.matches("input")) named.focus();
    else named.click();
  });
}

// Refresh the live part every few seconds, unless the page is hidden or the user works in that part.
"use strict";
const live = document.querySelector("[data-refresh]");
if (live) {
  setInterval(async () => {
    const chosen = String(document.getSelection());
    if (document.hidden || chosen || live.contains(document.activeElement)) return;
    try {
      const answer = await fetch(location.href, { redirect: "error" });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById(live.id);
      if (!fresh) return;
      const opened = new Set(Array.from(live.querySelectorAll("details[open]"), (each) => each.id));
      for (const each of fresh.querySelectorAll("details")) each.open = opened.has(each.id);
      live.replaceChildren(...fresh.childNodes);
    } catch {
      // The next one may succeed; the time at the end of the page shows the age of the data.
    }
  }, 1000 * Number(live.dataset.refresh));
}

// Shows what is live anew every few seconds, unless nobody looks or somebody is at work in it.
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
      if (fresh) live.replaceChildren(...fresh.childNodes);
    } catch {
      // The next one may come through; the time at the end of the page says how old it is.
    }
  }, 1000 * Number(live.dataset.refresh));
}

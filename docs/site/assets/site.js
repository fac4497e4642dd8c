/* What the theme leaves out for people who do not use a mouse: a name for the search, focus for what scrolls.
   Commands that are copied without their prompt and what they print. And the film of the first page: it plays
   by itself unless somebody prefers less motion, and has a button. */
(() => {
  "use strict";

  const search = document.querySelector("[data-md-component=search]");
  search?.setAttribute("aria-label", "Search");

  const scrolling = ".md-typeset pre > code, .md-typeset__scrollwrap, .md-sidebar__scrollwrap";
  const give = () => {
    for (const one of document.querySelectorAll(scrolling)) {
      const scrolls = one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight;
      if (scrolls !== one.hasAttribute("tabindex")) one.toggleAttribute("tabindex", scrolls);
      if (scrolls && one.tabIndex !== 0) one.tabIndex = 0;
    }
  };
  give();
  addEventListener("resize", give);
  document.fonts.ready.then(give);
  // The theme takes it away again from what is not in sight, and wraps tables when it is ready.
  new MutationObserver(give).observe(document.body, { attributeFilter: ["tabindex"], childList: true, subtree: true });

  for (const code of document.querySelectorAll(".highlight code:has(.gp)")) {
    const typed = code.cloneNode(true);
    for (const one of typed.querySelectorAll(".go, .gt")) {
      if (one.nextSibling?.nodeType === Node.TEXT_NODE) one.nextSibling.data = one.nextSibling.data.replace("\n", "");
      one.remove();
    }
    for (const one of typed.querySelectorAll(".gp")) one.remove();
    // An empty line of a console is printed; the theme copies this instead of what is to be seen.
    const printed = code.closest(".language-console") ? /^\n+|\n+(?=\n)/g : /$^/;
    code.dataset.copy = typed.textContent.replace(printed, "");
  }

  const film = document.querySelector(".film");
  if (film) {
    const films = [...film.querySelectorAll("video")];
    const button = document.createElement("button");
    button.type = "button";
    button.className = "film-button";
    film.insertBefore(button, film.querySelector("figcaption"));
    let plays = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    const show = () => {
      button.textContent = plays ? "Pause" : "Play";
      for (const one of films) {
        one.removeAttribute("controls");
        // Of light and dark, one is to be seen.
        if (plays && getComputedStyle(one).display !== "none") one.play().catch(() => one.setAttribute("controls", ""));
        else one.pause();
      }
    };
    button.addEventListener("click", () => {
      plays = !plays;
      show();
    });
    new MutationObserver(show).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
    show();
  }
})();

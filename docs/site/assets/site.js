/* What the theme leaves out for people who do not use a mouse: a name for the search, focus for what scrolls. */
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
  // The theme takes it away again from what is not in sight.
  new MutationObserver(give).observe(document.body, { attributeFilter: ["tabindex"], subtree: true });
})();

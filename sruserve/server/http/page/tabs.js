// Tabs that the arrow keys move between.

import { byId } from "./dom.js";

/** Show a tab for each panel of `names`, and the panel that the address or the first tab names. */
export function startTabs(names) {
  const tabs = names.map((name) => byId(`tab-${name}`));
  tabs.forEach((tab) => {
    tab.hidden = false;
    tab.addEventListener("click", () => choose(tab, true));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const index = { Home: 0, End: tabs.length - 1 }[event.key] ?? tabs.indexOf(tab) + (to ?? 0);
      if (!to && !["Home", "End"].includes(event.key)) return;
      event.preventDefault();
      const next = tabs.at(index % tabs.length);
      choose(next, true);
      next.focus();
    });
  });

  function choose(chosen, note) {
    for (const tab of tabs) {
      const isChosen = tab === chosen;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      byId(tab.getAttribute("aria-controls")).hidden = !isChosen;
    }
    if (note) history.replaceState(null, "", `#${chosen.getAttribute("aria-controls")}`);
  }

  function chooseAddressed() {
    const name = location.hash.slice(1).split("&")[0];
    const tab = tabs[names.indexOf(name)];
    if (tab) choose(tab, false);
    return Boolean(tab);
  }

  addEventListener("hashchange", chooseAddressed);
  if (!chooseAddressed()) choose(tabs[0], false);
}
